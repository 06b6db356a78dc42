"""The data set `synthetic-hard`, on which compositions can differ; see docs/synthetic_hard.md.

Five motions, each in two directions of time or two orders of its events. A directed motion and its sound are functions
of one phase, which its twin runs backwards, so that the twins are exact time reversals. Everything else is drawn
independently of the action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from gdt.preprocess.synthetic import drawing
from gdt.preprocess.synthetic.beat import Array, Beat, Motion, Sound, Tempo, decay
from gdt.preprocess.synthetic.files import SPLITS, GeneratedSet, Task, Video, csv_text

RAMP = 0.9
"""Share of a cycle taken by its slow ramp; the quick return takes about one frame of a small clip."""
GAP = 0.3
"""Share of a cycle from the first event to the second; the gap back to the first is more than twice as long."""
FADE = 0.16
"""Seconds in which the visible part of an event decays to a third."""

Motions = Callable[[Beat], Motion]
Sounds = Callable[[Beat], tuple[Sound, ...]]
TEMPI = {"slow": 1.3, "medium": 1.1, "fast": 0.9}
"""Seconds per cycle, for clips of 0.97 s."""
COLOURS = ("red", "yellow", "green", "cyan", "blue", "purple")
TIMBRES = ("pure", "soft", "bright", "sharp")
"""From almost no harmonics to strong ones, evenly spaced."""
SOUNDS = ("sync", "late", "missing", "offscreen")
IDLE = ("drift", "circle", "wobble", "walk")
"""Motions of distractors."""
WALK = 0.5
"""Seconds between the turns of a random walk."""
RIM = 0.75
"""Distance of the marker, in radii: without it, the rotation of a disc is invisible."""


def saw(beat: Beat) -> Array:
    """Rises from -1 to 1 during the ramp of a cycle, then falls back."""
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
    """Number of rounds around a circle; the speed rises steadily from 0 and drops back at the end of each."""
    return np.floor(beat.phase) + beat.part() ** 2


def circle(beat: Beat) -> Motion:
    # faster is further out and brighter: acceleration alone is hard to see in 8 small frames
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
    """The beat with its phase reversed."""
    return Beat(-beat.phase, beat.rate)


def later(beat: Beat) -> Beat:
    """The beat with events GAP of a cycle later."""
    return Beat(beat.phase - np.float32(GAP), beat.rate)


class Action(NamedTuple):
    """A class: the motion shared with its twin, and the direction or order that differs."""

    motion: str
    direction: str
    """forwards or backwards; empty if the order differs."""
    order: str
    """high first or low first, by the pitch of the first event; empty if the direction differs."""
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

# Twins are adjacent.
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
    """Actions in pairs that differ only in the direction of time or in the order of events.

    Equal settings give equal files. The settings from `distractors` on make it harder; docs/synthetic_hard.md explains
    their choice.
    """

    name: ClassVar[str] = "synthetic-hard"
    format: ClassVar[int] = 2

    distractors: int = 1
    """Maximum number of moving, silent distractors; each video has at least one, unless this is 0."""
    late: float = 0.05
    """Share of videos whose sound is 0.1 to 0.3 s late."""
    missing: float = 0.05
    """Share of videos with room noise only."""
    offscreen: float = 0.1
    """Share of videos that add the sound of an unseen action of another class, at most as loud as the visible one."""
    noise: float = 0.01
    """Maximum standard deviation of the room noise; actions peak at 0.35 to 0.7."""

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(ACTIONS)

    def checks(self) -> dict[str, bool]:
        shares = {name: getattr(self, name) for name in SOUNDS[1:]}
        values = ", ".join(f"--{name} is {share}" for name, share in shares.items())
        return {
            f"--distractors is {self.distractors}; it must be 0 or more": self.distractors >= 0,
            f"--noise is {self.noise}; it must be 0.002 to 1": 0.002 <= self.noise <= 1,
            f"{values}; these shares must be 0 or more, and at most 1 in total": min(shares.values()) >= 0
            and sum(shares.values()) <= 1,
        }

    def render(self, split: str, action: str, n: int) -> Video:
        scene = draw_scene(self, split, action, n)
        return Video(picture(scene, self), sound(scene, self))

    def metadata(self, tasks: Sequence[Task]) -> dict[str, str]:
        """All labels of every video."""
        labelled = [(task, draw_scene(self, task.split, task.action, task.n).labels) for task in tasks]
        header = [["path", *labels] for _, labels in labelled[:1]]
        rows = [[f"{task.split}/{task.action}/{task.path.name}", *labels.values()] for task, labels in labelled]
        return {"labels.csv": csv_text(header + rows)}


@dataclass(frozen=True)
class Idle:
    """A distractor: how it looks and moves."""

    thing: drawing.Thing
    kind: str
    rate: float
    """Of a circle or wobble, Hz; slower than any action, negative for the other direction."""
    lead: float
    """Radians."""
    steps: Array
    """Of a random walk, [turns, 2]."""


@dataclass(frozen=True)
class Voice:
    """The sound of an action, on screen or off."""

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

    def beat(self, times: drawing.Times) -> Beat:
        """The audible beat at times [N] in seconds."""
        return self.tempo.beat(times - self.delay)


@dataclass(frozen=True)
class Scene:
    """Everything random about one video, except noise."""

    action: str
    tempo: Tempo
    pace: str
    actor: drawing.Thing
    colour: str
    timbre: str
    mirrored: bool
    """Whether the action is flipped horizontally."""
    idle: tuple[Idle, ...]
    sound: str
    voices: tuple[Voice, ...]
    texture: float
    """Of the background, coarse (0) to fine (1)."""
    ground: Array
    """Colours of the background, 0 to 255, [2, 3]."""
    pan: tuple[float, float]
    """Speed of the camera, in half the frame's side per second."""
    shake: float
    """Standard deviation of the camera's jitter, in half the frame's side."""
    ambience: float
    """0 to 1, dark rumble to hiss."""
    noise: float
    """Standard deviation of the room noise."""
    seeds: tuple[np.random.SeedSequence, ...]
    """Of the noise in video and audio."""

    @property
    def labels(self) -> dict[str, str]:
        """All labels by column; empty if the action has none."""
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


