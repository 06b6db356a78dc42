"""`gdt factors`: measure every factor in the features of models, beside random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.common.errors import UserError, explain_out_of_memory
from gdt.common.files import write_text
from gdt.common.lock import locked
from gdt.common.streams import Stream, generator
from gdt.eval.extract import outputs
from gdt.eval.factors.probing import probe_accuracy, relative_distance, video_accuracy
from gdt.eval.factors.settings import FOLDS, Factors
from gdt.eval.factors.trials import Planner, Trial
from gdt.eval.metrics import Metric
from gdt.eval.of_run import NO_RUN
from gdt.eval.subjects import Data, Model, held_out, name_of
from gdt.eval.tables import Lines, csv_text, layout, wrap
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch
from gdt.pipeline.notation import TRANSFORMATIONS
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.base import Transformation
from gdt.pipeline.transformations.modality import Modality
from gdt.train.checkpoint import Trained, load_trained
from gdt.train.models.gdt import GDT, any_device

TRUNK, EMBEDDING = "trunk", "embedding"
"""Where features are taken: pooled trunk, and output of the head."""
_NOTES = (
    "distance: between features of a clip at two values of the factor, divided by the distance between videos (0: the "
    "factor is ignored, 1: it moves features as far as another video)",
    f"accuracy, %: of a linear probe for the factor's value on videos that it was not trained on ({FOLDS} folds); for "
    "time_shift, of the third of the video; for video, share of clips whose nearest clip at another time is of it",
    "random weights: the same networks untrained; in brackets 95 % intervals over videos",
    "not in the table: text, factors that do not change a network's input or that too few videos are long enough for",
)
_HEADS = ("model", "weights", "step", "dataset", "data_checksum", "split", "factor", "network", "features", "videos",
          "measure", "value", "low", "high", "random", "random_low", "random_high", "chance")  # fmt: skip
Layers = dict[str, list[np.ndarray]]
"""Features of a trial, by layer and model: float32 [n, s, k, d]."""


class Row(NamedTuple):
    """A measure of a factor in the features of a network, and of the same network with random weights."""

    factor: str
    network: str
    features: str
    videos: int
    measure: str
    own: Metric
    random: Metric


def factors(settings: Factors) -> str:
    """Measure the factors, write the tables and return them.

    Raises UserError if a checkpoint, the shards or their held-out videos are missing or do not fit.
    """
    if not settings.ckpt:
        settings = replace(settings, ckpt=(settings.checkpoint(settings.dataset, settings.shards),), **NO_RUN)
    first = load_trained(settings.ckpt[0])
    data = Data.open(settings.ckpt[0], first, settings.dataset, settings.shards, settings.split, "")
    out = settings.out or Path("runs") / f"factors-{data.dataset}"
    texts, tables, lines = [], [], list[list[object]]([[*_HEADS]])
    with locked(out, "set --out to another folder"), explain_out_of_memory("lower --videos"):
        for path in dict.fromkeys(settings.ckpt):
            trained = first if path == settings.ckpt[0] else load_trained(path)
            model, rows = Model(name_of(path), path, trained, False), measure(trained, data, settings)
            tables.append(_table(rows))
            texts.append(f"{wrap(_heading(model, data, rows))}\n\n{layout(tables[-1])}")
            lines += [_line(model, data, row) for row in rows]
        text = "\n\n".join([*texts, "\n".join(map(wrap, _NOTES))])
        write_text(out / "table.txt", text + "\n")
        write_text(out / "factors.csv", csv_text(lines))
    return f"\n{text}\n\ntables: {out}/table.txt, factors.csv"


def measure(trained: Trained, data: Data, settings: Factors) -> list[Row]:
    """All factors in the features of a model. Raises UserError if none can be measured on these videos."""
    order = generator(Stream.FACTOR_VIDEOS, settings.seed).permutation(held_out(data.index, data.split).queries)
    index, clip = trained.normalise(data.index), trained.settings.clip
    planner = Planner(index, order, clip, trained.settings.augmentation, settings)
    models = [trained.model, trained.untrained().model]
    layers = (TRUNK,) if trained.without_head else (TRUNK, EMBEDDING)
    networks = [name for name in trained.model.modalities if name != "text"]
    rows: list[Row] = []
    for factor in known(trained):
        trials = [trial for network in networks if (trial := planner.trial(factor, network))]
        parts = [(trial.network, extract(models, index, trial, clip, any_device())) for trial in trials]
        if isinstance(factor, Modality):  # its values are the networks, comparable in embeddings only
            parts = [_joined(parts)] if len(parts) == 2 and EMBEDDING in layers else []
        for network, features in parts:
            for layer in (each for each in layers if each in features):
                rows += _rows(factor.name, network, layer, features[layer], settings.seed)
    if not rows:
        raise UserError(
            f"no factor can be measured on {data.index.folder}: fewer than {FOLDS} videos of the split '{data.split}' "
            "are long enough; set --split to a split with more videos, such as train"
        )
    return sorted(rows, key=lambda row: row.measure, reverse=True)  # distances first


def known(trained: Trained) -> list[Transformation]:
    """All transformations: those of the model's composition with their settings, the others with defaults."""
    if trained.foreign is not None:
        return [kind() for kind in TRANSFORMATIONS.values()]
    varied = {factor.name: factor.transformation for factor in trained.settings.composition.factors}
    return [varied.get(name) or kind() for name, kind in trained.settings.transformations.items()]


