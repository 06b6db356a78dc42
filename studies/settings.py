"""Settings of the short studies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gdt.common.errors import UserError

MOMENTS = "synthetic-moments"


@dataclass(frozen=True)
class Claim:
    """Compare compositions with plain cross-modal learning (row e), at equal videos and compute.

    Run the same command again to resume.
    """

    dataset: str = MOMENTS
    """Preprocessed data set; synthetic-moments is generated if missing."""
    rows: tuple[str, ...] = ("e", "g", "j", "l")
    """Presets or quoted compositions."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds; one run per row and seed."""
    equal: tuple[Literal["videos", "compute"], ...] = ("videos", "compute")
    """What rows share, as in 'gdt eval ablation'; one table each."""
    size: Literal["tiny", "paper"] = "tiny"
    """Size of networks, clips and schedule."""
    batch_size: int = 0
    """Videos per step; 0: those of --size."""
    steps: int = 0
    """Training steps, at equal compute those of row l; 0: those of --size."""
    label: str = ""
    """Label columns, such as label,weather; default: all."""
    clips: int = 3
    """Clips per evaluated video."""
    test_factors: Literal["first", "all", "none"] = "first"
    """Seeds to run 'gdt eval factors' on."""
    identity: tuple[float, ...] = (0.0, 0.04, 0.1, 0.3, 1.0)
    """synthetic-moments: strengths of the identity, the background and drone that a video keeps; one data set
    per value."""
    actions_per_video: int = 3
    """synthetic-moments: actions per training video."""
    set_seed: int = 0
    """synthetic-moments: seed of generation."""
    videos: int = 0
    """synthetic-moments: videos per class and split; 0: 100 train, 40 val, 20 test."""
    jobs: int = 0
    """Runs in parallel; 0: one per GPU, else per core."""
    dry_run: bool = False
    """Only make the first data set, time a few steps and print the hours; takes minutes."""
    out: Path | None = None
    """Results; default: runs/claim-<dataset>."""

    def __post_init__(self) -> None:
        if "e" not in self.rows:
            raise UserError(f"--rows is {' '.join(self.rows)}; add e, with which the others are compared")

    @property
    def makes_shards(self) -> bool:
        return self.dataset == MOMENTS


@dataclass(frozen=True)
class Predictions:
    """Check the predictions of docs/predictions.md against the results of an ablation."""

    runs: Path = Path("runs/ablation-synthetic-hard-clips")
    """Folder of the ablation of rows a to m, two seeds or more."""


@dataclass(frozen=True)
class ClaimPredictions:
    """Check docs/claim_predictions.md against results of 'gdt study claim'."""

    values: tuple[Path, ...] = (Path("docs/claim.csv"),)
    """values.csv of 'gdt study claim'; default: the published ones."""
    picture: Path | None = None
    """Write this PNG: every row over the strength of the identity (part A)."""


@dataclass(frozen=True)
class Grid:
    """Prepare the GRID corpus: link its clips into a folder and take labels from file names."""

    source: Path
    """Folder with the clips of one speaker."""
    destination: Path
    """Folder for the links and labels.csv."""
