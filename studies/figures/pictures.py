"""The two pictures and the table, from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gdt.common.errors import format_range
from gdt.eval.deviation import DEVIATION, NEAREST, RATIO, TITLES, histogram, lines, marks
from gdt.eval.planes import Planes
from gdt.eval.record import Record
from gdt.eval.tables import layout

NUMBERS, KIND, ON_PLANES, IN_TIME, SKIPPED = "numbers in a feature", "of", "on planes", "clips", "left out"
"""Keys of `Record.details`."""
_MARKERS = "osD^"
_PLAIN_TEXT: Any = {"text.parse_math": False}
"""Names of models and classes may contain $."""


@rc_context(_PLAIN_TEXT)
def deviation(records: Sequence[Record]) -> Figure:
    """The paper's histogram of deviations, and one of relative distances, which is comparable across models."""
    first, styles = records[0], marks(records)
    figure = Figure(figsize=(10, 4.1 + 0.16 * len(records)), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        histogram(axes, [record.per_video[name] for record in records], styles)
        axes.set_xlabel(title)
        axes.spines[["top", "right"]].set_visible(False)
    handles = [Line2D([], [], color=mark.colour, marker=mark.marker, markersize=5) for mark in styles]
    names = [
        f"{record.model}: median {record.metrics[DEVIATION].value:.4f}, ratio {record.metrics[RATIO].text('{:.2f}')}"
        for record in records
    ]
    figure.legend(handles, names, loc="outside lower center", frameon=False, fontsize=8)
    figure.suptitle(
        f"How far time-shifted clips of a video lie apart: {first.dataset}, {first.query_split}, {first.queries} "
        "videos\ndotted: medians", fontsize=10,
    )  # fmt: skip
    return figure


@rc_context(_PLAIN_TEXT)
def clips(records: Sequence[Record], places: Sequence[Planes]) -> Figure:
    """A row per model with its clips [videos * clips] on two 2-D maps; a colour and a marker per video."""
    first = records[0]
    s = first.clips
    n = len(places[0].pca) // s
    figure = Figure(figsize=(8.4, 0.7 + 3.9 * len(places)), layout="constrained")
    rows = figure.subplots(len(places), 2, squeeze=False)
    hues = colormaps["hsv"](np.linspace(0, 1, n, endpoint=False)) * (0.85, 0.85, 0.85, 1)
    for row, record, plane in zip(rows, records, places, strict=True):
        nearest, share = record.metrics[NEAREST], 100 * plane.variance
        titles = (
            f"{record.model}\nPCA: {share[0]:.0f} % and {share[1]:.0f} % of the variance",
            f"nearest other clip of the same video: {nearest.value:.1f} % ({nearest.low:.1f}-{nearest.high:.1f}), "
            f"chance {nearest.chance:.1f}\nt-SNE: perplexity {plane.perplexity:.3g}",
        )
        for axes, title, xy in zip(row, titles, (plane.pca, plane.tsne), strict=True):
            for number, track in enumerate(xy.reshape(n, s, 2)):
                x, y = track.T
                axes.plot(x, y, color=hues[number], linewidth=0.6, alpha=0.3)
                axes.plot(x, y, _MARKERS[number % len(_MARKERS)], color=hues[number], markersize=3.5, markeredgewidth=0)
            axes.set_title(title, fontsize=8, loc="left")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_color("#cccccc")
    figure.suptitle(
        f"{s} clips each of {first.details[ON_PLANES]} ({first.dataset}, {first.query_split})\n"
        "a colour per video, a line through its clips in time order", fontsize=9,
    )  # fmt: skip
    return figure


def report(records: Sequence[Record]) -> str:
    """The table and its notes."""
    first, details = records[0], records[0].details
    dims = format_range(int(record.details[NUMBERS]) for record in records)
    notes = [
        f"{first.dataset}, {first.query_split}: {first.queries} videos, {first.clips} clips each; video "
        f"{details[KIND]}, {dims}-d,",
        "L2-normalised; brackets: 95 % intervals over videos",
        f"deviation: standard deviation over the clips of a video, mean over {dims} dimensions, as in the paper;",
        "median over videos; small where all videos lie close together, so it is not comparable across models",
        "ratio: distance between clips of a video / between clips of two videos, root mean square;",
        "comparable across models",
        "nearest: how often the nearest other clip, by cosine, is of the same video;",
        details[ON_PLANES],
        f"clips {details[IN_TIME]}",
    ]  # fmt: skip
    if SKIPPED in details:
        notes.append(f"{details[SKIPPED]} videos are skipped: they have fewer than {first.clips} different starts")
    if trained := [record.model for record in records if record.trained_on == "these"]:
        notes.append(f"trained on these videos: {', '.join(trained)}")
    notes += dict.fromkeys(note for record in records for note in record.notes)
    return "\n".join([layout(lines(records)), "", *notes])
