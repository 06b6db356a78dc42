"""Settings of the short studies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Predictions:
    """Judge docs/predictions.md by the rule that it states."""

    runs: Path = Path("runs/ablation-synthetic-hard")
    """Folder of the ablation of rows a to m, two seeds or more."""


@dataclass(frozen=True)
class Grid:
    """Link the clips of GRID in a folder, and write down what is said in them, as their names have it."""

    source: Path
    """Folder with the clips of one speaker."""
    destination: Path
    """Folder of the links and of labels.csv."""
