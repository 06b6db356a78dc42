"""Settings of the HTML report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gdt.common.errors import UserError, require_positive


@dataclass(frozen=True)
class Report:
    """Write an HTML page of all runs in a folder: tables, learning curves, examples."""

    runs: Path = Path("runs")
    """Folder of runs and evaluations, with its subfolders."""
    out: Path | None = None
    """The page; default: report.html in --runs."""
    models: int = 4
    """Maximum number of models with examples: the best."""

    def __post_init__(self) -> None:
        require_positive(self, "", "models")
        if self.out is not None and self.out.suffix != ".html":
            raise UserError(f"--out is {self.out}; its name must end in .html")

    @property
    def path(self) -> Path:
        return self.out or self.runs / "report.html"
