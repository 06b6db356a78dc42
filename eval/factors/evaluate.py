"""`gdt factors`: measure every factor in the features of models, beside random weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate
from torch import Tensor
from tqdm import tqdm

from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.common.randomness import Stream, generator
from gdt.eval.factors.probing import probe_accuracy, relative_distance
from gdt.eval.factors.settings import PROBE_FOLDS, Factors
from gdt.eval.factors.trials import Trial, Trials
from gdt.eval.folds import held_out
from gdt.eval.subjects import EvalSet, default_checkpoint, name_of
from gdt.eval.tables import csv_text
from gdt.pipeline.loader import Batch
from gdt.pipeline.notation import TRANSFORMATIONS, Transformations, read_transformations
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.base import Transformation
from gdt.train.checkpoint import load_trained
from gdt.train.experiment import compose
from gdt.train.inference import over_clips
from gdt.train.models.gdt import GDT, any_device
from gdt.train.models.own import makers
from gdt.train.trained import Trained

_FOOTNOTES = f"""\
distance: between features of a clip at two values of the factor, divided by that between videos
accuracy: of a linear probe for its value on other videos, %, {PROBE_FOLDS} folds; of time_shift: which third
random weights: the same networks untrained; in brackets 95 % intervals over videos"""
_Row = dict[str, Any]


def factors(settings: Factors) -> str:
    """Measure the factors, write the table and return it.

    Raises UserError if a checkpoint, the shards or their held-out videos are missing or do not fit.
    """
    measured, checksum = read_transformations(settings.factors_from)
    paths = tuple(dict.fromkeys(settings.ckpt)) or (str(default_checkpoint(settings.dataset, settings.shards)),)
    models = {path: load_trained(path, makers(settings.own_networks.given)) for path in paths}
    for trained in models.values():
        _require_same_file(trained, checksum)
    eval_set = EvalSet.open(paths[0], models[paths[0]], settings.dataset, settings.shards, settings.split)
    rows: list[_Row] = []
    footnotes = [_FOOTNOTES, f"{eval_set.split} videos of {eval_set.dataset}, up to {settings.videos}"]
    for path, trained in models.items():
        same = {"model": name_of(path), "weights": trained.digest(), "step": trained.step, "dataset": eval_set.dataset}
        rows += [same | row for row in measure(trained, eval_set.index, eval_set.split, settings.videos, measured)]
        footnotes.append(f"{name_of(path)}: {trained.name}, {trained.step} steps, {path}")
    rows.sort(key=lambda row: (row["measure"] != "distance", row["factor"], row["features"]))
    text = "\n".join([_table(rows), "", *footnotes])
    out = settings.out or Path("runs") / f"factors-{eval_set.dataset}"
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "table.txt", text + "\n")
    write_text(out / "factors.csv", csv_text([[*rows[0]], *(list(row.values()) for row in rows)]))
    return f"{text}\n\ntable: {out}/table.txt, factors.csv"


def measure(
    trained: Trained, index: Index, split: str, videos: int, measured: Transformations = TRANSFORMATIONS
) -> list[_Row]:
    """Factors in the features of a model, a row per measure, with the numbers of its weights and of random ones.

    Raises UserError if none can be measured on these videos.
    """
    order = generator(Stream.FACTOR_VIDEOS, 0).permutation(held_out(index, split).queries)
    trials = Trials(index, order, trained.inputs, videos)
    models = [trained.model, trained.untrained().model]
    rows: list[_Row] = []
    for factor in known(trained, measured):
        for network in (name for name in trained.model.modalities if name != "text"):
            trial = trials.trial(factor, network)
            if trial is None:
                continue
            head = network not in trained.without_head
            trained_features, random_features = _features_of_trial(models, index, trial, trained, network, head)
            layer = f"{network} {'embeddings' if head else 'trunk'}"
            row = {"split": split, "factor": factor.name, "features": layer, "videos": len(trained_features)}
            for name, statistic in (("distance", relative_distance), ("accuracy", probe_accuracy)):
                found = statistic(trained_features)
                random = statistic(random_features)
                values = {"value": found.value, "low": found.low, "high": found.high}
                values |= {"random_value": random.value, "random_low": random.low, "random_high": random.high}
                rows.append(row | {"measure": name} | values | {"chance": found.chance or ""})
    if not rows:
        raise UserError(
            f"no factor can be measured on {index.folder}: fewer than {PROBE_FOLDS} videos of the split '{split}' are "
            "long enough; set --split to a split with more videos, such as train"
        )
    return rows


def _require_same_file(trained: Trained, checksum: str) -> None:
    """Raise UserError unless the factors of a model are those of the given file, by its checksum."""
    expected = trained.record.factors
    if expected in ("", checksum):
        return
    others = "; the file given is another or has changed" if checksum else ""
    raise UserError(
        f"the composition has factors of a Python file with checksum {expected}, which is not run by "
        f"itself{others}; give the same file with --factors-from"
    )


def known(trained: Trained, measured: Transformations = TRANSFORMATIONS) -> list[Transformation]:
    """Transformations: those of the model's composition with their settings, the others with defaults.

    Raises UserError if the composition has factors that are not among `measured`.
    """
    factors = () if trained.origin is not None else compose(trained.settings, measured).factors
    varied = {factor.name: factor.transformation for factor in factors}
    return [varied.get(name) or kind() for name, kind in measured.items()]


def _features_of_trial(
    models: Sequence[GDT], index: Index, trial: Trial, trained: Trained, network: str, head: bool
) -> list[np.ndarray]:
    """Embeddings of a trial from each of the models, or pooled outputs of their trunks: float32 [n, s, k, d].

    `trained` sets the inputs, which are loaded once for all models. Raises UserError if a shard is damaged.
    """
    device = any_device()
    models = [model.to(device) for model in models]

    def forward(batch: Batch) -> list[Tensor]:
        inputs = batch.inputs[network]
        if head:
            return [model.embed(network, inputs) for model in models]
        return [model.trunk(network)(inputs) for model in models]

    bar = tqdm(total=len(trial.leaves), unit="clip", desc=f"factors, {network}", mininterval=1.0, leave=False)
    by_model = over_clips(index, trial.plans(), trained.inputs, device, forward, bar)
    return [values.reshape(*trial.shape, -1) for values in by_model]


def _table(rows: Sequence[_Row]) -> str:
    lines = []
    for row in rows:
        digits = 2 if row["measure"] == "distance" else 1
        cells = [row["measure"], row["factor"], row["features"], row["model"]]
        for kind in ("", "random_"):
            value, low, high = (f"{row[kind + name]:.{digits}f}" for name in ("value", "low", "high"))
            cells.append(f"{value} ({low}-{high})")
        cells.append(f"{row['chance']:.1f}" if row["chance"] else "")
        lines.append(cells)
    headings = ["measure", "factor", "features", "model", "trained", "random weights", "chance"]
    return tabulate(lines, headings, colalign=(*["left"] * 4, *["right"] * 3), disable_numparse=True)