def extract(models: Sequence[GDT], index: Index, trial: Trial, clip: Clip, device: torch.device) -> Layers:
    """Features of a trial from each of the models, which must be in evaluation mode; clips are loaded once for all.

    Raises UserError if a shard is damaged.
    """
    names = f"{trial.network}_network", f"mlp_{trial.network[0]}"
    parts = [[model.get_submodule(name).to(device) for name in names] for model in models]

    def forward(batch: Batch) -> list[Tensor]:
        pooled = [trunk(batch.inputs[trial.network]) for trunk, _ in parts]
        return [*pooled, *(head(values) for (_, head), values in zip(parts, pooled, strict=True))]

    what = f"{trial.factor.name}, {trial.network}"
    bar = tqdm(total=len(trial.leaves), unit="clip", desc=what, mininterval=1.0, leave=False)
    values = [rows.reshape(*trial.shape, -1) for rows in outputs(index, trial.plans(), clip, device, forward, bar)]
    return {TRUNK: values[: len(models)], EMBEDDING: values[len(models) :]}


def _joined(parts: Sequence[tuple[str, Layers]]) -> tuple[str, Layers]:
    """Embeddings of both networks, as two values of the factor modality."""
    pairs = zip(*(features[EMBEDDING] for _, features in parts), strict=True)
    return "both", {EMBEDDING: [np.concatenate(pair, axis=2) for pair in pairs]}


def _rows(name: str, network: str, layer: str, features: Sequence[np.ndarray], seed: int) -> list[Row]:
    """The measures of a factor, given the features of the model and of random weights."""
    n, _, k, _ = features[0].shape
    if k == 1:  # the factor video
        return [Row(name, network, layer, n, "accuracy", *map(video_accuracy, features))]
    return [
        Row(name, network, layer, n, "distance", *map(relative_distance, features)),
        Row(name, network, layer, n, "accuracy", *(probe_accuracy(each, seed) for each in features)),
    ]


def _table(rows: Sequence[Row]) -> Lines:
    """The table of a model, headings first."""
    lines = [["factor, features", "measure", "trained", "random weights", "chance"]]
    for row in rows:
        form, chance = ("{:.2f}", "") if row.measure == "distance" else ("{:.1f}", f"{row.own.chance:.1f}")
        name = f"{row.factor}, {row.network} {row.features}"
        lines.append([name, row.measure, row.own.text(form), row.random.text(form), chance])
    return lines


def _line(model: Model, data: Data, row: Row) -> list[object]:
    """The values of `_HEADS`."""
    of = [model.name, model.digest, model.trained.step, data.dataset, data.fingerprint, data.split, *row[:5]]
    return [*of, row.own.value, *row.own.interval, row.random.value, *row.random.interval, row.own.chance]


def _heading(model: Model, data: Data, rows: Sequence[Row]) -> str:
    trained, most = model.trained, max(row.videos for row in rows)
    steps = f"{trained.step} of {trained.steps} steps" if trained.step < trained.steps else f"{trained.step} steps"
    seen = model.seen(data, np.flatnonzero(data.index.split == data.split)) > 0
    return (
        f"{model.name}: {trained.name}, {steps}, {model.path}; up to {most} {data.split} videos of {data.dataset}"
        f"{', which it was trained on' if seen else ''}"
    )
