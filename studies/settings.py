"""Settings of the short studies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Predictions:
    """Check the predictions of docs/predictions.md against the results of an ablation."""

    runs: Path = Path("runs/ablation-synthetic-hard")
    """Folder of the ablation of rows a to m, two seeds or more."""


@dataclass(frozen=True)
class Grid:
    """Prepare the GRID corpus: link its clips into a folder and take labels from file names."""

    source: Path
    """Folder with the clips of one speaker."""
    destination: Path
    """Folder for the links and labels.csv."""
