"""The data set `synthetic-hard`, on which rows can differ; docs/synthetic_hard.md says what it is and why.

Five motions, each in two directions of time or orders of two events. A motion of the first kind is a function of one
phase, for its picture and for its sound. Its twin has the phase run backwards, so that one is the other reversed in
time, exactly and by construction. What is seen and heard besides the action is drawn without regard to it, and its
parts without regard to each other.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from gdt.preprocess.synthetic.beat import Array, Beat, Motion, Sound, Tempo, decay
from gdt.preprocess.synthetic.drawing import (
    SAMPLE_RATE,
    Frames,
    Thing,
    Times,
    backdrop,
    draw_ground,
    draw_thing,
    paint,
    room,
    tone,
    wavetable,
)  # fmt: skip
from gdt.preprocess.synthetic.files import SPLITS, GeneratedSet, Task, Video

RAMP = 0.9
"""The share of a cycle that a slow ramp takes; the quick return takes the rest: about one frame of a small clip."""
GAP = 0.3
"""Of a cycle, from the first event to the second; the way back to the first is more than twice as long."""
FADE = 0.16
"""Seconds in which what is seen of an event falls to a third."""

Motions = Callable[[Beat], Motion]
Sounds = Callable[[Beat], tuple[Sound, ...]]
TEMPI = {"slow": 1.3, "medium": 1.1, "fast": 0.9}
"""Seconds of a cycle, which fits into a clip of 0.97 s."""
COLOURS = ("red", "yellow", "green", "cyan", "blue", "purple")
"""Hues, evenly spaced."""
TIMBRES = ("pure", "soft", "bright", "sharp")
"""From a tone almost without harmonics to one whose harmonics are almost as strong, evenly spaced."""
SOUNDS = ("sync", "late", "missing", "offscreen")
IDLE = ("drift", "circle", "wobble", "walk")
"""How things move that do nothing."""
WALK = 0.5
"""Seconds between the turns of a random walk."""
RIM = 0.75
"""Of a thing's radius, where its marker is: without it a disc would not be seen to turn."""


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


