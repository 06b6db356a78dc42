"""What the leaves of a batch hold, as plain arrays: the part of a plan that the loader executes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gdt.common.errors import UserError, require_positive

VIDEO, AUDIO, TEXT = 0, 1, 2
MODALITIES = ("video", "audio", "text")
"""Names of the modalities; their places here are their numbers in plans."""


@dataclass(frozen=True)
class Clip:
    """The size of what one leaf holds."""

    frames: int = 30
    """Frames of a video clip; the paper takes 30 consecutive ones at 30 fps."""
    stride: int = 1
    """Every how many stored frames one is taken."""
    size: int = 112
    """Side of the square crop, pixels."""
    mel_frames: int = 99
    """Log-mel frames of an audio clip: 99 windows of 20 ms every 10 ms fill one second."""
    words: int = 16
    """Most words of a text clip, stop words not counted."""
    words_seconds: float = 4.0
    """How long after the start of the clip its words may end, seconds."""

    def __post_init__(self) -> None:
        require_positive(self, "clip", "frames", "stride", "size", "mel_frames", "words")
        if not self.words_seconds > 0:
            raise UserError(f"--clip.words-seconds is {self.words_seconds}; it must be above 0")


INPUT_FIELDS = {"video": ("start", "frames", "turns"), "audio": ("start", "mel_frames")}
"""Fields of `Leaves` that each network gets to see something of, beside the draws; `eval factors` compares them."""


@dataclass
class Leaves:
    """What to do for each of n leaves. Transformations write here, one after the other; the loader reads it.

    A new field belongs in `INPUT_FIELDS`, too.
    """

    video: np.ndarray
    """Row of the index: int64 [n]."""
    modality: np.ndarray
    """Number of the modality: int64 [n]."""
    start: np.ndarray
    """Stored frame at which the clip begins: int64 [n]."""
    frames: np.ndarray
    """Stored frame that each frame of the clip is, counted from `start`: int64 [n, frames]."""
    mel_frames: np.ndarray
    """Stored log-mel frame that each one of the clip is, counted from the one at `start`: int64 [n, mel_frames]."""
    words: np.ndarray
    """Which of the words said from `start` on each word of the clip is; those that are not said are left out: int64
    [n, words]."""
    words_seconds: np.ndarray
    """How long after `start` the words may end, seconds: float64 [n]."""
    turns: np.ndarray
    """Quarter turns of the crop, counter-clockwise: int64 [n]."""
    bands: int
    """Mel bands, within which masks lie."""
    draws: dict[str, np.ndarray]
    """Parameters of crop, colour, loudness and masks: float32 [n] each, see Augmentation.draw; empty until augmentation
    has acted, which replaces them all. Where there are `height` and `width`, shares of the frame's, the crop is that
    large, and not the square that `scale` makes it."""

    @classmethod
    def plain(cls, n: int, clip: Clip, bands: int) -> Leaves:
        """Leaves to which nothing has been done: the first clip of the first video, in the first modality."""
        zeros = np.zeros(n, np.int64)

        def positions(count: int) -> np.ndarray:
            return np.tile(np.arange(count, dtype=np.int64), (n, 1))

        return cls(
            video=zeros, modality=zeros.copy(), start=zeros.copy(), turns=zeros.copy(),
            frames=positions(clip.frames) * clip.stride, mel_frames=positions(clip.mel_frames),
            words=positions(clip.words), words_seconds=np.full(n, clip.words_seconds), bands=bands, draws={},
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.video)

    def arrays(self) -> dict[str, np.ndarray]:
        """What transformations write, by name, but for the draws."""
        return {name: values for name, values in vars(self).items() if isinstance(values, np.ndarray)}

    @property
    def modalities(self) -> tuple[str, ...]:
        """Those that there are leaves of."""
        return tuple(MODALITIES[number] for number in np.unique(self.modality))

    def of(self, modality: str) -> Leaves:
        """The leaves of one modality, in order."""
        return self.take(self.modality == MODALITIES.index(modality))

    def take(self, chosen: np.ndarray | slice) -> Leaves:
        """Some of the leaves, given by their places, a mask or a slice."""
        arrays: dict[str, Any] = {name: values[chosen] for name, values in self.arrays().items()}
        return replace(self, **arrays, draws={name: values[chosen] for name, values in self.draws.items()})
