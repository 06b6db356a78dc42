"""Settings of the paper's pictures of features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gdt.common.errors import UserError, require_positive
from gdt.eval.embed import Kind


@dataclass(frozen=True)
class Figures:
    """Draw how far the clips of a video lie apart, and clips on planes by PCA and t-SNE, as the paper does."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("ckpt", "kind", "random"),
        "data": ("dataset", "shards", "split", "clips"),
        "deviation": ("videos",),
        "planes": ("shown", "label", "of_class", "perplexity"),
        "run": ("seed", "out"),
    }
    """Of `--help`, and the settings below them."""

    ckpt: tuple[Path, ...]
    """Checkpoints, ours or from elsewhere; each is a histogram and a row of planes."""
    dataset: str = ""
    """Preprocessed data set; default the one that the first checkpoint was pretrained on."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    split: str = ""
    """Videos to look at; default test, or val where there are none of test."""
    clips: int = 10
    """Per video, spread uniformly over it; videos that offer fewer starts are left out."""
    videos: int = 3000
    """At most so many of them, drawn at random, are in the histogram."""
    shown: int = 30
    """At most so many videos, drawn at random from one class, are in the planes."""
    label: str = ""
    """Column of the labels that count; default the classes of the data set."""
    of_class: str = ""
    """The class; default the one with the most videos. Without labels, any videos are shown."""
    perplexity: float = 30.0
    """Of t-SNE; lower where there are few clips."""
    kind: Kind = "features"
    """Average-pooled features of the video network's trunk, or embeddings, which its head makes of them."""
    random: bool = True
    """Show the random weights of the first checkpoint's network, too."""
    seed: int = 0
    """Decides the videos, and where t-SNE begins."""
    out: Path | None = None
    """Folder of pictures, numbers and table; default runs/figures-<dataset>."""

    def __post_init__(self) -> None:
        if not self.ckpt:
            raise UserError("--ckpt is empty; name one checkpoint or more")
        require_positive(self, "", "clips", least=2, why="or there is nothing that could lie apart")
        between = "as what lies between videos is what the clips of one are compared with"
        require_positive(self, "", "videos", least=3, why=between)
        require_positive(self, "", "shown", least=2, why="or every clip is of the same video")
        require_positive(self, "", "perplexity")
        require_positive(self, "", "seed", least=0)