@dataclass(frozen=True)
class SyntheticHard(GeneratedSet):
    """Settings of the generated data set on which rows can differ; equal settings give equal files.

    Those from `distractors` on make it harder; docs/synthetic_hard.md has the record of how they were chosen.
    """

    name: ClassVar[str] = "synthetic-hard"
    format: ClassVar[int] = 2

    distractors: int = 1
    """The most other things that move, and never sound: each video has one to so many; 0 for none."""
    late: float = 0.05
    """Share of videos whose sound comes 0.1 to 0.3 s after the picture."""
    missing: float = 0.05
    """Share of videos in which only the room is heard."""
    offscreen: float = 0.1
    """Share of videos in which another action is heard, too: of another class, unseen, quieter or as loud."""
    noise: float = 0.01
    """The loudest that the room is, as a deviation; the action's sound peaks at 0.35 to 0.7."""

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(ACTIONS)

    def wrong(self) -> dict[str, bool]:
        shares = {name: getattr(self, name) for name in SOUNDS[1:]}
        return {
            "distractors must not be negative": self.distractors < 0,
            f"noise is {self.noise}; it must be 0.002 to 1": not 0.002 <= self.noise <= 1,
            f"{', '.join(f'{name} is {share}' for name, share in shares.items())}; they are shares of the videos, and "
            "1 at most together": min(shares.values()) < 0 or sum(shares.values()) > 1,
        }

    def render(self, split: str, action: str, n: int) -> Video:
        scene = draw_scene(self, split, action, n)
        return Video(picture(scene, self), sound(scene, self))

    def beside(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Every label of every video."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for number, task in enumerate(tasks):
            labels = draw_scene(self, task.split, task.action, task.n).labels
            if number == 0:
                rows.writerow(["path", *labels])
            rows.writerow([f"{task.split}/{task.action}/{task.path.name}", *labels.values()])
        return {"labels.csv": text.getvalue()}


@dataclass(frozen=True)
class Idle:
    """A thing that does nothing: how it looks, and how it moves all the same."""

    thing: Thing
    kind: str
    rate: float
    """Of a circle or a wobble, in Hz: slower than any action; negative in the other sense."""
    lead: float
    """Radians."""
    steps: Array
    """Of a random walk, [turns, 2]."""


@dataclass(frozen=True)
class Voice:
    """What is heard of an action, on screen or off."""

    action: str
    tempo: Tempo
    pitch: float
    """0 to 1, low to high."""
    timbre: float
    """0 to 1, pure to sharp."""
    loudness: float
    """0 for silence."""
    delay: float
    """Seconds behind the picture."""

    def beat(self, times: Times) -> Beat:
        """The beat that is heard at times [N] in seconds."""
        return self.tempo.beat(times - self.delay)


@dataclass(frozen=True)
class Scene:
    """All that is drawn at random for one video, save noise."""

    action: str
    tempo: Tempo
    pace: str
    """Of TEMPI."""
    actor: Thing
    colour: str
    """Of COLOURS."""
    timbre: str
    """Of TIMBRES."""
    mirrored: bool
    """Whether the action is seen the other way round, left to right."""
    idle: tuple[Idle, ...]
    sound: str
    """Of SOUNDS."""
    voices: tuple[Voice, ...]
    texture: float
    """Of the background, coarse (0) to fine (1)."""
    ground: Array
    """Its colours, 0 to 255, [2, 3]."""
    pan: tuple[float, float]
    """Speed of the camera; half the picture's side per second."""
    shake: float
    """Deviation of the camera's shaking; half the picture's side."""
    ambience: float
    """0 to 1, dark rumble to hiss."""
    noise: float
    """Deviation of the room's sound."""
    seeds: tuple[np.random.SeedSequence, ...]
    """Of the streams for picture and sound."""

    @property
    def labels(self) -> dict[str, str]:
        """Every label of the video by its column; an empty one where the action has none."""
        action = ACTIONS[self.action]
        return {
            "action": self.action,
            "motion": action.motion,
            "direction": action.direction,
            "order": action.order,
            "shape": self.actor.shape,
            "colour": self.colour,
            "tempo": self.pace,
            "timbre": self.timbre,
            "sound": self.sound,
        }


def draw_coloured(rng: np.random.Generator, place: float) -> tuple[Thing, str]:
    """A thing, and the name of its colour; actors and others are drawn alike but for how far out they are."""
    number = int(rng.integers(len(COLOURS)))
    hue = number / len(COLOURS) + rng.uniform(-0.03, 0.03)
    return draw_thing(rng, hue, (0.24, 0.34), place, drift=0.15), COLOURS[number]


def draw_idle(rng: np.random.Generator, seconds: float) -> Idle:
    return Idle(
        thing=draw_coloured(rng, place=0.7)[0],
        kind=str(rng.choice(IDLE)),
        rate=rng.uniform(0.2, 0.5) * (-1) ** int(rng.integers(2)),
        lead=rng.uniform(0, 2 * np.pi),
        steps=rng.normal(scale=0.12, size=(math.ceil(seconds / WALK) + 1, 2)),
    )


def draw_voice(rng: np.random.Generator, action: str) -> tuple[Voice, str, str]:
    """An action at a pace and with a timbre, and the names of these two."""
    pace, timbre = str(rng.choice(tuple(TEMPI))), int(rng.integers(len(TIMBRES)))
    # its rate is constant: period and lead say nothing
    tempo = Tempo(rng.uniform(0, 1), rng.uniform(0.96, 1.04) / TEMPI[pace], depth=0, period=1, lead=0)
    loudness = math.exp(rng.uniform(math.log(0.35), math.log(0.7)))
    voice = Voice(action, tempo, rng.uniform(), timbre / (len(TIMBRES) - 1), loudness, delay=0)
    return voice, pace, TIMBRES[timbre]


def draw_scene(settings: SyntheticHard, split: str, action: str, n: int) -> Scene:
    """The scene of the n-th video of an action in a split, a pure function of its arguments."""
    key = [settings.seed, SPLITS.index(split), tuple(ACTIONS).index(action), n]
    draws, *noise = np.random.SeedSequence(key).spawn(3)
    rng = np.random.default_rng(draws)
    voice, pace, timbre = draw_voice(rng, action)
    actor, actor_colour = draw_coloured(rng, place=0.15)
    others = int(rng.integers(1, settings.distractors + 1)) if settings.distractors else 0
    idle = tuple(draw_idle(rng, settings.seconds) for _ in range(others))
    shares = settings.late, settings.missing, settings.offscreen
    sound = str(rng.choice(SOUNDS, p=(1 - sum(shares), *shares)))
    ground = draw_ground(rng, rng.uniform)
    return Scene(
        action=action,
        tempo=voice.tempo,
        pace=pace,
        actor=actor,
        colour=actor_colour,
        timbre=timbre,
        mirrored=bool(rng.integers(2)),
        idle=idle,
        sound=sound,
        voices=_heard(rng, sound, voice),
        texture=rng.uniform(),
        ground=ground,
        pan=tuple(rng.uniform(-0.1, 0.1, 2).tolist()),
        shake=0.005,
        ambience=rng.uniform(),
        noise=math.exp(rng.uniform(math.log(0.002), math.log(settings.noise))),
        seeds=tuple(noise),
    )


def _heard(rng: np.random.Generator, sound: str, voice: Voice) -> tuple[Voice, ...]:
    if sound == "late":
        return (replace(voice, delay=rng.uniform(0.1, 0.3)),)
    if sound == "missing":
        return ()
    if sound == "offscreen":
        other, _, _ = draw_voice(rng, str(rng.choice([name for name in ACTIONS if name != voice.action])))
        return voice, replace(other, loudness=voice.loudness * rng.uniform(0.4, 1))
    return (voice,)


def act(scene: Scene, times: Times) -> Motion:
    """Where the actor is and how it looks at times [T] in seconds."""
    motion = ACTIONS[scene.action].move(scene.tempo.beat(times))
    sense = -1 if scene.mirrored else 1
    x, y = sense * np.asarray(motion.x) + scene.actor.place[0], np.asarray(motion.y) + scene.actor.place[1]
    return motion._replace(x=x, y=y, angle=sense * np.asarray(motion.angle))


def idle(thing: Idle, times: Times) -> Motion:
    """The same of a thing that does nothing; reversed in time, these motions are of their own kind again."""
    (x, y), (drift_x, drift_y) = thing.thing.place, thing.thing.drift
    turned = 2 * np.pi * thing.rate * times + thing.lead
    if thing.kind == "drift":
        return Motion(x=x + drift_x * (times - times.mean()), y=y + drift_y * (times - times.mean()))
    if thing.kind == "circle":
        return Motion(x=x + 0.2 * np.cos(turned), y=y + 0.2 * np.sin(turned))
    if thing.kind == "wobble":
        return Motion(x=x + 0.05 * np.sin(turned), y=y, angle=0.6 * np.sin(turned))
    knots = np.cumsum(thing.steps, axis=0) - thing.steps.sum(axis=0) / 2
    walked = [np.interp(times, WALK * np.arange(len(knots)), knots[:, k]) for k in (0, 1)]
    return Motion(x=x + walked[0], y=y + walked[1])


def paint_marked(frames: Frames, thing: Thing, motion: Motion) -> None:
    """Draw a thing and, on its rim, the marker that shows how far it has turned, into `frames` in place."""
    paint(frames, thing, motion)
    at = np.asarray(motion.angle) + thing.angle
    rim = RIM * thing.radius
    x, y = motion.x + rim * motion.width * np.cos(at), motion.y + rim * motion.height * np.sin(at)
    white = np.full((2, 3), 255, np.float32)
    paint(frames, replace(thing, shape="circle", radius=0.3 * thing.radius, colours=white), motion._replace(x=x, y=y))


def picture(scene: Scene, settings: SyntheticHard) -> Frames:
    """The frames of a scene: uint8 [T, size, size, 3], frame k at k / fps seconds."""
    rng = np.random.default_rng(scene.seeds[0])
    times = np.arange(round(settings.seconds * settings.fps)) / settings.fps
    shake_x, shake_y = rng.normal(scale=scene.shake, size=(2, len(times))).astype(np.float32)
    pan_x, pan_y = (times * speed for speed in scene.pan)
    frames = backdrop(scene.texture, scene.ground, pan_x + shake_x, pan_y + shake_y, settings.size, rng)
    # the actor is in front: what it does is the one thing that is never hidden
    moving = [*((other.thing, idle(other, times)) for other in scene.idle), (scene.actor, act(scene, times))]
    for thing, motion in moving:
        paint_marked(frames, thing, motion._replace(x=motion.x - shake_x, y=motion.y - shake_y))
    return frames


def heard(voice: Voice, times: Times, rng: np.random.Generator) -> Array:
    """The waveform of a voice at times [samples] in seconds."""
    table, mixed = wavetable(voice.timbre, rng), np.zeros(len(times), np.float32)
    for part in ACTIONS[voice.action].sound(voice.beat(times)):
        wave = tone(part, voice.pitch, table, times, times[-1] + 0.002, rng)
        mixed += (voice.loudness * part.loudness * wave).astype(np.float32)
    return mixed


def sound(scene: Scene, settings: SyntheticHard) -> Array:
    """The waveform of a scene, float32 [samples] within [-1, 1] at `SAMPLE_RATE`."""
    rng = np.random.default_rng(scene.seeds[1])
    times = np.arange(round(settings.seconds * SAMPLE_RATE)) / SAMPLE_RATE
    mixed = scene.noise * room(scene.ambience, len(times), rng)
    for voice in scene.voices:
        mixed += heard(voice, times, rng)
    return np.clip(mixed, -1, 1).astype(np.float32)
