"""The paper's pictures of features: models in, pictures, a table and records out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.common.errors import UserError, explain_out_of_memory
from gdt.eval import record
from gdt.eval.drawing import save
from gdt.eval.extract import outputs
from gdt.eval.metrics import Metric, median
from gdt.eval.planes import Planes, planes
from gdt.eval.record import RANDOM, Record
from gdt.eval.retrieval import unit
from gdt.eval.subjects import Data, Model, checkpoints
from gdt.eval.tables import write_tables
from gdt.pipeline.clips import uniform_plans
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import centred
from gdt.studies.figures import pictures
from gdt.studies.figures.settings import Figures
from gdt.studies.figures.spread import Apart, apart, deviations, own_nearest, ratio
from gdt.studies.figures.table import (
    DEVIATION,
    IN_TIME,
    KIND,
    LEFT_OUT,
    MORE,
    NEAREST,
    NUMBERS,
    ON_PLANES,
    RATIO,
    RELATIVE,
    told,
)  # fmt: skip
from gdt.studies.figures.videos import Chosen, chosen
from gdt.train.checkpoint import load_model
from gdt.train.models.gdt import any_device, modalities_of
from gdt.train.provenance import Provenance

NAME = "figures.json"


class Measured(NamedTuple):
    """What features of a model show; see `spread`."""

    deviation: np.ndarray
    apart: Apart
    nearest: Metric
    planes: Planes
    dim: int
    """Numbers in a feature."""


def figures(settings: Figures) -> str:
    """Do it; returns the table, and writes it with the numbers and the pictures.

    Raises UserError where a checkpoint, the shards or their held-out videos are missing or do not fit.
    """
    with explain_out_of_memory("set --videos lower"):
        found, places = drawn(settings)
    out = settings.out or Path("runs") / f"figures-{found[0].dataset}"
    text = "\n".join(told(found))
    write_tables(out, text)
    record.write(out / NAME, found)
    save(pictures.deviation(found), out / "deviation.png")
    save(pictures.clips(found, places), out / "clips.png")
    return f"\n{text}\n\npictures (deviation.png, clips.png), table and numbers (json): {out}/"


def drawn(settings: Figures) -> tuple[list[Record], list[Planes]]:
    """A record of each model, and where its clips lie on planes."""
    first = load_model(settings.ckpt[0])
    data = Data.open(settings.ckpt[0], first, settings.dataset, settings.shards, settings.split, settings.label)
    index = data.index
    models = [Model(RANDOM, settings.ckpt[0], first.untrained(), True)] if settings.random else []
    for model in checkpoints(first, settings.ckpt):
        print(f"{model.path}: {model.trained.name}", flush=True)
        _require_pictures(model, settings)
        models.append(model)
    clips = [model.trained.settings.clip for model in models]
    videos = chosen(index, data.split, clips, settings)
    how = _how(settings, index, videos, clips)
    device = any_device()
    provenance = Provenance.of(device)
    measured = _measured(models, index, videos, settings, device)
    found = []
    for model, each in zip(models, measured, strict=True):
        numbers = {DEVIATION: median(each.deviation), RATIO: ratio(each.apart), NEAREST: each.nearest}
        alike = model.trained.model.network == models[0].trained.model.network
        if models[0].random and model is not models[0] and alike:
            numbers[MORE] = ratio(each.apart, measured[0].apart)
        found.append(
            model.record(
                data, settings, protocol="figures", label=settings.label, queries=len(videos.spread),
                clips=settings.clips, metrics=numbers, how={NUMBERS: str(each.dim)} | how, provenance=provenance,
                videos=tuple(map(str, index.id[videos.spread])),
                per_video={
                    DEVIATION: tuple(each.deviation.tolist()), RELATIVE: tuple(each.apart.relative.tolist()),
                },
                notes=model.unnormalised(index),
            )
        )  # fmt: skip
    return found, [each.planes for each in measured]


def _how(settings: Figures, index: Index, videos: Chosen, clips: Sequence[Clip]) -> dict[str, str]:
    """What a reader needs to trust the numbers, in words."""
    lasts = max((clip.frames - 1) * clip.stride + 1 for clip in clips) / index.fps
    partly = ", so that neighbours show partly the same" if videos.apart < lasts else ""
    left_out = {LEFT_OUT: str(videos.too_short)} if videos.too_short else {}
    return {
        KIND: "features of the trunk" if settings.kind == "features" else "embeddings",
        ON_PLANES: videos.on_planes(index),
        "shown": ", ".join(map(str, index.id[videos.shown])),
        IN_TIME: f"last {lasts:.2g} s and start {videos.apart:.2g} s after one another (median over videos){partly}",
    } | left_out


def _require_pictures(model: Model, settings: Figures) -> None:
    """Raise UserError where a model has no network for what is asked of it."""
    if "video" not in modalities_of(model.trained.model.state_dict()):
        raise UserError(f"{model.path} was trained without pictures, so it has no features of them; name another")
    fresh = model.trained.foreign.fresh if model.trained.foreign else ()
    if settings.kind == "embeddings" and any(part.startswith("mlp_") for part in fresh):
        raise UserError(
            f"{model.path} holds a trunk alone, and embeddings need a head; --kind features takes the trunk's"
        )


def _measured(
    models: Sequence[Model], index: Index, videos: Chosen, settings: Figures, device: torch.device
) -> list[Measured]:
    """Of each model; those that take the same inputs share one pass over the clips."""
    found: dict[int, Measured] = {}
    spread, shown = (np.searchsorted(videos.videos, rows) for rows in (videos.spread, videos.shown))
    groups: dict[str, list[int]] = {}
    for place, model in enumerate(models):
        statistics, trained = model.trained.statistics, model.trained.settings
        inputs = (statistics and statistics.to_numbers(), asdict(trained.clip), trained.augmentation.scale[0])
        groups.setdefault(str(inputs), []).append(place)
    for places in groups.values():
        made = _of_clips([models[place] for place in places], index, videos.videos, settings, device)
        for place, values in zip(places, made, strict=True):
            found[place] = _measure(models[place], values, spread, shown, settings)
    return [found[place] for place in range(len(models))]


def _of_clips(
    models: Sequence[Model], index: Index, videos: np.ndarray, settings: Figures, device: torch.device
) -> list[np.ndarray]:
    """What each of the models makes of uniform centre-cropped clips of some rows of the index, int64 [n].

    Float32 [n, clips, d] for each. The models take the same inputs.
    """
    trained, clips = models[0].trained, settings.clips
    clip, crop = trained.settings.clip, centred(trained.settings.augmentation.scale[0])
    names = ["video_network", *(["mlp_v"] if settings.kind == "embeddings" else [])]
    networks = [
        torch.nn.Sequential(*(model.trained.model.get_submodule(name) for name in names)).to(device) for model in models
    ]

    def made(batch: Batch) -> list[Tensor]:
        return [network(batch.inputs["video"]).unflatten(0, (-1, clips)) for network in networks]

    bar = tqdm(total=len(videos), unit="video", desc="features", mininterval=1.0, leave=False)
    plans = uniform_plans(index, videos, clips, clip, crop)
    return outputs(trained.normalised(index), plans, clip, device, made, bar, clips)


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
