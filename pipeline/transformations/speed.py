"""Playback rate."""

from dataclasses import dataclass

import numpy as np

from gdt.common.errors import UserError
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.base import Choice


@dataclass(frozen=True)
class Speed(Choice):
    """Playback rate of frames and sound: speed(1,2) takes every frame or every second one.

    The text clip is longer by the same factor, with the same maximum number of words.
    """

    name = "speed"
    rates: tuple[float, ...] = (1.0, 2.0)
    """The first is the rate if speed is not varied."""

    def __post_init__(self) -> None:
        different = 0 < len(self.rates) == len(set(self.rates))
        if not different or not all(0 < rate < np.inf for rate in self.rates):
            raise UserError(f"the rates of speed are {self.rates}; they must be different numbers above 0")

    @property
    def values(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"{rate:g}x" for rate in self.rates)

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        rate = np.asarray(self.rates)[values, None]
        leaves.frames = np.floor(leaves.frames * rate + 0.5).astype(np.int64)
        leaves.mel_frames = np.floor(leaves.mel_frames * rate + 0.5).astype(np.int64)
        leaves.words_seconds = leaves.words_seconds * rate[:, 0]

    def reach(self, k: int) -> float:
        return max(self.rates) if k > 1 else self.rates[0]
