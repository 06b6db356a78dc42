"""Mean and standard deviation of pixels and log-mel values, from integer sums that no order of the videos changes.

Workers, shards and the index add them in any grouping, which would change the last bits of floats, and so the losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MEL_ONE = 1 << 16
"""1.0 in the fixed-point sums of log-mel values."""


def mel_sums(bank: np.ndarray) -> np.ndarray:
    """(n, sum x, sum x^2) of log-mel values, with x and x^2 in fixed point: int64 [3]."""
    value = bank.astype(np.float64)
    total, square = (int(np.rint(x * _MEL_ONE).astype(np.int64).sum()) for x in (value, value**2))
    return np.array([bank.size, total, square], np.int64)


Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation of the colour channels (0-255) and of the log-mel values."""

    pixel_mean: Channels
    pixel_std: Channels
    mel_mean: float
    mel_std: float

    def __post_init__(self) -> None:
        values = (*self.pixel_mean, *self.pixel_std, self.mel_mean, self.mel_std)
        if not all(map(math.isfinite, values)) or min(*self.pixel_std, self.mel_std) <= 0:
            raise ValueError(f"{values} is no normalisation")

    @staticmethod
    def from_sums(pixels: Sequence[Sequence[int]], mels: Sequence[int]) -> Statistics:
        """From sums (n, sum x, sum x^2): `pixels` per channel [3, 3], `mels` as `mel_sums` [3].

        Over all videos, they are Python's integers, which do not overflow.
        """
        (red, red_std), (green, green_std), (blue, blue_std) = (_moments(channel, one=1) for channel in pixels)
        deviations = (max(red_std, 1.0), max(green_std, 1.0), max(blue_std, 1.0))
        mel_mean, mel_std = _moments(mels, one=_MEL_ONE)
        return Statistics((red, green, blue), deviations, mel_mean, max(mel_std, 1e-3))


def _moments(sums: Sequence[int], one: int) -> tuple[float, float]:
    """Mean and standard deviation."""
    n, total, square = sums
    n = max(n, 1)
    # integer arithmetic until the division avoids cancellation
    variance = (n * square * one - total**2) / (n * one) ** 2
    return total / (n * one), math.sqrt(max(variance, 0.0))  # rounded alike on all CPUs, unlike a power
