"""Settings of the pictures of what is learned from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gdt.common.errors import UserError, require_positive
from gdt.pipeline import presets


@dataclass(frozen=True)
class ShowBatch:
    """Draw every leaf of one video of a batch as a PNG."""

    dataset: str = "synthetic"
    """Preprocessed data set."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    preset: str = "l"
    """Row of the paper's table 1, or another name of gdt pretrain --preset help."""
    factors: str = ""
    """A composition of your own instead of a preset, as in pretraining."""
    factors_from: Path | None = None
    """Python file with transformations of your own."""
    word2vec: Path | None = None
    """Where words are a modality: the file of word vectors with which the shards were made."""
    size: Literal["tiny", "paper"] = "tiny"
    """Size of the clips."""
    batch: int = 0
    """Which batch of the first epoch."""
    seed: int = 0
    """Seed of the plan."""
    frames: int = 8
    """Frames drawn of each video leaf."""
    out: Path | None = None
    """The picture; default runs/batch-<dataset>-<preset>.png."""

    def __post_init__(self) -> None:
        require_positive(self, "", "frames")
        if not self.factors and self.preset != "help":
            presets.preset(self.preset)
        if self.out is not None and self.out.suffix != ".png":
            raise UserError(f"--out is {self.out}; the picture's name must end in .png")


@dataclass(frozen=True)
class ShowTree:
    """Print and draw the sampling tree of a composition, with what each leaf attracts and repels."""

    preset: str = "l"
    """Row of the paper's table 1, or another name of gdt pretrain --preset help."""
    factors: str = ""
    """A composition of your own instead of a preset, as in pretraining."""
    factors_from: Path | None = None
    """Python file with transformations of your own."""
    videos: int = 2
    """How many videos are drawn; the numbers of partners are those of --videos-per-batch."""
    videos_per_batch: int = 512
    """K_i of the batch that the numbers are of."""
    out: Path | None = None
    """The picture, .png, .svg or .pdf; default runs/tree-<preset>.png."""

    def __post_init__(self) -> None:
        if self.out is not None and self.out.suffix not in (".png", ".svg", ".pdf"):
            raise UserError(f"--out is {self.out}; the picture's name must end in .png, .svg or .pdf")
        if self.videos > self.videos_per_batch:
            raise UserError(f"--videos is {self.videos} of a batch of {self.videos_per_batch}; set it to no more")
        if self.videos < 2:
            raise UserError(f"--videos is {self.videos}; it must be 2 or more, or there is nothing to repel")
