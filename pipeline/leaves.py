"""The leaves of a batch as plain arrays: the part of a plan that the loader executes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gdt.common.errors import UserError, require_range

MODALITIES = ("video", "audio", "text")
"""Names of the modalities; plans store their indices."""


@dataclass(frozen=True)
class Clip:
    """The size of a leaf."""

    frames: int = 30
    """Frames of a video clip; the paper uses 30 consecutive frames at 30 fps."""
    stride: int = 1
    """Step between the stored frames of a clip."""
    size: int = 112
    """Side of the square crop, pixels."""
    mel_frames: int = 99
    """Log-mel frames of an audio clip: 99 windows of 20 ms every 10 ms fill one second."""
    words: int = 16
    """Maximum words of a text clip, stop words not counted."""
    words_seconds: float = 4.0
    """Length of a text clip from the start of the video clip, seconds."""

    def __post_init__(self) -> None:
        require_range(self, "frames", "stride", "size", "mel_frames", "words", group="clip")
        if not self.words_seconds > 0:
            raise UserError(f"--clip.words-seconds is {self.words_seconds}; it must be above 0")

    def __str__(self) -> str:
        every = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{self.frames} frames{every}, {self.size}x{self.size}"


@dataclass
class Leaves:
    """What to load for each of n leaves. Transformations write these fields in turn; the loader reads them."""

    video: np.ndarray
    """Row of the index: int64 [n]."""
    modality: np.ndarray
    """Index into MODALITIES: int64 [n]."""
    start: np.ndarray
    """First stored frame of the clip: int64 [n]."""
    frames: np.ndarray
    """Stored frame of each frame of the clip, relative to `start`: int64 [n, frames]."""
    mel_frames: np.ndarray
    """Offset of each log-mel frame of the clip from the stored one at `start`: int64 [n, mel_frames]."""
    words: np.ndarray
    """Index of each word of the clip among the words from `start` on: int64 [n, words]; missing words are skipped."""
    words_seconds: np.ndarray
    """Length of the text clip from `start`, seconds: float64 [n]."""
    turns: np.ndarray
    """Quarter turns of the crop, counter-clockwise: int64 [n]."""
    crop_scale: np.ndarray
    """Side of the crop relative to the augmentation's: float64 [n]; below 1 zooms in; above 1 zooms out, at most to
    the whole frame."""
    bands: int
    draws: dict[str, np.ndarray]
    """Parameters of crop, colour, loudness and masks: float32 [n] each, see Augmentation.draw. Empty until the
    augmentation is applied, which replaces all of them."""

    @classmethod
    def plain(cls, n: int, clip: Clip, bands: int) -> Leaves:
        """Untransformed leaves: the first clip of the first video, in the first modality."""
        zeros = np.zeros(n, np.int64)

        def positions(count: int) -> np.ndarray:
            return np.tile(np.arange(count, dtype=np.int64), (n, 1))

        return cls(
            video=zeros,
            modality=zeros.copy(),
            start=zeros.copy(),
            frames=positions(clip.frames) * clip.stride,
            mel_frames=positions(clip.mel_frames),
            words=positions(clip.words),
            words_seconds=np.full(n, clip.words_seconds),
            turns=zeros.copy(),
            crop_scale=np.ones(n),
            bands=bands,
            draws={},
        )

    def __len__(self) -> int:
        return len(self.video)

    def arrays(self) -> dict[str, np.ndarray]:
        """The array fields by name, without the draws."""
        return {name: values for name, values in vars(self).items() if isinstance(values, np.ndarray)}

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(MODALITIES[number] for number in np.unique(self.modality))

    def of(self, modality: str) -> Leaves:
        return self.take(self.modality == MODALITIES.index(modality))

    def take(self, chosen: np.ndarray | slice) -> Leaves:
        """Select leaves by index, mask or slice."""
        arrays: dict[str, Any] = {name: values[chosen] for name, values in self.arrays().items()}
        return replace(self, **arrays, draws={name: values[chosen] for name, values in self.draws.items()})
