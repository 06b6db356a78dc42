"""What a model takes: the clips, how they are cropped, and the normalisation."""

import sys
from dataclasses import dataclass
from functools import cache

from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.statistics import Statistics
from gdt.pipeline.transformations.augmentation import Augmentation


@dataclass(frozen=True)
class Inputs:
    """The inputs that a model is trained with, which belong to it, not to the shards."""

    clip: Clip
    augmentation: Augmentation
    """Ranges of the augmentations of training."""
    statistics: Statistics
    """Normalisation."""
    fps: int = 30
    """Frames per second, of which a clip is a sequence; 0 if unknown."""

    @property
    def short_side(self) -> int:
        """Shorter side of the frames before the centre crop of an evaluation: the smallest of training."""
        return self.augmentation.scale[0]

    def other_rate(self, index: Index) -> str:
        """What to say of shards with another frame rate; empty for its own."""
        if self.fps in (0, index.fps):
            return ""
        return (
            f"{index.folder} has {index.fps} frames/s, and the model was trained with {self.fps}, so its clips play at "
            f"another speed; preprocess again with --fps {self.fps}"
        )

    def warn_of_other_rate(self, index: Index) -> None:
        """Say it once."""
        _warn(self.other_rate(index))


@cache
def _warn(text: str) -> None:
    if text:
        print(f"warning: {text}", file=sys.stderr)
