"""What all plots share: how things are told apart, how pictures are written, and SVG inside a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdt.common.files import writing

_INK = "#010203"
"""Stands for the page's colour of text, which differs between light and dark."""
_STYLE: Any = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 9, "legend.frameon": False,
    "text.color": _INK, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Key:
    """How one of several things is drawn: by colour and by shape, so that no colour has to be told from another."""

    colour: str
    marker: str
    """As matplotlib knows it."""
    glyph: str
    """The same for the legend, which is text."""
    name: str = ""


_COLOURS = (
    "#2b7bba", "#d0602a", "#138a63", "#b8558f", "#8a6fc4", "#8a7400", "#c2504f", "#2a8b9c", "#6f7f1f", "#7f7f7f",
)  # fmt: skip
"""Each at a contrast of 3 or more with white and with near black."""
_SHAPES = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("*", "★"), ("X", "✖"), ("p", "⬟"),
           ("h", "⬢"))  # fmt: skip
MOST = len(_COLOURS)


def keys(names: list[str]) -> list[Key]:
    """One for each name; from the eleventh on colours come again with other shapes."""
    n = len(_COLOURS)
    return [Key(_COLOURS[k % n], *_SHAPES[(k + k // n) % n], name) for k, name in enumerate(names)]


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a picture, and the folder it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=dpi)


def svg(key: str, said: str, draw: Callable[[Axes], None], size: tuple[float, float] = (4.4, 2.9)) -> Markup:
    """A plot for a page; `key` tells its names from those of the page's other plots, `said` is its text for those who
    do not see it. `draw` must write no text that is not this program's own.
    """
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": key}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata=_NO_METADATA)
    inner = re.sub(r"<style.*?</style>|<metadata.*?</metadata>", "", text.getvalue(), flags=re.S)
    head = re.search(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', inner)
    if head is None:
        raise RuntimeError("matplotlib has written an SVG without a viewBox")
    inner = inner[head.end() :].replace(_INK, "currentColor")
    inner = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{key}-", inner).replace("xlink:href", "href")
    opening = f'<svg viewBox="{head[1]}" role="img" aria-label="{escape(said)}" class="plot">'
    return Markup(opening + inner)  # of numbers and our own words; nothing in it was read from a file
