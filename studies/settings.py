"""Settings of the short studies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Predictions:
    """Judge the predictions of docs/predictions.md by the rule stated there."""

    runs: Path = Path("runs/ablation-synthetic-hard")
    """Folder of the ablation of rows a to m, two seeds or more."""


@dataclass(frozen=True)
class Grid:
    """Link the clips of GRID in a folder and label them with the words in their file names."""

    source: Path
    """Folder with the clips of one speaker."""
    destination: Path
    """Folder for the links and labels.csv."""
