"""Settings of `gdt factors`."""

from dataclasses import dataclass
from pathlib import Path

from gdt.common.errors import require_range
from gdt.eval.settings import ModelsAndData

PROBE_FOLDS = 5
"""Folds of the probe's cross-validation over videos."""


@dataclass(frozen=True)
class Factors(ModelsAndData):
    """Measure how far each factor moves the features, and how well a linear probe reads it off them."""

    split: str = ""
    """Split to measure on; default: test, or val if there is no test split."""
    videos: int = 100
    """Videos to measure on; more give narrower intervals."""
    factors_from: Path | None = None
    """Python file with custom transformations, to measure them, too."""
    out: Path | None = None
    """Folder of results; default: runs/factors-<dataset>."""

    def __post_init__(self) -> None:
        require_range(self, "videos", least=PROBE_FOLDS, why="at least one per fold of the probe's cross-validation")
