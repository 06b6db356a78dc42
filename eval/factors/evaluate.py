"""`gdt factors`: measure every factor in the features of models; write tables, records and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.common.errors import UserError, explain_out_of_memory
from gdt.common.lock import locked
from gdt.common.streams import Stream, generator
from gdt.eval import record
from gdt.eval.drawing import save
from gdt.eval.extract import outputs
from gdt.eval.factors.probing import distances, probe_accuracy, relative_distance, video_accuracy
from gdt.eval.factors.promises import (
    ACCURACY,
    ACCURACY_RANDOM,
    DISTANCE,
    DISTANCE_MORE,
    DISTANCE_RANDOM,
    Metrics,
    Promises,
    Verdict,
    check_promise,
    promises_of,
    round_up,
)
from gdt.eval.factors.settings import Factors
from gdt.eval.factors.tables import (
    EMBEDDING,
    LAYERS,
    TRUNK,
    by_model,
    describe_model,
    flatten,
    summarise_model,
    table_of,
)
from gdt.eval.factors.trials import Planner, Trial
from gdt.eval.of_run import NO_RUN
from gdt.eval.plots import matrix
from gdt.eval.record import FactorResult, Record
from gdt.eval.subjects import Data, checkpoints, held_out
from gdt.eval.tables import write_tables
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import centred
from gdt.pipeline.transformations.modality import Modality
from gdt.pipeline.transformations.video import Video
from gdt.train.checkpoint import Trained, load_trained
from gdt.train.models.gdt import GDT, any_device, modalities_of
from gdt.train.provenance import provenance_of

NAME = "factors.json"
_NETWORKS = ("video", "audio")
_NOT_DECISIVE = ("ckpt", "dataset", "shards", "split", "out", *NO_RUN)
"""Settings that do not change the numbers, or that a record has resolved."""
LayerFeatures = dict[str, list[np.ndarray]]
"""By layer and model: float32 [n, s, k, d]."""
Row = tuple[FactorResult, Trial, dict[str, Metrics]]
"""A factor, its trial, and its metrics by layer."""


def factors(settings: Factors) -> str:
    """Measure the factors and write tables, records and a plot; returns a summary.

    Raises UserError if a checkpoint, the shards or their held-out videos are missing or do not fit.
    """
    if not settings.ckpt:
        settings = replace(settings, ckpt=(settings.checkpoint(settings.dataset, settings.shards),), **NO_RUN)
    with explain_out_of_memory("lower --videos"):
        first = load_trained(settings.ckpt[0])
        data = Data.open(settings.ckpt[0], first, settings.dataset, settings.shards, settings.split, "")
        out = settings.out or Path("runs") / f"factors-{data.dataset}"
        with locked(out, "set --out to another folder"):
            return _write(evaluate(settings, first, data), out)


def _write(records: Sequence[Record], out: Path) -> str:
    """Write tables, records and a plot, with the models of earlier calls; returns a summary of these records."""
    summary = "\n".join(map(summarise_model, by_model(records).values()))
    earlier = _measured_before(records, out / NAME)
    if earlier:
        summary += f"\nalso in the tables, from earlier calls with the same settings: {', '.join(by_model(earlier))}"
    records = [*records, *earlier]
    models = by_model(records).values()
    text = "\n\n".join("\n".join(describe_model(rows)) for rows in models)
    tables = [lines for rows in models for layer in (EMBEDDING, TRUNK) if len(lines := table_of(layer, rows)) > 1]
    write_tables(out, text, tables)
    record.write(out / NAME, records)
    save(matrix(records), out / "factors.png")
    return f"\n{summary}\ntables: {out}/table.txt, table.tex, {NAME}\npicture: {out}/factors.png"


def _measured_before(records: Sequence[Record], path: Path) -> list[Record]:
    """Records in a file of other models that were measured on the same videos with the same settings."""

    def conditions(one: Record) -> tuple[object, ...]:
        settings = {name: value for name, value in one.settings.items() if name not in _NOT_DECISIVE}
        return one.data, one.query_split, settings

    models = by_model(records)
    same = conditions(records[0])
    return [
        one
        for one in record.read_or_warn(path, "it is replaced")
        if one.model not in models and conditions(one) == same
    ]


def evaluate(settings: Factors, first: Trained, data: Data) -> list[Record]:
    """The records of all checkpoints, in their order; `first` is the first of them."""
    order = generator(Stream.FACTOR_VIDEOS, settings.seed).permutation(held_out(data.index, data.split).queries)
    device = any_device()
    provenance = provenance_of(device)
    records = []
    for number, model in enumerate(checkpoints(first, settings.ckpt), start=1):
        if len(settings.ckpt) > 1:
            print(f"{model.name} ({number} of {len(settings.ckpt)})", flush=True)
        promises = promises_of(model.trained)
        rows, notes = _rows(model.trained, data.index, order, promises, settings, device)
        details = {"composition": promises.composition} if promises.composition else {}
        for factor, trial, layers in rows:
            records.append(
                model.record(
                    data, settings, trial.videos, protocol="factors", factor=factor,
                    clips=len(trial.leaves), metrics=flatten(layers), details=details, notes=tuple(notes),
                    provenance=provenance,
                )
            )  # fmt: skip
    return records


def _rows(
    trained: Trained, index: Index, order: np.ndarray, promises: Promises, settings: Factors, device: torch.device
) -> tuple[list[Row], list[str]]:
    """One row per factor and network, and notes on those that are missing."""
    clip, ranges = trained.settings.clip, trained.settings.augmentation
    planner = Planner(trained.normalise(index), order, clip, centred(ranges.scale[0]), ranges, settings)
    networks, notes = _networks(trained, index, order)
    layers = (TRUNK,) if trained.without_head else LAYERS
    if trained.without_head:
        notes.append("the weights have no head, so embeddings are not measured")
    trials, skipped = _plan_trials(planner, promises, networks)
    notes = [*([promises.reason] if promises.reason else []), *notes, *skipped]
    if not trials:
        raise UserError(
            f"no factor can be measured on {index.folder}: {(skipped or notes)[0]}; set --split to a split with more "
            "videos, such as train"
        )
    models = [trained.model, trained.untrained().model]
    measured: dict[tuple[str, str], tuple[Trial, LayerFeatures]] = {}
    for network in networks:
        own = [trial for trial in trials if trial.network == network]
        for trial, values in zip(own, extract(models, planner.index, own, clip, device), strict=True):
            measured[trial.transformation.name, network] = trial, values
    rows = []
    for factor in promises.factors:
        parts = [measured[factor.name, network] for network in networks if (factor.name, network) in measured]
        if isinstance(factor, Modality):  # its values are the networks
            if len(parts) == 2 and EMBEDDING in layers:
                pairs = zip(*(values[EMBEDDING] for _, values in parts), strict=True)
                joined = [np.concatenate(pair, axis=2) for pair in pairs]
                metrics = {EMBEDDING: _metrics(joined, parts[0][0], settings)}
                rows.append(_row(parts[0][0], tuple(trial.network for trial, _ in parts), metrics, promises))
            continue
        for trial, values in parts:
            metrics = {layer: _metrics(values[layer], trial, settings) for layer in layers}
            rows.append(_row(trial, (trial.network,), metrics, promises))
    return rows, list(dict.fromkeys(notes))


def extract(
    models: Sequence[GDT], index: Index, trials: Sequence[Trial], clip: Clip, device: torch.device
) -> list[LayerFeatures]:
    """Features of the trials of one network, from each of the models, which must be in evaluation mode.

    The clips are loaded once for all models. Raises UserError if a shard is damaged.
    """
    if not trials:
        return []
    network = trials[0].network
    parts = [
        [model.get_submodule(name).to(device) for name in (f"{network}_network", f"mlp_{network[0]}")]
        for model in models
    ]

    def forward(batch: Batch) -> list[Tensor]:
        pooled = [trunk(batch.inputs[network]) for trunk, _ in parts]
        return [*pooled, *(head(values) for (_, head), values in zip(parts, pooled, strict=True))]

    plans = chain.from_iterable(trial.plans() for trial in trials)
    total = sum(len(trial.leaves) for trial in trials)
    bar = tqdm(total=total, unit="clip", desc=network, mininterval=1.0, leave=False)
    ends = np.cumsum([len(trial.leaves) for trial in trials])[:-1]
    values = [np.split(rows, ends) for rows in outputs(index, plans, clip, device, forward, bar)]
    features = []
    for number, trial in enumerate(trials):
        each = [rows[number].reshape(*trial.shape, -1) for rows in values]
        features.append(dict(zip(LAYERS, (each[: len(models)], each[len(models) :]), strict=True)))
    return features


def _networks(trained: Trained, index: Index, order: np.ndarray) -> tuple[list[str], list[str]]:
    """Networks that can be measured, and notes on the others."""
    modalities = modalities_of(trained.model.state_dict())
    networks = [name for name in _NETWORKS if name in modalities]
    notes = []
    if "text" in modalities:
        notes.append("text is not measured, as many clips have no text")
    if "audio" not in modalities:
        notes.append("the model has no audio network, so audio and modality are not measured")
    elif not (index.mel_count[order] > 0).any():
        networks.remove("audio")
        notes.append("the videos have no sound, so audio and modality are not measured")
    if "video" not in modalities:
        notes.append("the model has no video network, so video and modality are not measured")
    return networks, notes


def _plan_trials(planner: Planner, promises: Promises, networks: Sequence[str]) -> tuple[list[Trial], list[str]]:
    """One trial per factor and network, and the reasons for those that are missing."""
    trials, skipped = [], []
    for factor in promises.factors:
        for network in networks:
            if isinstance(factor, Modality) and len(networks) < 2:
                continue  # noted by `_networks`
            try:
                trial = planner.trial(factor, network)
            except UserError as error:
                skipped.append(f"{factor.name} of {network} is not measured: {error}")
                continue
            if trial is None:
                skipped.append(f"{factor.name} does not change {network}")
            else:
                trials.append(trial)
    return trials, skipped


def _metrics(features: Sequence[np.ndarray], trial: Trial, settings: Factors) -> Metrics:
    """Distance and accuracy, of the features [n, s, k, d] of the model and of random weights."""
    if isinstance(trial.transformation, Video):
        return dict(zip((ACCURACY, ACCURACY_RANDOM), map(video_accuracy, features), strict=True))
    own, random = map(distances, features)
    metrics = {
        DISTANCE: relative_distance(own),
        DISTANCE_RANDOM: relative_distance(random),
        DISTANCE_MORE: relative_distance(own, random),
    }
    accuracies = [probe_accuracy(each, settings.cv_folds, settings.probe_c, settings.seed) for each in features]
    return metrics | dict(zip((ACCURACY, ACCURACY_RANDOM), accuracies, strict=True))


def _row(trial: Trial, networks: tuple[str, ...], layers: dict[str, Metrics], promises: Promises) -> Row:
    name, values = trial.transformation.name, trial.values if len(networks) == 1 else networks
    found = Verdict(None)
    if EMBEDDING in layers and name in promises.contrasts:
        found = check_promise(name, promises.contrasts, layers[EMBEDDING], len(trial.videos))
    needed = round_up(found.needed)
    return (
        FactorResult(name, " and ".join(networks), values, promises.of(name), found.kept, found.against, needed),
        trial,
        layers,
    )
