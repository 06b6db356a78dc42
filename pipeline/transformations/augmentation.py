"""g = (g_v, g_a): crop, flip, colour jitter, loudness and SpecAugment."""

from dataclasses import dataclass, replace

import numpy as np

from gdt.common.errors import UserError, require_range
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.base import Branches, Transformation


@dataclass(frozen=True)
class Augmentation:
    """Ranges of g = (g_v, g_a), drawn for every leaf (section 3.3, appendix)."""

    scale: tuple[int, int] = (128, 160)
    """Range of the shorter side after resizing, before the crop, pixels, both ends included."""
    center_crop: bool = False
    """Crop the centre instead of at random. Section 3.3 says random, the appendix centre."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    brightness: float = 0.4
    """Brightness is multiplied by 1 - x to 1 + x; 0.4 in the published release."""
    contrast: float = 0.4
    """Contrast about mid-grey is multiplied by 1 - x to 1 + x; 0.4 in the published release."""
    saturation: float = 0.4
    """Saturation is multiplied by 1 - x to 1 + x; 0.4 in the published release."""
    hue: float = 0.0
    """Hue is rotated by -x to x of a full turn; 0 in the published release."""
    volume: float = 0.1
    """The waveform is multiplied by 1 - x to 1 + x."""
    frequency_mask: int = 3
    """Maximum width of the SpecAugment frequency mask, mel bands."""
    time_mask: int = 6
    """Maximum width of the SpecAugment time mask, frames of 10 ms."""

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1]:
            raise UserError(
                f"--augmentation.scale is {self.scale}; it must be two lengths in pixels, the smaller first"
            )
        require_range(self, "frequency_mask", "time_mask", least=0, group="augmentation")
        shares = "flip", "brightness", "contrast", "saturation", "hue", "volume"
        require_range(self, *shares, least=0, most=1, group="augmentation")


EVALUATION = Augmentation(
    scale=(128, 128),
    center_crop=True,
    flip=0.0,
    brightness=0.0,
    contrast=0.0,
    saturation=0.0,
    hue=0.0,
    volume=0.0,
    frequency_mask=0,
    time_mask=0,
)
"""No randomness: centre crop at the smaller training scale."""


def centred(scale: int) -> Augmentation:
    """The evaluation augmentation with the shorter side resized to `scale` pixels."""
    return replace(EVALUATION, scale=(scale, scale))


def draw_augmentations(
    ranges: Augmentation, rng: np.random.Generator, n: int, mel: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Draw the parameters of n leaves, float32 [n] each; `mel` is (frames, bands) of the log-mel clip.

    scale [px], top and left (share of the free margin, 0 to 1), flip (0/1), brightness, contrast, saturation
    (factors), hue [turns], volume (factor), and the two masks as (start, width) in bands and frames.
    """
    frames, bands = mel
    margin = rng.random((2, n))
    if ranges.center_crop:
        margin[:] = 0.5

    def jitter(width: float) -> np.ndarray:
        return rng.uniform(1 - width, 1 + width, n)

    draws = {
        "scale": rng.integers(ranges.scale[0], ranges.scale[1], n, endpoint=True),
        "top": margin[0],
        "left": margin[1],
        "flip": rng.random(n) < ranges.flip,
        "brightness": jitter(ranges.brightness),
        "contrast": jitter(ranges.contrast),
        "saturation": jitter(ranges.saturation),
        "hue": rng.uniform(-ranges.hue, ranges.hue, n),
        "volume": jitter(ranges.volume),
    }
    for name, largest, size in (("frequency", ranges.frequency_mask, bands), ("time", ranges.time_mask, frames)):
        width = rng.integers(0, min(largest, size), n, endpoint=True)
        draws[f"{name}_width"] = width
        draws[f"{name}_start"] = rng.integers(0, size - width, endpoint=True)
    return {name: np.asarray(values, np.float32) for name, values in draws.items()}


@dataclass(frozen=True)
class Augment(Transformation):
    """Crop, flip, colour, loudness and masks, drawn separately for every leaf."""

    name = "augmentation"
    ranges: Augmentation = Augmentation()

    def __str__(self) -> str:
        return self.name  # the ranges are settings of the run

    def sample(self, rng: np.random.Generator, k: int, branches: Branches) -> np.ndarray:
        return np.arange(branches.count * k, dtype=np.int64).reshape(branches.count, k)

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        drawn = draw_augmentations(self.ranges, rng, int(values.max()) + 1, (leaves.mel_frames.shape[1], leaves.bands))
        leaves.draws = {name: column[values] for name, column in drawn.items()}
