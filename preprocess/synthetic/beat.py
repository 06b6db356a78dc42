"""Event times of a synthetic video, and the motions and sounds that follow them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


class Beat(NamedTuple):
    """Event phase on a grid of times: `phase` in cycles, and its derivative `rate` in Hz; both [N]."""

    phase: Array
    rate: Array

    def part(self, events: float = 1, offset: float = 0) -> Array:
        """Progress, 0 to 1, from one event to the next, for a number of events per cycle."""
        return np.mod(self.phase * np.float32(events) - np.float32(offset), 1)

    def since(self, events: float = 1, offset: float = 0) -> Array:
        """Seconds since the last event, assuming a constant tempo."""
        return self.part(events, offset) / (events * self.rate)

    def wave(self, frequency: float = 1) -> Array:
        """Sine with `frequency` periods per cycle."""
        return np.sin(self.phase * np.float32(2 * np.pi * frequency))

    def triangle(self, frequency: float = 1) -> Array:
        """Triangle wave from -1 to 1 with `frequency` periods per cycle."""
        return 1 - 4 * np.abs(self.part(frequency) - 0.5)


@dataclass(frozen=True)
class Tempo:
    """Event phase phi(t) = start + integral of rate (1 + depth sin(2 pi t / period + lead))."""

    start: float
    rate: float
    depth: float
    period: float
    lead: float

    def beat(self, times: npt.NDArray[np.float64]) -> Beat:
        """The beat at `times` [N] in seconds."""
        angle = (2 * np.pi * times / self.period + self.lead).astype(np.float32)
        drift = self.depth * self.period / (2 * np.pi) * (math.cos(self.lead) - np.cos(angle))
        phase = self.start + self.rate * (times + drift)
        return Beat(phase.astype(np.float32), (self.rate * (1 + self.depth * np.sin(angle))).astype(np.float32))

    def events(self, per_cycle: float, seconds: float) -> npt.NDArray[np.float64]:
        """Times in seconds, within the video, at which phase * per_cycle is an integer."""
        times = np.linspace(0, seconds, round(seconds * 1000) + 1)
        phase = self.beat(times).phase.astype(np.float64) * per_cycle
        return np.interp(np.arange(math.ceil(phase[0]), math.floor(phase[-1]) + 1), phase, times)


class Motion(NamedTuple):
    """Position and look of an object, numbers or [frames]; lengths in half the frame's side, y down."""

    x: Array | float = 0.0
    y: Array | float = 0.0
    angle: Array | float = 0.0
    width: Array | float = 1.0
    height: Array | float = 1.0
    glow: Array | float = 0.0


class Sound(NamedTuple):
    """Sound of an object, numbers or [samples]; `octave` is relative to the video's pitch."""

    loudness: Array | float
    octave: Array | float = 0.0
    breath: float = 0.0
    """Share of noise around the pitch."""


def decay(seconds: Array, constant: float) -> Array:
    """Exponential decay of a struck sound or a glow."""
    return np.exp(-seconds / np.float32(constant))