def draw_coloured(rng: np.random.Generator, position: float) -> tuple[drawing.Thing, str]:
    """An object and the name of its colour; actors and distractors differ only in position."""
    number = int(rng.integers(len(COLOURS)))
    hue = number / len(COLOURS) + rng.uniform(-0.03, 0.03)
    return drawing.draw_thing(rng, hue, (0.24, 0.34), position, drift=0.15), COLOURS[number]


def draw_idle(rng: np.random.Generator, seconds: float) -> Idle:
    return Idle(
        thing=draw_coloured(rng, position=0.7)[0],
        kind=str(rng.choice(IDLE)),
        rate=rng.uniform(0.2, 0.5) * (-1) ** int(rng.integers(2)),
        lead=rng.uniform(0, 2 * np.pi),
        steps=rng.normal(scale=0.12, size=(math.ceil(seconds / WALK) + 1, 2)),
    )


def draw_voice(rng: np.random.Generator, action: str) -> tuple[Voice, str, str]:
    """The voice of an action, and the names of its pace and timbre."""
    pace, timbre = str(rng.choice(tuple(TEMPI))), int(rng.integers(len(TIMBRES)))
    # depth 0 is a constant rate: period and lead have no effect
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
    actor, actor_colour = draw_coloured(rng, position=0.15)
    others = int(rng.integers(1, settings.distractors + 1)) if settings.distractors else 0
    idle = tuple(draw_idle(rng, settings.seconds) for _ in range(others))
    shares = settings.late, settings.missing, settings.offscreen
    sound = str(rng.choice(SOUNDS, p=(1 - sum(shares), *shares)))
    ground = drawing.draw_ground(rng, rng.uniform)
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
        voices=_draw_voices(rng, sound, voice),
        texture=rng.uniform(),
        ground=ground,
        pan=tuple(rng.uniform(-0.1, 0.1, 2).tolist()),
        shake=0.005,
        ambience=rng.uniform(),
        noise=math.exp(rng.uniform(math.log(0.002), math.log(settings.noise))),
        seeds=tuple(noise),
    )


