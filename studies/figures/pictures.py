"""The two pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gdt.eval.drawing import Key, keys
from gdt.eval.planes import Planes
from gdt.eval.record import RANDOM, Record
from gdt.studies.figures.table import DEVIATION, NEAREST, ON_PLANES, RATIO, RELATIVE

TITLES = {
    DEVIATION: "standard deviation over the clips of a video",
    RELATIVE: "distance between its clips (1: clips of two videos)",
}
"""Of the histograms."""
_BINS = 40
_GREY = "#7f7f7f"
_MARKERS = "osD^"
_AS_IT_IS: Any = {"text.parse_math": False}
"""Names of models and classes are text, whatever they are made of."""


def marks(records: Sequence[Record]) -> list[Key]:
    """How each is drawn; random weights in grey."""
    trained = iter(keys([record.model for record in records if record.preset != RANDOM]))
    return [Key(_GREY, "o", "●", each.model) if each.preset == RANDOM else next(trained) for each in records]


@rc_context(_AS_IT_IS)
def deviation(records: Sequence[Record]) -> Figure:
    """The paper's histogram of deviations, and beside it what can be compared between models."""
    first, of = records[0], marks(records)
    figure = Figure(figsize=(10, 4.1 + 0.16 * len(records)), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        histogram(axes, [record.per_video[name] for record in records], of)
        axes.set_xlabel(title)
        axes.spines[["top", "right"]].set_visible(False)
    lines = [Line2D([], [], color=mark.colour, marker=mark.marker, markersize=5) for mark in of]
    names = []
    for record in records:
        median, ratio = record.metrics[DEVIATION], record.metrics[RATIO]
        names.append(
            f"{record.model}: median {median.value:.4f}, ratio {ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
        )
    figure.legend(lines, names, loc="outside lower center", frameon=False, fontsize=8)
    figure.suptitle(
        f"How far time-shifted clips of a video lie apart: {first.dataset}, {first.query_split}, {first.queries} "
        "videos\ndotted: medians", fontsize=10,
    )  # fmt: skip
    return figure


def histogram(axes: Axes, values: Sequence[Sequence[float]], of: Sequence[Key]) -> None:
    """One outline for each of several models, with its median; they share their bins."""
    most = max(max(each) for each in values) or 1.0  # of videos that stand still
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


@rc_context(_AS_IT_IS)
def clips(records: Sequence[Record], places: Sequence[Planes]) -> Figure:
    """A row for each model, with the places of its clips [videos * clips]; a colour and shape for each video."""
    first = records[0]
    s = first.clips
    n = len(places[0].pca) // s
    figure = Figure(figsize=(8.4, 0.7 + 3.9 * len(places)), layout="constrained")
    rows = figure.subplots(len(places), 2, squeeze=False)
    hues = colormaps["hsv"](np.linspace(0, 1, n, endpoint=False)) * (0.85, 0.85, 0.85, 1)
    for row, record, plane in zip(rows, records, places, strict=True):
        nearest, share = record.metrics[NEAREST], 100 * plane.variance
        said = (
            f"{record.model}\nPCA: {share[0]:.0f} % and {share[1]:.0f} % of the variance",
            f"nearest other clip of the same video: {nearest.value:.1f} % ({nearest.low:.1f}-{nearest.high:.1f}), "
            f"chance {nearest.chance:.1f}\nt-SNE: perplexity {plane.perplexity:.3g}",
        )
        for axes, title, xy in zip(row, said, (plane.pca, plane.tsne), strict=True):
            for number, track in enumerate(xy.reshape(n, s, 2)):
                x, y = track.T
                axes.plot(x, y, color=hues[number], linewidth=0.6, alpha=0.3)
                axes.plot(x, y, _MARKERS[number % len(_MARKERS)], color=hues[number], markersize=3.5, markeredgewidth=0)
            axes.set_title(title, fontsize=8, loc="left")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_color("#cccccc")
    figure.suptitle(
        f"{s} clips each of {first.how[ON_PLANES]} ({first.dataset}, {first.query_split})\n"
        "a colour for each video, a line through its clips in the order of time", fontsize=9,
    )  # fmt: skip
    return figure
