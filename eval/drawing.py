"""Style, colours and markers of all figures, image files, and pictures for pages."""

import base64
import io
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gdt.common.files import writing

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gdt",
    "text.parse_math": False,
    "font.size": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Functions that draw are decorated with `matplotlib.rc_context(STYLE)`."""
_PALETTE = "2b7bba d0602a 138a63 b8558f 8a6fc4 8a7400 c2504f 2a8b9c 6f7f1f 7f7f7f"
COLOURS = [f"#{colour}" for colour in _PALETTE.split()]
_MARKERS = "os^DvP*Xph"
_GLYPH = re.compile(r"Glyph \d+ ")
"""Start of matplotlib's warning of a character that the font lacks, one for each."""


def marker(k: int) -> dict[str, Any]:
    """Colour and marker of the k-th entry of a legend; from the eleventh on, colours repeat with other markers."""
    n = len(COLOURS)
    return {"color": COLOURS[k % n], "marker": _MARKERS[(k + k // n) % n]}


def save(figure: Figure, path: Path) -> None:
    """Write an image file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file, rc_context(STYLE), warnings.catch_warnings(record=True) as caught:
        figure.savefig(file, format=path.suffix[1:], dpi=150)
    for warning in caught:
        if not _GLYPH.match(str(warning.message)):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if any(_GLYPH.match(str(warning.message)) for warning in caught):
        print(f"note: {path} has boxes instead of letters: the font of pictures lacks their script", file=sys.stderr)


def picture(figure: Figure, names: Sequence[str], columns: int = 5) -> str:
    """A figure as SVG for the `src` of an image, with a legend of the marks of these names."""
    handles = [Line2D([], [], linestyle="", **marker(k)) for k in range(len(names))]
    figure.legend(handles, list(names), loc="outside lower left", ncols=columns)
    image = io.BytesIO()
    with warnings.catch_warnings():  # browsers draw the text, with fonts of their own
        warnings.filterwarnings("ignore", _GLYPH.pattern)
        figure.savefig(image, format="svg", metadata={"Date": None})
    return data_uri(image.getvalue(), "svg+xml")


def data_uri(image: bytes, kind: str) -> str:
    """An image file for the `src` of an image."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
