"""The ten actions of the synthetic data set: motions and sounds that follow the events of a tempo."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]

TAKE_OFF = 0.35  # of a jump, in cycles
LANDING = 0.8


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


def bounce(beat: Beat) -> Motion:
    part = beat.part(2)
    squash = decay(beat.since(2), 0.06)
    return Motion(y=0.4 - 3.2 * part * (1 - part), width=1 + 0.3 * squash, height=1 - 0.35 * squash)


def swing(beat: Beat) -> Motion:
    angle = 1.1 * beat.wave()
    return Motion(x=0.65 * np.sin(angle), y=0.65 * np.cos(angle) - 0.45, angle=-angle)


def jump(beat: Beat) -> Motion:
    air = np.clip((beat.part() - TAKE_OFF) / (LANDING - TAKE_OFF), 0, 1)
    crouch = np.sin(np.pi * np.clip(beat.part() / TAKE_OFF, 0, 1))
    return Motion(y=0.45 - 3.6 * air * (1 - air) + 0.1 * crouch, width=1 + 0.3 * crouch, height=1 - 0.4 * crouch)


def chirp_and_thud(beat: Beat) -> Sound:
    chirp = np.clip(1 - beat.since(offset=TAKE_OFF) / 0.25, 0, 1)
    thud = decay(beat.since(offset=LANDING), 0.07)
    return Sound(np.maximum(0.7 * np.sqrt(chirp), thud), octave=np.where(chirp > 0, 1.5 - 1.5 * chirp, -0.7))


def glide(beat: Beat) -> Sound:
    part = beat.part(0.5)
    return Sound(np.minimum(1, 8 * part * (1 - part)), octave=1.6 * part - 0.8, breath=0.3)


class Action(NamedTuple):
    """Verb, motion and sound of a class."""

    verb: str
    motion: Callable[[Beat], Motion]
    sound: Callable[[Beat], Sound]


# Every second has at least one visible and audible event, so that a clip of 1 s shows the action.
ACTIONS = {
    # A thud at each of two impacts per cycle.
    "bounce": Action("bounces", bounce, lambda b: Sound(decay(b.since(2), 0.07), decay(b.since(2), 0.03) - 0.5)),
    # A whoosh whenever the pendulum passes its lowest point.
    "swing": Action("swings", swing, lambda b: Sound((1 - b.wave() ** 2) ** 3, breath=1)),
    # A whirr of eight beats per turn.
    "spin": Action(
        "spins",
        lambda b: Motion(angle=2 * np.pi * b.phase),
        lambda b: Sound(np.clip(0.5 + 0.9 * b.wave(8), 0.1, 1)),
    ),
    # A swell, loudest at the largest size.
    "pulse": Action(
        "pulses",
        lambda b: Motion(width=1 + 0.5 * b.wave(), height=1 + 0.5 * b.wave()),
        lambda b: Sound((0.5 + 0.5 * b.wave()) ** 2),
    ),
    # A short high click with each of two flashes per cycle.
    "flash": Action(
        "flashes",
        lambda b: Motion(glow=decay(b.since(2), 0.1)),
        lambda b: Sound(decay(b.since(2), 0.015), octave=2),
    ),
    # A rattle at each turning point of a burst of shaking.
    "shake": Action(
        "shakes",
        lambda b: Motion(x=0.3 * b.wave(5) * (b.part() < 0.6)),
        lambda b: Sound(decay(b.since(10, offset=0.5), 0.015) * (b.part() < 0.6), octave=1, breath=0.3),
    ),
    # The pitch follows the height; an accent at each turn.
    "zigzag": Action(
        "zigzags",
        lambda b: Motion(x=0.6 * b.triangle(0.5), y=-0.4 * b.triangle(2)),
        lambda b: Sound(0.4 + 0.6 * decay(b.since(4), 0.06), octave=0.7 * b.triangle(2)),
    ),
    # A tremolo whose pitch rises and falls once per round.
    "orbit": Action(
        "orbits",
        lambda b: Motion(x=0.5 * b.wave(), y=0.5 * np.cos(2 * np.pi * b.phase)),
        lambda b: Sound(0.6 + 0.4 * b.wave(3), octave=0.25 * b.wave()),
    ),
    # A breathy glide upwards, over and over, like the object.
    "float": Action("floats", lambda b: Motion(0.25 * b.wave(), 1.1 - 2.2 * b.part(0.5), 0.4 * b.wave()), glide),
    # A rising chirp at take-off, a thud at landing.
    "jump": Action("jumps", jump, chirp_and_thud),
}