def _draw_voices(rng: np.random.Generator, sound: str, voice: Voice) -> tuple[Voice, ...]:
    if sound == "late":
        return (replace(voice, delay=rng.uniform(0.1, 0.3)),)
    if sound == "missing":
        return ()
    if sound == "offscreen":
        other, _, _ = draw_voice(rng, str(rng.choice([name for name in ACTIONS if name != voice.action])))
        return voice, replace(other, loudness=voice.loudness * rng.uniform(0.4, 1))
    return (voice,)


def act(scene: Scene, times: drawing.Times) -> Motion:
    """The actor's motion at times [T] in seconds."""
    motion = ACTIONS[scene.action].move(scene.tempo.beat(times))
    sense = -1 if scene.mirrored else 1
    x, y = sense * np.asarray(motion.x) + scene.actor.position[0], np.asarray(motion.y) + scene.actor.position[1]
    return motion._replace(x=x, y=y, angle=sense * np.asarray(motion.angle))


def idle(thing: Idle, times: drawing.Times) -> Motion:
    """A distractor's motion; reversed in time, it is of the same kind."""
    (x, y), (drift_x, drift_y) = thing.thing.position, thing.thing.drift
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


def paint_marked(frames: drawing.Frames, thing: drawing.Thing, motion: Motion) -> None:
    """Draw an object into `frames` in place, with a marker near its rim that shows its angle."""
    drawing.paint(frames, thing, motion)
    at = np.asarray(motion.angle) + thing.angle
    rim = RIM * thing.radius
    x, y = motion.x + rim * motion.width * np.cos(at), motion.y + rim * motion.height * np.sin(at)
    white = np.full((2, 3), 255, np.float32)
    drawing.paint(
        frames, replace(thing, shape="circle", radius=0.3 * thing.radius, colours=white), motion._replace(x=x, y=y)
    )


def picture(scene: Scene, settings: SyntheticHard) -> drawing.Frames:
    """The frames of a scene: uint8 [T, size, size, 3], frame k at k / fps seconds."""
    rng = np.random.default_rng(scene.seeds[0])
    times = np.arange(round(settings.seconds * settings.fps)) / settings.fps
    shake_x, shake_y = rng.normal(scale=scene.shake, size=(2, len(times))).astype(np.float32)
    pan_x, pan_y = (times * speed for speed in scene.pan)
    frames = drawing.backdrop(scene.texture, scene.ground, pan_x + shake_x, pan_y + shake_y, settings.size, rng)
    # the actor is last, in front, and never hidden
    moving = [*((other.thing, idle(other, times)) for other in scene.idle), (scene.actor, act(scene, times))]
    for thing, motion in moving:
        paint_marked(frames, thing, motion._replace(x=motion.x - shake_x, y=motion.y - shake_y))
    return frames


def voice_wave(voice: Voice, times: drawing.Times, rng: np.random.Generator) -> Array:
    """The waveform of a voice at times [samples] in seconds."""
    table, mixed = drawing.wavetable(voice.timbre, rng), np.zeros(len(times), np.float32)
    for part in ACTIONS[voice.action].sound(voice.beat(times)):
        wave = drawing.tone(part, voice.pitch, table, times, times[-1] + 0.002, rng)
        mixed += (voice.loudness * part.loudness * wave).astype(np.float32)
    return mixed


def sound(scene: Scene, settings: SyntheticHard) -> Array:
    """The waveform of a scene, float32 [samples] within [-1, 1] at `SAMPLE_RATE`."""
    rng = np.random.default_rng(scene.seeds[1])
    times = np.arange(round(settings.seconds * drawing.SAMPLE_RATE)) / drawing.SAMPLE_RATE
    mixed = scene.noise * drawing.room(scene.ambience, len(times), rng)
    for voice in scene.voices:
        mixed += voice_wave(voice, times, rng)
    return np.clip(mixed, -1, 1).astype(np.float32)
