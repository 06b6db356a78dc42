"""Settings of what features know of each factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gdt.common.errors import UserError, require_positive


@dataclass(frozen=True)
class Factors:
    """See of every transformation whether features change with it and tell it, beside what the composition promises."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("ckpt",),
        "data": ("dataset", "shards", "split", "videos", "starts"),
        "factors": ("draws", "folds", "probe_c", "seed"),
        "run": ("out",),
    }
    """Of `--help`, and the settings below them."""

    ckpt: tuple[Path, ...]
    """Checkpoints, ours or from elsewhere; each is a table."""
    dataset: str = ""
    """Preprocessed data set; default the one that the first checkpoint was pretrained on."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    split: str = ""
    """Videos to look at, which need no labels; default test, or val where there are none of test."""
    videos: int = 100
    """At most so many of them, drawn at random; more narrow the intervals."""
    starts: int = 3
    """Clips per video in which a factor takes its values, spread uniformly over the video; of the time shift, clips per
    third."""
    draws: int = 4
    """Values of the augmentation: so many draws from the ranges of the training, the same for every video."""
    folds: int = 5
    """Parts of the videos, each of which is answered by a probe that has learned from the others."""
    probe_c: float = 0.1
    """Inverse strength of the probes' L2 regularisation, on features of unit variance."""
    seed: int = 0
    """Decides the videos, the folds and the augmentation's draws."""
    out: Path | None = None
    """Folder of the tables, the numbers and the picture; default runs/factors-<dataset>."""

    def __post_init__(self) -> None:
        if not self.ckpt:
            raise UserError("--ckpt is empty; name one checkpoint or more")
        require_positive(self, "", "starts")
        many = "or a probe would be asked about the videos that it has learned from"
        require_positive(self, "", "folds", least=2, why=many)
        require_positive(self, "", "draws", least=2, why="or there is nothing to tell apart")
        between = "as there are --folds of them, and distances between them"
        require_positive(self, "", "videos", least=self.fewest, why=between)
        if not 0 < self.probe_c < float("inf"):
            raise UserError(f"--probe-c is {self.probe_c}; it must be above 0")
        require_positive(self, "", "seed", least=0)

    @property
    def fewest(self) -> int:
        """Videos below which there are no numbers."""
        return max(3, self.folds)
