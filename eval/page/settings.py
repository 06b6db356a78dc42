"""Settings of the page of all runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gdt.common.errors import UserError, require_positive


@dataclass(frozen=True)
class Report:
    """Write one HTML page of all runs below a folder: tables, learning curves, and what the models make of videos."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "page": ("runs", "out"),
        "models": ("figures_of", "models"),
        "figures": ("queries", "neighbours", "smoothing", "leaves", "points", "perplexity", "seed"),
    }

    runs: Path = Path("runs")
    """Folder; every run and every evaluation in it, however deep, is on the page."""
    out: Path | None = None
    """The page, .html; default report.html in --runs."""
    figures_of: tuple[str, ...] = ()
    """Models that are drawn, by the names of their runs' folders; default the best of every data set."""
    models: int = 4
    """At most so many models are drawn where --figures-of names none."""
    queries: int = 5
    """Test videos whose nearest neighbours are shown."""
    neighbours: int = 5
    """How many of them."""
    smoothing: int = 21
    """Steps over which the curves of training are averaged, half of them before and half after each."""
    leaves: int = 128
    """At most so many leaves of a training batch go through a model."""
    points: int = 500
    """At most so many test videos are drawn as points, or searched by their sound."""
    perplexity: float = 30.0
    """Of t-SNE; lower where there are few videos."""
    seed: int = 0
    """Decides which videos are shown, and where t-SNE begins."""

    def __post_init__(self) -> None:
        require_positive(self, "", "models", "queries", "neighbours", "smoothing")
        if self.leaves < 16 or self.points < 10:
            raise UserError("--leaves must be 16 or more, and --points 10 or more")
        if not self.perplexity >= 1:
            raise UserError(f"--perplexity is {self.perplexity}; it must be 1 or more")
        if self.seed < 0:
            raise UserError(f"--seed is {self.seed}; it must be 0 or more")
        if self.out is not None and self.out.suffix != ".html":
            raise UserError(f"--out is {self.out}; the page's name must end in .html")

    @property
    def path(self) -> Path:
        """Where the page goes."""
        return self.out or self.runs / "report.html"
