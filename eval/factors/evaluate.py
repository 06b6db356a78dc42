"""What features know of each factor: models in, tables, records and one picture out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.common.errors import UserError, explain_out_of_memory
from gdt.eval import record
from gdt.eval.drawing import save
from gdt.eval.extract import outputs
from gdt.eval.factors.lines import (
    EMBEDDING,
    PLACES,
    TRUNK,
    WORDS,
    by_model,
    embedding_lines,
    metrics,
    told_of,
    trunk_lines,
)  # fmt: skip
from gdt.eval.factors.probing import distances, moved, recognised, told
from gdt.eval.factors.promises import (
    MOVES,
    MOVES_MORE,
    MOVES_RANDOM,
    TOLD,
    TOLD_RANDOM,
    Promises,
    Seen,
    kept,
    promises,
)  # fmt: skip
from gdt.eval.factors.settings import Factors
from gdt.eval.factors.trials import Planner, Trial
from gdt.eval.plots import matrix
from gdt.eval.record import Factor, Record
from gdt.eval.subjects import Data, checkpoints, held_out
from gdt.eval.tables import write_tables
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import centred
from gdt.pipeline.transformations.modality import Modality
from gdt.pipeline.transformations.video import Video
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import GDT, any_device, modalities_of
from gdt.train.provenance import Provenance

NAME = "factors.json"
_SEEN_AND_HEARD = ("video", "audio")
"""Modalities whose networks are looked at."""
Made = dict[str, list[np.ndarray]]
"""By place and model, float32 [n, s, k, d]."""


def factors(settings: Factors) -> str:
    """Do it; returns the tables, and writes them with the numbers and the picture.

    Raises UserError where a checkpoint, the shards or their held-out videos are missing or do not fit.
    """
    with explain_out_of_memory("set --videos lower"):
        found = evaluated(settings)
    out = settings.out or Path("runs") / f"factors-{found[0].dataset}"
    models = by_model(found).values()
    text = "\n\n".join("\n".join(told_of(rows)) for rows in models)
    every = [lines for rows in models for lines in (embedding_lines(rows), trunk_lines(rows)) if len(lines) > 1]
    write_tables(out, text, every)
    record.write(out / NAME, found)
    save(matrix(found), out / "factors.png")
    return f"\n{text}\n\ntables (txt, tex), numbers (json) and picture: {out}/"


def evaluated(settings: Factors) -> list[Record]:
    """The records of all checkpoints, in their order."""
    first = load_model(settings.ckpt[0])
    data = Data.open(settings.ckpt[0], first, settings.dataset, settings.shards, settings.split, "")
    models = checkpoints(first, settings.ckpt)
    order = np.random.default_rng(settings.seed).permutation(held_out(data.index, data.split).queries)
    device = any_device()
    provenance = Provenance.of(device)
    found = []
    for model in models:
        print(f"{model.path}: {model.trained.name}", flush=True)
        promised = promises(model.trained)
        rows, notes = _rows(model.trained, data.index, order, promised, settings, device)
        how = {"composition": promised.composition} if promised.composition else {}
        for factor, trial, places in rows:
            found.append(
                model.record(
                    data, settings, protocol="factors", factor=factor, queries=len(trial.videos),
                    clips=len(trial.leaves), metrics=metrics(places), how=how, notes=tuple(notes),
                    provenance=provenance,
                )
            )  # fmt: skip
    return found


Row = tuple[Factor, Trial, dict[str, Seen]]
"""What was seen of a factor, by place."""


def _rows(
    trained: Trained, index: Index, order: np.ndarray, promised: Promises, settings: Factors, device: torch.device
) -> tuple[list[Row], list[str]]:
    """One row per factor and network, and what is to be said of those that are missing."""
    crop = centred(trained.settings.augmentation.scale[0])
    clip, ranges = trained.settings.clip, trained.settings.augmentation
    planner = Planner(trained.normalise(index), order, clip, crop, ranges, settings)
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


def features(
    models: Sequence[GDT], index: Index, trials: Sequence[Trial], clip: Clip, device: torch.device
) -> list[Made]:
    """What each of the models, which are in evaluation mode, makes of each of the trials, which are of one network.

    The clips are loaded once for all models. Raises UserError where a shard is damaged.
    """
    if not trials:
        return []
    network = trials[0].network
    parts = [
        [model.get_submodule(name).to(device) for name in (f"{network}_network", f"mlp_{network[0]}")]
        for model in models
    ]

    def made(batch: Batch) -> list[Tensor]:
        pooled = [trunk(batch.inputs[network]) for trunk, _ in parts]
        return [*pooled, *(head(values) for (_, head), values in zip(parts, pooled, strict=True))]

    plans = chain.from_iterable(trial.plans() for trial in trials)
    total = sum(len(trial.leaves) for trial in trials)
    bar = tqdm(total=total, unit="clip", desc=f"clips of {network}", mininterval=1.0, leave=False)
    ends = np.cumsum([len(trial.leaves) for trial in trials])[:-1]
    values = [np.split(rows, ends) for rows in outputs(index, plans, clip, device, made, bar)]
    found = []
    for number, trial in enumerate(trials):
        each = [rows[number].reshape(*trial.shape, -1) for rows in values]
        found.append(dict(zip(PLACES, (each[: len(models)], each[len(models) :]), strict=True)))
    return found


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
        return dict(zip((TOLD, TOLD_RANDOM), map(recognised, values), strict=True))
    own, random = map(distances, values)
    answers = [told(each, settings.folds, settings.probe_c, settings.seed) for each in values]
    seen = {MOVES: moved(own), MOVES_RANDOM: moved(random), MOVES_MORE: moved(own, random)}
    return seen | dict(zip((TOLD, TOLD_RANDOM), answers, strict=True))


def _between(parts: Sequence[tuple[Trial, Made]], promised: Promises, settings: Factors) -> Row:
    """Of the modality, whose values are what the networks of the parts make of the same clips."""
    trial = parts[0][0]
    joined = [np.concatenate(of, axis=2) for of in zip(*(values[EMBEDDING] for _, values in parts), strict=True)]
    places = {EMBEDDING: _seen(joined, trial, settings)}
    networks = tuple(trial.network for trial, _ in parts)
    return _row(trial, " and ".join(networks), networks, places, promised)


def _row(trial: Trial, network: str, values: tuple[str, ...], places: dict[str, Seen], promised: Promises) -> Row:
    name = trial.transformation.name
    holds, against = None, ""
    if EMBEDDING in places and name in promised.contrasts:
        holds, against = kept(name, promised.contrasts, places[EMBEDDING])
    return Factor(name, network, values, promised.of(name), holds, against), trial, places
