"""How far time-shifted clips of a video lie apart, as `gdt study figures` has found it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from gdt.eval.page.features import Plot
from gdt.eval.page.svg import Key, svg
from gdt.eval.record import Record
from gdt.studies.figures.pictures import TITLES, histogram, marks
from gdt.studies.figures.table import lines


def deviations(found: Sequence[Record], key: str) -> tuple[list[list[str]], list[Plot]]:
    """The table, and two plots: the paper's histogram, and what can be compared between models."""
    of = marks(found)
    plots = []
    for name, title in TITLES.items():
        values = [record.per_video[name] for record in found]
        said = f"{found[0].queries} videos, {found[0].clips} clips each; dotted: medians"
        drawn = svg(f"{key}-{name}", f"{title}: {said}", partial(_draw, values=values, of=of, title=title))
        plots.append(Plot(title, drawn, said, of))
    return lines(found), plots


def _draw(axes: Axes, values: Sequence[Sequence[float]], of: Sequence[Key], title: str) -> None:
    histogram(axes, values, of)
    axes.set_xlabel(title)
