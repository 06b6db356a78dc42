"""How far time-shifted clips of a video lie apart, as `gdt study figures` has found it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from gdt.eval.page.features import Plot
from gdt.eval.plots import Key, svg
from gdt.studies.figures.picture import DEVIATION, RELATIVE, histogram, marks
from gdt.studies.figures.results import Findings, lines


def deviations(found: Findings, key: str) -> tuple[list[list[str]], list[Plot]]:
    """The table, and two plots: the paper's histogram, and what can be compared between models."""
    models, of = found.models, marks(found.models)
    plots = []
    for name, title, values in (
        ("deviation", DEVIATION, [seen.deviation for seen in models]),
        ("relative", RELATIVE, [seen.relative for seen in models]),
    ):
        said = f"{len(found.videos)} videos, {found.settings.clips} clips each; dotted: medians"
        drawn = svg(f"{key}-{name}", f"{title}: {said}", partial(_draw, values=values, of=of, title=title))
        plots.append(Plot(title, drawn, said, of))
    return lines(found), plots


def _draw(axes: Axes, values: Sequence[Sequence[float]], of: Sequence[Key], title: str) -> None:
    histogram(axes, values, of)
    axes.set_xlabel(title)
