"""Settings of `gdt study figures`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gdt.common.errors import UserError, require_positive
from gdt.eval.embed import Kind


@dataclass(frozen=True)
class Figures:
    """Draw the paper's figures: the spread of the clips of a video, and PCA and t-SNE of clips."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("ckpt", "kind", "random"),
        "data": ("dataset", "shards", "split", "clips"),
        "deviation": ("videos",),
        "maps": ("shown", "label", "of_class", "perplexity"),
        "run": ("seed", "out"),
    }
    """Headings of `--help`, each with its settings."""

    ckpt: tuple[Path, ...]
    """Checkpoints or external weights; a histogram and a row of maps each."""
    dataset: str = ""
    """Preprocessed data set; default: the one that the first checkpoint was pretrained on."""
    shards: Path | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    split: str = ""
    """Split of the videos; default: test, or val if there is no test split."""
    clips: int = 10
    """Clips per video, spread uniformly; videos with fewer different starts are skipped."""
    videos: int = 3000
    """Maximum number of videos in the histogram, drawn at random."""
    shown: int = 30
    """Maximum number of videos in the PCA and t-SNE maps, drawn at random from one class."""
    label: str = ""
    """Label column; default: the classes."""
    of_class: str = ""
    """Class in the maps; default: the one with the most videos. Without labels, any videos."""
    perplexity: float = 30.0
    """Perplexity of t-SNE; reduced where there are few clips."""
    kind: Kind = "features"
    """features: average-pooled, of the video trunk; embeddings: of its head."""
    random: bool = True
    """Also show random weights of the first checkpoint's network."""
    seed: int = 0
    """Seed of the choice of videos and of t-SNE."""
    out: Path | None = None
    """Output folder of pictures, numbers and table; default: runs/figures-<dataset>."""

    def __post_init__(self) -> None:
        if not self.ckpt:
            raise UserError("--ckpt is empty; name one checkpoint or more")
        require_positive(self, "", "clips", least=2, why="otherwise there is no distance between clips")
        require_positive(self, "", "videos", least=3, why="because distances are compared with those between videos")
        require_positive(self, "", "shown", least=2, why="otherwise every clip is of the same video")
        require_positive(self, "", "perplexity")
        require_positive(self, "", "seed", least=0)
