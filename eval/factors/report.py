"""What features know of each factor: models in, tables, JSON and one picture out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from gdt.common.errors import UserError, memory_told
from gdt.common.files import write_text
from gdt.eval import results as tables
from gdt.eval.factors.features import EMBEDDING, TRUNK, Made, features
from gdt.eval.factors.measures import distances, moved, recognised, told
from gdt.eval.factors.picture import matrix
from gdt.eval.factors.promises import RULES, Promises, Seen, kept, promises
from gdt.eval.factors.results import WORDS, Result, Row, embedding_lines, to_json, trunk_lines
from gdt.eval.factors.trials import Planner, Trial
from gdt.eval.settings.factors import Factors
from gdt.eval.subjects import Model, asked_for, held_out, name_of
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.transformations.augmentation import centred
from gdt.pipeline.transformations.modality import Modality
from gdt.pipeline.transformations.video import Video
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import any_device, modalities_of
from gdt.train.provenance import Provenance

_SEEN_AND_HEARD = ("video", "audio")
"""Modalities whose networks are looked at."""


def factors(settings: Factors) -> str:
    """Do it; returns the tables, and writes them with the numbers and the picture.

    Raises UserError where a checkpoint, the shards or their held-out videos are missing or do not fit.
    """
    with memory_told("set --videos lower"):
        results = evaluated(settings)
    out = settings.out or Path("runs") / f"factors-{results[0].dataset}"
    out.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join("\n".join(told_of(result)) for result in results)
    every = [lines for result in results for lines in (embedding_lines(result), trunk_lines(result)) if len(lines) > 1]
    write_text(out / "table.txt", text + "\n")
    write_text(out / "table.tex", "\n\n".join(tables.to_latex(lines) for lines in every) + "\n")
    write_text(out / "factors.json", to_json(results) + "\n")
    matrix(results).savefig(out / "factors.png", dpi=150)
    return f"\n{text}\n\ntables (txt, tex), numbers (json) and picture: {out}/"


def evaluated(settings: Factors) -> list[Result]:
    """The results of all checkpoints, in their order."""
    trained = {path: load_model(path) for path in dict.fromkeys(settings.ckpt)}
    first = next(iter(trained.values()))
    dataset, index = asked_for(settings.ckpt[0], first, settings.dataset, settings.shards)
    split = settings.split or ("test" if (index.split == "test").any() else "val")
    videos = held_out(index, split).queries
    order = np.random.default_rng(settings.seed).permutation(videos)
    device = any_device()
    provenance = Provenance.of(device)
    data = fingerprint(index)
    found = []
    names = [name_of(path) for path in trained]
    for path, model in trained.items():
        name, digest = name_of(path), Model(name_of(path), path, model, False).digest
        print(f"{path}: {model.name}", flush=True)
        promised = promises(model)
        rows, notes = _rows(model, index, order, promised, settings, device)
        seen: Literal["others", "these", "unknown"]
        seen = "unknown" if model.data != data else "these" if model.settings.split == split else "others"
        found.append(
            Result(
                model=name if names.count(name) == 1 else f"{name} ({digest[:8]})",
                weights=digest,
                checkpoint=path,
                preset=model.name,
                composition=promised.composition,
                step=model.step,
                seed=model.settings.seed,
                dataset=dataset,
                data=data,
                split=split,
                trained_on=seen,
                rows=tuple(rows),
                notes=tuple(notes),
                evaluation=settings,
                pretraining=model.settings,
                provenance=provenance,
            )
        )
    return found


def _rows(
    trained: Trained, index: Index, order: np.ndarray, promised: Promises, settings: Factors, device: torch.device
) -> tuple[list[Row], list[str]]:
    """One row per factor and network, and what is to be said of those that are missing."""
    crop = centred(trained.settings.augmentation.scale[0])
    clip, ranges = trained.settings.clip, trained.settings.augmentation
    planner = Planner(trained.normalised(index), order, clip, crop, ranges, settings)
    networks, notes = _networks(trained, index, order)
    notes = [promised.why] * bool(promised.why) + notes
    if trained.statistics is None:
        notes.append(f"the weights do not say how their inputs were normalised; those of {index.folder} are, instead")
    trials, unfit = _trials(planner, promised, networks)
    if not trials:
        raise UserError(f"no factor can be looked at on {index.folder}: {'; '.join(dict.fromkeys(unfit or notes))}")
    models = [trained.model, trained.untrained().model]
    made: dict[tuple[str, str], tuple[Trial, Made]] = {}
    for network in networks:
        own = [trial for trial in trials if trial.network == network]
        for trial, values in zip(own, features(models, planner.index, own, clip, device), strict=True):
            made[trial.transformation.name, network] = trial, values
    heads = [] if _headless(trained) else [EMBEDDING]
    rows = []
    for transformation in promised.factors:
        parts = [made[transformation.name, network] for network in networks if (transformation.name, network) in made]
        if isinstance(transformation, Modality):
            rows += [_between(parts, promised, settings)] if len(parts) == 2 and heads else []
            continue
        for trial, values in parts:
            places = {place: _seen(values[place], trial, settings) for place in (TRUNK, *heads)}
            rows.append(_row(trial, trial.network, trial.values, places, promised))
    return rows, list(dict.fromkeys([*notes, *unfit]))


def _networks(trained: Trained, index: Index, order: np.ndarray) -> tuple[list[str], list[str]]:
    """Modalities whose networks can be looked at, and what is to be said of the others."""
    there = modalities_of(trained.model.state_dict())
    networks = [name for name in _SEEN_AND_HEARD if name in there]
    notes = []
    if "text" in there:
        notes.append("words are left out: a clip may be without any, so that no values of it can be compared")
    if "audio" not in there:
        notes.append("the model has no network for sound, so that nothing is said of sound and of modality")
    elif not (index.mel_count[order] > 0).any():
        networks.remove("audio")
        notes.append("the videos have no sound, so that nothing is said of sound and of modality")
    if "video" not in there:
        notes.append("the model has no network for pictures, so that nothing is said of pictures and of modality")
    if _headless(trained):
        notes.append("the weights are a trunk's alone, without a head, so that nothing is said of embeddings")
    return networks, notes


def _headless(trained: Trained) -> bool:
    return trained.foreign is not None and any(part.startswith("mlp_") for part in trained.foreign.fresh)


def _trials(planner: Planner, promised: Promises, networks: Sequence[str]) -> tuple[list[Trial], list[str]]:
    """One per factor and network where there can be one, and why not where there cannot."""
    trials, unfit = [], []
    for transformation in promised.factors:
        if isinstance(transformation, Modality) and len(networks) < 2:
            continue  # which is said of the network that is missing
        for network in networks:
            try:
                trial = planner.trial(transformation, network)
            except UserError as error:
                unfit.append(f"{transformation.name} of {WORDS[network]} is left out: {error}")
                continue
            if trial is None:
                unfit.append(f"{transformation.name} changes nothing of {WORDS[network]}, and has no row of it")
            else:
                trials.append(trial)
    return trials, unfit


def _seen(values: Sequence[np.ndarray], trial: Trial, settings: Factors) -> Seen:
    """Both numbers of the model and of random weights, [n, s, k, d] each."""
    if isinstance(trial.transformation, Video):
        return Seen(None, None, None, *map(recognised, values))
    own, random = map(distances, values)
    answers = (told(each, settings.folds, settings.probe_c, settings.seed) for each in values)
    return Seen(moved(own), moved(random), moved(own, random), *answers)


def _between(parts: Sequence[tuple[Trial, Made]], promised: Promises, settings: Factors) -> Row:
    """Of the modality, whose values are what the networks of the parts make of the same clips."""
    trial = parts[0][0]
    joined = [np.concatenate(of, axis=2) for of in zip(*(values[EMBEDDING] for _, values in parts), strict=True)]
    places = {EMBEDDING: _seen(joined, trial, settings)}
    networks = tuple(trial.network for trial, _ in parts)
    return _row(trial, " and ".join(networks), networks, places, promised)


def _row(trial: Trial, network: str, values: tuple[str, ...], places: dict[str, Seen], promised: Promises) -> Row:
    name = trial.transformation.name
    embedding = places.get(EMBEDDING)
    holds, against = None, ""
    if embedding is not None and name in promised.contrasts:
        holds, against = kept(name, promised.contrasts, embedding)
    return Row(
        name, network, values, len(trial.videos), len(trial.leaves), promised.of(name), places.get(TRUNK), embedding,
        holds, against,
    )  # fmt: skip


def told_of(result: Result) -> list[str]:
    """The tables of a model, and what a reader needs to trust them, line by line."""
    counts = tables.span(row.videos for row in result.rows)
    clips = result.evaluation.starts
    trained = {"others": "", "these": ", which it has learned from", "unknown": ""}[result.trained_on]
    lines = [f"{result.model}: {result.preset}, {result.step} steps, {result.checkpoint}"]
    lines += [f"composition: {result.composition}"] if result.composition else []
    if len(embeddings := embedding_lines(result)) > 1:
        lines += ["", "Embeddings, which the loss compares:", "", tables.layout(embeddings)]
    lines += ["", "Features of the trunk:", "", tables.layout(trunk_lines(result)), ""]
    lines += [
        f"{result.dataset}, {result.split}: {counts} videos{trained}, {clips} clips each; in brackets 95 % intervals "
        "over videos",
        "moves: distance between values of the factor, all else the same, as a multiple of that between videos; of "
        "features at length 1",
        f"told: by a linear probe, in videos that it has not seen ({result.evaluation.folds} folds); of time_shift the "
        "third of the video; of video, how often the nearest clip of another time is of the same video",
        "random: random weights of the same network; · not varied, which promises nothing",
    ]
    if any(row.factor == "modality" for row in result.rows):
        lines.append("modality: the two trunks have no feature in common, so that only embeddings can be compared")
    lines += result.notes
    if any(row.kept is not None for row in result.rows):
        lines += RULES
        broken = [row for row in result.rows if row.kept is False]
        lines += [f"not kept: {row.factor} of {row.of} is {row.promise}, but {row.against}" for row in broken]
        lines += [] if broken else ["every promise is kept"]
    return lines
