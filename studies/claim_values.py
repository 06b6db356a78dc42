"""The numbers of `gdt study claim`, one per run and metric, their file values.csv, and their picture."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdt.common.errors import UserError, first_line
from gdt.eval.ablation.compare import LINEAR
from gdt.eval.drawing import keys
from gdt.eval.factors.promises import DISTANCE
from gdt.eval.factors.tables import EMBEDDING, factor_of
from gdt.eval.record import RANDOM, Record

ACTION, SHIFT = "", "time shift"
"""Labels of values: the class, and the factor of a distance."""
RECALL = "R@1"
_PANELS = (("", RECALL), ("", LINEAR), ("identity", LINEAR))
"""Label columns and metrics of the picture; "" is the class."""


class Value(NamedTuple):
    """One number of one run."""

    dataset: str
    equal: str
    row: str
    """Preset, or RANDOM."""
    seed: int
    label: str
    """Label column, empty for the class; for a distance, the factor that changes."""
    metric: str
    value: float
    """Percent; for a distance, a share of the distance between videos."""
    low: float
    high: float


class Selection(NamedTuple):
    """The values of one metric that a prediction compares."""

    dataset: str
    equal: str
    label: str = ACTION
    metric: str = LINEAR


def values_of(dataset: str, equal: str, records: Iterable[Record], factors: Iterable[Record]) -> list[Value]:
    """R@1 and linear top-1 of every label, and how far the time shift moves embeddings of the video network.

    Without labels, the first metric of recall between modalities takes their place.
    """
    found = [
        (each, each.label, name, each.metrics[name])
        for each in records
        for name in [name for name in each.metrics if name in (RECALL, LINEAR)] or [next(iter(each.metrics))]
    ]
    found += [
        (each, SHIFT, DISTANCE, each.metrics[f"{EMBEDDING} {DISTANCE}"])
        for each in factors
        if (factor_of(each).name, factor_of(each).network) == ("time_shift", "video")
    ]
    return [
        Value(dataset, equal, each.preset, each.seed, label, name, metric.value, metric.low, metric.high)
        for each, label, name, metric in found
    ]


def read(paths: Sequence[Path]) -> list[Value]:
    """Values of several files. Raises UserError for any other file."""
    found = []
    for path in paths:
        try:
            with path.open(newline="") as file:
                for line in csv.DictReader(file):
                    numbers = {name: float(line[name]) for name in ("value", "low", "high")}
                    found.append(Value(**line | numbers | {"seed": int(line["seed"])}))  # type: ignore[arg-type]
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} is not a values.csv of 'gdt study claim' ({first_line(error)}); set --values to one"
            ) from error
    return found


class Values:
    """The values of the study, by selection and row. Raises KeyError for those that are not measured."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values: dict[tuple[Selection, str], dict[int, Value]] = {}
        for each in values:
            selection = Selection(each.dataset, each.equal, each.label, each.metric)
            self._values.setdefault((selection, each.row), {})[each.seed] = each

    def seeds(self, selection: Selection, row: str) -> np.ndarray:
        """The values of all seeds, in their order: float64 [seeds]."""
        return np.array([each.value for _, each in sorted(self._values[selection, row].items())])

    def first(self, selection: Selection, row: str) -> Value:
        """The value of the first seed."""
        return min(self._values[selection, row].values(), key=lambda each: each.seed)


def picture(values: Sequence[Value], strengths: Mapping[str, str], label: str = "strength of the identity") -> Figure:
    """Panels with a column per `--equal` and a row per metric; in each, the rows over the data sets of `strengths`.

    `strengths` has a tick of the x axis, which `label` describes, by data set, in order. Lines connect means over
    seeds, dots are seeds, dashed lines random weights. For a single data set, the x axis lists the rows.
    """
    values = [each for each in values if each.dataset in strengths and each.metric != DISTANCE]
    equals, measured = list(dict.fromkeys(v.equal for v in values)), [(v.label, v.metric) for v in values]
    panels = [each for each in _PANELS if each in measured] or measured[:1]
    figure = Figure(figsize=(5.2 * len(equals), 2.7 * len(panels) + 0.6), layout="constrained")
    axes = figure.subplots(len(panels), len(equals), squeeze=False, sharey="row")
    for column, equal in zip(axes.T, equals, strict=True):
        for panel, (of, metric) in zip(column, panels, strict=True):
            _draw(panel, [v for v in values if (v.equal, v.label, v.metric) == (equal, of, metric)], strengths)
            panel.set_ylabel(f"{metric} of the {of or 'class'}, %", fontsize=8)
        column[0].set_title(f"equal {equal}", fontsize=8)
        column[-1].set_xlabel(label if len(strengths) > 1 else "", fontsize=8)
    axes[0, -1].legend(fontsize=7)
    return figure


def _draw(axes: Axes, values: Sequence[Value], strengths: Mapping[str, str]) -> None:
    rows = sorted({each.row for each in values}, key=lambda row: (row != RANDOM, row))
    for k, (row, mark) in enumerate(zip(rows, keys(rows), strict=True)):
        where, means = [], []
        for x, dataset in enumerate(strengths):
            if own := [each.value for each in values if (each.row, each.dataset) == (row, dataset)]:
                where.append(x if len(strengths) > 1 else k)
                means.append(float(np.mean(own)))
                axes.plot([where[-1]] * len(own), own, mark.marker, color=mark.colour, markersize=3, alpha=0.5)
        style = "--" if row == RANDOM else "-"
        axes.plot(where, means, style, marker="_", markersize=12, color=mark.colour, label=row, linewidth=1.4)
    ticks = list(strengths.values()) if len(strengths) > 1 else rows
    axes.set_xticks(range(len(ticks)), ticks, fontsize=7)
    axes.set_ylim(0, 100)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
