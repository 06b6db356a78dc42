"""What the actor does and how that sounds: five motions, each in two directions of time or orders of two events.

A motion of the first kind is a function of one phase, for its picture and for its sound. Its twin has the phase run
backwards, so that one is the other reversed in time, exactly and by construction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gdt.preprocess.synthetic.actions import Array, Beat, Motion, Sound, decay

RAMP = 0.9
"""The share of a cycle that a slow ramp takes; the quick return takes the rest: about one frame of a small clip."""
GAP = 0.3
"""Of a cycle, from the first event to the second; the way back to the first is more than twice as long."""
FADE = 0.16
"""Seconds in which what is seen of an event falls to a third."""

Motions = Callable[[Beat], Motion]
Sounds = Callable[[Beat], tuple[Sound, ...]]


def saw(beat: Beat) -> Array:
    """-1 to 1 along the ramp of a cycle and back in its return."""
    part = beat.part()
    return np.where(part < RAMP, 2 * part / RAMP - 1, 1 - 2 * (part - RAMP) / (1 - RAMP))


def rise(beat: Beat) -> Motion:
    return Motion(y=-0.45 * saw(beat))


def glide(beat: Beat) -> tuple[Sound, ...]:
    return (Sound(0.6, octave=1.1 * saw(beat) + 0.6),)


def approach(beat: Beat) -> Motion:
    scale = np.exp(0.75 * saw(beat))
    return Motion(width=scale, height=scale)


def swell(beat: Beat) -> tuple[Sound, ...]:
    return (Sound(np.exp(1.6 * (saw(beat) - 1)), octave=0.3),)


def turns(beat: Beat) -> Array:
    """Whole rounds and the part of one, of a circling whose speed rises steadily from rest and drops to it at once."""
    return np.floor(beat.phase) + beat.part() ** 2


def circle(beat: Beat) -> Motion:
    # the faster, the further out and the hotter: acceleration alone is hard to see in 8 small pictures
    angle, fast = 2 * np.pi * turns(beat), 0.5 + 0.5 * saw(beat)
    radius = 0.1 + 0.4 * fast
    return Motion(x=radius * np.cos(angle), y=radius * np.sin(angle), angle=angle, glow=0.8 * fast)


def tick(beat: Beat) -> tuple[Sound, ...]:
    return (Sound((0.5 + 0.5 * np.cos(2 * np.pi * 6 * turns(beat))) ** 4, octave=1.2),)


def flash(beat: Beat) -> Motion:
    return Motion(glow=0.9 * decay(beat.since(), FADE))


def click(beat: Beat) -> Sound:
    return Sound(decay(beat.since(), 0.025), octave=2.2)


def hop(beat: Beat) -> Motion:
    return Motion(y=-0.5 * decay(beat.since(), FADE))


def thud(beat: Beat) -> Sound:
    return Sound(decay(beat.since(), 0.07), octave=0.6 * decay(beat.since(), 0.03) - 1)


def turn(beat: Beat) -> Motion:
    kick = decay(beat.since(), FADE)
    return Motion(x=0.5 * kick, angle=1.8 * kick, glow=0.7 * kick)


def whirr(beat: Beat) -> Sound:
    return Sound(0.8 * decay(beat.since(), 0.06), octave=1.5, breath=1)


def squash(beat: Beat) -> Motion:
    flat = decay(beat.since(), FADE)
    return Motion(y=0.5 * flat, width=1 + 0.8 * flat, height=1 - 0.6 * flat)


def boing(beat: Beat) -> Sound:
    return Sound(0.9 * decay(beat.since(), 0.1), octave=-0.6 + 0.15 * np.sin(70 * beat.since()))


def backwards(beat: Beat) -> Beat:
    """The beat whose phase runs against time."""
    return Beat(-beat.phase, beat.rate)


def later(beat: Beat) -> Beat:
    """The beat of what happens GAP of a cycle later."""
    return Beat(beat.phase - np.float32(GAP), beat.rate)


class Action(NamedTuple):
    """A class: the motion that it shares with its twin, and what tells it from the twin."""

    motion: str
    direction: str
    """forwards or backwards; empty where the order of events makes the difference."""
    order: str
    """Which of the two events, that of the high or of the low sound, is first; empty where the direction of time makes
    the difference."""
    move: Motions
    sound: Sounds


def directed(motion: str, direction: str, move: Motions, sound: Sounds) -> Action:
    if direction == "forwards":
        return Action(motion, direction, "", move, sound)
    return Action(motion, direction, "", lambda beat: move(backwards(beat)), lambda beat: sound(backwards(beat)))


Event = tuple[Callable[[Beat], Motion], Callable[[Beat], Sound]]


def ordered(motion: str, order: str, first: Event, second: Event) -> Action:
    def move(beat: Beat) -> Motion:
        one, other, rest = first[0](beat), second[0](later(beat)), Motion()
        return Motion(*(a + b - c for a, b, c in zip(one, other, rest, strict=True)))

    return Action(motion, "", order, move, lambda beat: (first[1](beat), second[1](later(beat))))


_FLASH, _HOP, _TURN, _SQUASH = (flash, click), (hop, thud), (turn, whirr), (squash, boing)

# Twins stand side by side.
ACTIONS = {
    "rise": directed("lift", "forwards", rise, glide),
    "fall": directed("lift", "backwards", rise, glide),
    "approach": directed("zoom", "forwards", approach, swell),
    "recede": directed("zoom", "backwards", approach, swell),
    "speed-up": directed("circle", "forwards", circle, tick),
    "slow-down": directed("circle", "backwards", circle, tick),
    "flash-hop": ordered("flash and hop", "high first", _FLASH, _HOP),
    "hop-flash": ordered("flash and hop", "low first", _HOP, _FLASH),
    "turn-squash": ordered("turn and squash", "high first", _TURN, _SQUASH),
    "squash-turn": ordered("turn and squash", "low first", _SQUASH, _TURN),
}
