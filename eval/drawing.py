"""Colours and markers of all plots, image files, and SVG for pages."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdt.common.files import writing

_INK = "#010203"
"""Placeholder for the page's text colour, which differs between light and dark mode."""
_STYLE: Any = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 9, "legend.frameon": False,
    "text.color": _INK, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Key:
    """Colour and marker of a legend entry; markers make it readable without colours."""

    colour: str
    marker: str
    """Matplotlib's name of the marker."""
    glyph: str
    """The marker as text, for legends in HTML."""
    name: str = ""


class Plot(NamedTuple):
    """A plot of the page, with caption and legend."""

    title: str
    svg: Markup
    caption: str
    legend: list[Key]


_COLOURS = (
    "#2b7bba", "#d0602a", "#138a63", "#b8558f", "#8a6fc4", "#8a7400", "#c2504f", "#2a8b9c", "#6f7f1f", "#7f7f7f",
)  # fmt: skip
"""Each has a contrast of at least 3 to white and to near black."""
_SHAPES = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("*", "★"), ("X", "✖"), ("p", "⬟"),
           ("h", "⬢"))  # fmt: skip
MOST = len(_COLOURS)


def keys(names: list[str]) -> list[Key]:
    """One key per name; from the eleventh on, colours repeat with other markers."""
    n = len(_COLOURS)
    return [Key(_COLOURS[k % n], *_SHAPES[(k + k // n) % n], name) for k, name in enumerate(names)]


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write an image file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=dpi)


def data_uri(figure: Figure) -> str:
    """A figure as PNG for the `src` of an image."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110, metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()


def svg(key: str, description: str, draw: Callable[[Axes], None], size: tuple[float, float] = (4.4, 2.9)) -> Markup:
    """A plot for a page; `key` makes its ids unique there, and `description` is its text for screen readers.

    `draw` must not write text from files: it is not escaped.
    """
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": key}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata=_NO_METADATA)
    inner = re.sub(r"<style.*?</style>|<metadata.*?</metadata>", "", text.getvalue(), flags=re.S)
    head = re.search(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', inner)
    if head is None:
        raise RuntimeError("matplotlib wrote an SVG without a viewBox")
    inner = inner[head.end() :].replace(_INK, "currentColor")
    inner = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{key}-", inner).replace("xlink:href", "href")
    opening = f'<svg viewBox="{head[1]}" role="img" aria-label="{escape(description)}" class="plot">'
    return Markup(opening + inner)  # safe: only numbers and constant text
