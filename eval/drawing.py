"""Style, colours and markers of all figures, image files, and pictures for pages."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from gdt.common.files import writing

STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "gdt", "text.parse_math": False, "font.size": 9, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
"""Functions that draw are decorated with `matplotlib.rc_context(STYLE)`."""
COLOURS = (
    "#2b7bba", "#d0602a", "#138a63", "#b8558f", "#8a6fc4", "#8a7400", "#c2504f", "#2a8b9c", "#6f7f1f", "#7f7f7f",
)  # fmt: skip
_MARKERS = "os^DvP*Xph"


def mark(k: int) -> dict[str, Any]:
    """Colour and marker of the k-th entry of a legend; from the eleventh on, colours repeat with other markers."""
    n = len(COLOURS)
    return {"color": COLOURS[k % n], "marker": _MARKERS[(k + k // n) % n]}


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write an image file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file, rc_context(STYLE):
        figure.savefig(file, format=path.suffix[1:], dpi=dpi)


def picture(figure: Figure) -> str:
    """A figure as SVG for the `src` of an image."""
    image = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(image, format="svg", metadata={"Date": None})
    return data_uri(image.getvalue(), "svg+xml")


def data_uri(image: bytes, kind: str) -> str:
    """An image file for the `src` of an image."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
