"""Everything about one video that is drawn at random, and the labels that follow from it.

What is seen and heard besides the action is drawn without regard to it, and its parts without regard to each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gdt.common.errors import UserError
from gdt.preprocess.synthetic.actions import Array, Beat, Tempo
from gdt.preprocess.synthetic.hard.actions import ACTIONS
from gdt.preprocess.synthetic.scene import SHAPES, SPLITS, Thing, colour

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


@dataclass(frozen=True)
class SyntheticHard:
    """Settings of the generated data set on which rows can differ; equal settings give equal files.

    Those from `distractors` on make it harder; docs/synthetic_hard.md has the record of how they were chosen.
    """

    seed: int = 0
    """Seed of everything random. Every video also has its own stream, so that it depends on no other video."""
    train: int = 200
    """Training videos per class."""
    val: int = 20
    """Validation videos per class."""
    test: int = 20
    """Test videos per class."""
    seconds: float = 4.0
    """Duration of every video in seconds: room for several time shifts of a 1-s clip."""
    fps: int = 15
    """Frames per second: twice as many as the small clips see."""
    size: int = 64
    """Height and width in pixels; even, as 4:2:0 chroma needs."""
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

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in SOUNDS[1:]}
        wrong = {
            f"size is {self.size}; it must be even and at least 16": self.size < 16 or self.size % 2 == 1,
            "train, val, test, seed and distractors must not be negative": (
                min(self.train, self.val, self.test, self.seed, self.distractors) < 0
            ),
            "seconds and fps must be positive": self.seconds <= 0 or self.fps <= 0,
            f"noise is {self.noise}; it must be 0.002 to 1": not 0.002 <= self.noise <= 1,
            f"{', '.join(f'{name} is {share}' for name, share in shares.items())}; they are shares of the videos, and "
            "1 at most together": min(shares.values()) < 0 or sum(shares.values()) > 1,
        }
        if reasons := [reason for reason, is_wrong in wrong.items() if is_wrong]:
            raise UserError(f"the settings of the synthetic-hard data set are wrong: {'; '.join(reasons)}.")


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

    def beat(self, times: np.ndarray) -> Beat:
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


def draw_thing(rng: np.random.Generator, place: float) -> tuple[Thing, str]:
    """A thing, and the name of its colour; actors and others are drawn alike but for how far out they are."""
    number = int(rng.integers(len(COLOURS)))
    hue = number / len(COLOURS) + rng.uniform(-0.03, 0.03)
    saturation, direction, fineness = rng.uniform((0.6, 0, 3), (1, 2 * np.pi, 6)).tolist()
    bright, dark = colour(hue, saturation, rng.uniform(0.8, 1)), colour(hue, saturation, rng.uniform(0.2, 0.5))
    thing = Thing(
        shape=str(rng.choice(tuple(SHAPES))),
        radius=rng.uniform(0.24, 0.34),
        colours=np.stack([bright, dark]),
        stripe=(fineness * math.cos(direction), fineness * math.sin(direction)),
        place=tuple(rng.uniform(-place, place, 2).tolist()),
        drift=tuple(rng.uniform(-0.15, 0.15, 2).tolist()),
        angle=rng.uniform(0, 2 * np.pi),
    )
    return thing, COLOURS[number]


def draw_idle(rng: np.random.Generator, seconds: float) -> Idle:
    return Idle(
        thing=draw_thing(rng, place=0.7)[0],
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
    actor, actor_colour = draw_thing(rng, place=0.15)
    idle = tuple(draw_idle(rng, settings.seconds) for _ in range(_some(rng, settings.distractors)))
    shares = settings.late, settings.missing, settings.offscreen
    sound = str(rng.choice(SOUNDS, p=(1 - sum(shares), *shares)))
    ground, other = (colour(rng.uniform(), *rng.uniform((0.1, 0.2), (0.6, 0.8))) for _ in range(2))
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
        ground=np.stack([ground, 0.6 * ground + 0.4 * other]),
        pan=tuple(rng.uniform(-0.1, 0.1, 2).tolist()),
        shake=0.005,
        ambience=rng.uniform(),
        noise=math.exp(rng.uniform(math.log(0.002), math.log(settings.noise))),
        seeds=tuple(noise),
    )


def _some(rng: np.random.Generator, most: int) -> int:
    return int(rng.integers(1, most + 1)) if most else 0


def _heard(rng: np.random.Generator, sound: str, voice: Voice) -> tuple[Voice, ...]:
    if sound == "late":
        return (replace(voice, delay=rng.uniform(0.1, 0.3)),)
    if sound == "missing":
        return ()
    if sound == "offscreen":
        other, _, _ = draw_voice(rng, str(rng.choice([name for name in ACTIONS if name != voice.action])))
        return voice, replace(other, loudness=voice.loudness * rng.uniform(0.4, 1))
    return (voice,)
