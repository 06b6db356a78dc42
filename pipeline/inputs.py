"""What a model takes: the clips, how they are cropped, and the normalisation."""

from dataclasses import dataclass

from gdt.pipeline.leaves import Clip
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

    @property
    def short_side(self) -> int:
        """Shorter side of the frames before the centre crop of an evaluation: the smallest of training."""
        return self.augmentation.scale[0]
