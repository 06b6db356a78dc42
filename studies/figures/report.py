"""The paper's pictures of features: models in, pictures, a table and JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from gdt.common.errors import UserError, memory_told
from gdt.common.files import write_text
from gdt.eval.measures import Measure
from gdt.eval.planes import Planes, planes
from gdt.eval.results import RANDOM
from gdt.eval.retrieval import unit
from gdt.eval.subjects import Model, asked_for, name_of
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.studies.figures import picture
from gdt.studies.figures.features import groups, of_clips
from gdt.studies.figures.measures import Apart, apart, deviations, median, own_nearest, ratio
from gdt.studies.figures.results import NAME, Findings, Seen, to_json, told
from gdt.studies.figures.settings import Figures
from gdt.studies.figures.videos import Chosen, chosen
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import any_device, modalities_of
from gdt.train.provenance import Provenance


class Measured(NamedTuple):
    """What features of a model show; see `measures`."""

    deviation: np.ndarray
    apart: Apart
    nearest: Measure
    planes: Planes
    dim: int
    """Numbers in a feature."""


def figures(settings: Figures) -> str:
    """Do it; returns the table, and writes it with the numbers and the pictures.

    Raises UserError where a checkpoint, the shards or their held-out videos are missing or do not fit.
    """
    with memory_told("set --videos lower"):
        found, places = drawn(settings)
    out = settings.out or Path("runs") / f"figures-{found.dataset}"
    out.mkdir(parents=True, exist_ok=True)
    text = "\n".join(told(found))
    write_text(out / "table.txt", text + "\n")
    write_text(out / NAME, to_json(found) + "\n")
    picture.deviation(found).savefig(out / "deviation.png", dpi=150)
    picture.clips(found, places).savefig(out / "clips.png", dpi=150)
    return f"\n{text}\n\npictures (deviation.png, clips.png), table and numbers (json): {out}/"


def drawn(settings: Figures) -> tuple[Findings, list[Planes]]:
    """What was found, and where the clips of each of its models lie on planes."""
    first = load_model(settings.ckpt[0])
    dataset, index = asked_for(settings.ckpt[0], first, settings.dataset, settings.shards)
    data = fingerprint(index)
    index = index.labelled(settings.label)
    models = _models(settings, first)
    clips = [model.trained.settings.clip for model in models]
    videos = chosen(index, clips, settings)
    device = any_device()
    provenance = Provenance.of(device)
    measured = _measured(models, index, videos, settings, device)
    random = measured[0].apart if models[0].random else None
    found = Findings(
        dataset, data, videos.split, videos.too_short, videos.apart,
        lasts=max((clip.frames - 1) * clip.stride + 1 for clip in clips) / index.fps,
        videos=tuple(map(str, index.id[videos.spread])),
        shown=tuple(map(str, index.id[videos.shown])),
        of_class=videos.of_class,
        labelled=bool((index.label[videos.videos] != "").any()),
        models=tuple(
            _seen(model, each, random if _alike(model, models[0]) else None, data, videos.split, index)
            for model, each in zip(models, measured, strict=True)
        ),
        settings=settings,
        provenance=provenance,
    )  # fmt: skip
    return found, [each.planes for each in measured]


def _models(settings: Figures, first: Trained) -> list[Model]:
    """Random weights, where they are asked for, and the checkpoints. Raises UserError where one has no pictures."""
    models = [Model(RANDOM, settings.ckpt[0], first.untrained(), True)] if settings.random else []
    paths = list(dict.fromkeys(settings.ckpt))
    names = [name_of(path) for path in paths]
    for path, name in zip(paths, names, strict=True):
        trained = first if path == settings.ckpt[0] else load_model(path)
        print(f"{path}: {trained.name}", flush=True)
        if "video" not in modalities_of(trained.model.state_dict()):
            raise UserError(f"{path} was trained without pictures, so it has no features of them; name another")
        fresh = trained.foreign.fresh if trained.foreign else ()
        if settings.kind == "embeddings" and any(part.startswith("mlp_") for part in fresh):
            raise UserError(
                f"{path} holds a trunk alone, and embeddings need a head; --kind features takes the trunk's"
            )
        model = Model(name, path, trained, False)
        alike = names.count(name) > 1
        models.append(Model(f"{name} ({model.digest[:8]})", path, trained, False) if alike else model)
    return models


def _measured(
    models: Sequence[Model], index: Index, videos: Chosen, settings: Figures, device: torch.device
) -> list[Measured]:
    """Of each model; those that take the same inputs share one pass over the clips."""
    found: dict[int, Measured] = {}
    spread, shown = (np.searchsorted(videos.videos, rows) for rows in (videos.spread, videos.shown))
    for places in groups([model.trained for model in models]):
        some = [models[place].trained for place in places]
        made = of_clips(some, index, videos.videos, settings.clips, settings.kind, device)
        for place, values in zip(places, made, strict=True):
            found[place] = _measure(models[place], values, spread, shown, settings)
    return [found[place] for place in range(len(models))]


def _measure(model: Model, values: np.ndarray, spread: np.ndarray, shown: np.ndarray, settings: Figures) -> Measured:
    """Of features [n, s, d], those of some videos spread over clips, and of some on planes."""
    n, s, d = values.shape
    try:
        features = unit(values.reshape(-1, d)).reshape(n, s, d)
        own, few = features[spread], features[shown]
        places = planes(few.reshape(-1, d), settings.perplexity, settings.seed)
        return Measured(deviations(own), apart(own), own_nearest(few), places, d)
    except UserError as error:
        raise UserError(f"{model.name}, {model.path}: {error}") from error


def _alike(model: Model, first: Model) -> bool:
    """Whether the random weights that come first are of a model's own network."""
    return model is not first and model.trained.model.network == first.trained.model.network


def _seen(model: Model, measured: Measured, beside: Apart | None, data: str, split: str, index: Index) -> Seen:
    trained = model.trained
    learned: Literal["others", "these", "unknown"] = "others"
    if not model.random:
        learned = "unknown" if trained.data != data else "these" if trained.settings.split == split else "others"
    note = ""
    if trained.statistics is None:
        note = f"{model.path} does not say how its inputs were normalised; those of {index.folder} are, instead"
    return Seen(
        model=model.name,
        weights=model.digest,
        checkpoint=model.path,
        preset=RANDOM if model.random else trained.name,
        step=trained.step,
        seed=trained.settings.seed,
        random=model.random,
        trained_on=learned,
        dim=measured.dim,
        deviation=tuple(measured.deviation.tolist()),
        relative=tuple(measured.apart.relative.tolist()),
        median=median(measured.deviation),
        ratio=ratio(measured.apart),
        more=None if beside is None else ratio(measured.apart, beside),
        nearest=measured.nearest,
        note=note,
    )
