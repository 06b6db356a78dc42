"""The deviation over the clips of a video: table and histograms, for `gdt study figures` and the report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from gdt.eval.drawing import Key, keys
from gdt.eval.record import RANDOM, Record
from gdt.eval.tables import Lines

DEVIATION, RELATIVE, RATIO, MORE, NEAREST = "deviation", "relative", "ratio", "minus random", "nearest"
"""Metrics of studies/figures/spread.py; MORE is RATIO minus that of random weights of the same network."""
TITLES = {
    DEVIATION: "standard deviation over the clips of a video",
    RELATIVE: "distance between clips of a video (1: of two videos)",
}
"""Of the histograms."""
_BINS = 40
_GREY = "#7f7f7f"


def marks(records: Sequence[Record]) -> list[Key]:
    """Colour and marker of each record; random weights are grey."""
    trained = iter(keys([record.model for record in records if record.preset != RANDOM]))
    return [Key(_GREY, "o", "●", each.model) if each.preset == RANDOM else next(trained) for each in records]


def histogram(axes: Axes, values: Sequence[Sequence[float]], of: Sequence[Key]) -> None:
    """Draw a histogram per model, over shared bins, with its median."""
    most = max(max(each) for each in values) or 1.0  # 0 for videos that stand still
    edges = np.linspace(0, 1.02 * most, _BINS + 1)
    for each, mark in zip(values, of, strict=True):
        share = np.histogram(each, edges)[0] * (100 / len(each))
        axes.stairs(share, edges, color=mark.colour, fill=True, alpha=0.15)
        axes.stairs(share, edges, color=mark.colour, linewidth=1.3)
        middle = float(np.median(each))
        top = float(share[min(int(np.searchsorted(edges, middle, "right")) - 1, _BINS - 1)])
        axes.axvline(middle, color=mark.colour, linestyle=":", linewidth=1.2)
        axes.plot(middle, top, mark.marker, color=mark.colour, markersize=5)
    axes.set_ylabel("share of videos, %")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def lines(records: Sequence[Record]) -> Lines:
    """Cells of the table, headings first."""
    compared = any(MORE in record.metrics for record in records)
    rows = [["", DEVIATION, RATIO, *([MORE] if compared else []), "nearest %"]]
    for record in records:
        metrics, more = record.metrics, record.metrics.get(MORE)
        difference = [more.text("{:+.2f}", " to ") if more else ""] if compared else []
        deviation, ratio = metrics[DEVIATION].text("{:.4f}"), metrics[RATIO].text("{:.2f}")
        rows.append([record.model, deviation, ratio, *difference, metrics[NEAREST].text()])
    chance = f"{records[0].metrics[NEAREST].chance:.1f}"
    return [*rows, ["chance", "", "", *([""] if compared else []), chance]]
