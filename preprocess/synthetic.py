"""A generated audio-visual data set: ten actions that can be seen and heard, in real video files.

It stands in for Kinetics where nothing can be downloaded. One *event phase* per video drives motion and sound
together, so what the two modalities share is the action and its timing. Everything else, from the shape and colour of
the object to the pitch and timbre of its sound, is drawn independently of the action: learning within one modality
falls for such nuisances, learning across modalities finds the action.
"""

from __future__ import annotations

import colorsys
import json
import math
import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tyro
from tqdm import tqdm

from pipeline.errors import UserError, exit_with_message

FORMAT = 1  # raise it whenever the same settings give other files
SPLITS = ("train", "val", "test")
SAMPLE_RATE = 24_000  # Hz, mono
GROUP = 25  # videos per ffmpeg process: its start costs more than encoding one video
MARKER = "synthetic.json"
UNFINISHED = ".partial"  # what a name ends in until the file is complete
SUPERSAMPLING = 2  # texels per pixel of the background, so that it pans in steps of half a pixel
WAVETABLE = 2048  # samples of one period of the tone
TAKE_OFF, LANDING = 0.35, 0.8  # of a jump, in cycles

Array = npt.NDArray[np.floating[Any]]
Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Synthetic:
    """Settings of the generated data set; equal settings give equal files."""

    seed: int = 0
    """Seed of everything random. Every video also has its own stream, so that it depends on no other video."""
    train: int = 250
    """Training videos per class. With fewer than about 100, contrastive learning tells instances, not actions."""
    val: int = 20
    """Validation videos per class."""
    test: int = 20
    """Test videos per class."""
    classes: int = 10
    """Number of classes: the first so many of `ACTIONS`."""
    seconds: float = 4.0
    """Duration of every video in seconds: room for several time shifts of a 1-s clip."""
    fps: int = 15
    """Frames per second: enough for the fastest motion, a shake of 7 Hz, and half the work of 30."""
    size: int = 64
    """Height and width in pixels; even, as 4:2:0 chroma needs."""
    nuisance: float = 0.3
    """Probability, for each of size-pitch, hue-timbre and background-ambience, that the sound copies the picture's
    nuisance. It is a shortcut across modalities; from about 0.7 on it hides the action."""

    def __post_init__(self) -> None:
        wrong = {
            f"classes is {self.classes}; it must be 1 to {len(ACTIONS)}": not 1 <= self.classes <= len(ACTIONS),
            f"size is {self.size}; it must be even and at least 16": self.size < 16 or self.size % 2 == 1,
            f"nuisance is {self.nuisance}; it is a probability": not 0 <= self.nuisance <= 1,
            "train, val, test and seed must not be negative": min(self.train, self.val, self.test, self.seed) < 0,
            "seconds and fps must be positive": self.seconds <= 0 or self.fps <= 0,
        }
        if reasons := [reason for reason, is_wrong in wrong.items() if is_wrong]:
            raise UserError(f"the settings of the synthetic data set are wrong: {'; '.join(reasons)}.")


# ---------------------------------------------------------------------------------------------------------------------
# The event phase, and what each action does with it
# ---------------------------------------------------------------------------------------------------------------------


class Beat(NamedTuple):
    """The event phase on a grid of times: `phase` in cycles and `rate`, its derivative, in Hz; both [N]."""

    phase: Array
    rate: Array

    def part(self, events: float = 1, offset: float = 0) -> Array:
        """The share, 0 to 1, of the way from one event to the next, with so many events per cycle."""
        return np.mod(self.phase * np.float32(events) - np.float32(offset), 1)

    def since(self, events: float = 1, offset: float = 0) -> Array:
        """Seconds since the last event, taking the tempo as constant from then on."""
        return self.part(events, offset) / (events * self.rate)

    def wave(self, frequency: float = 1) -> Array:
        """Sine with so many periods per cycle."""
        return np.sin(self.phase * np.float32(2 * np.pi * frequency))

    def triangle(self, frequency: float = 1) -> Array:
        """Triangle wave from -1 to 1 with so many periods per cycle."""
        return 1 - 4 * np.abs(self.part(frequency) - 0.5)


@dataclass(frozen=True)
class Tempo:
    """Event phase phi(t) = start + integral of rate (1 + depth sin(2 pi t / period + lead)): 0.7 to 1.4 Hz."""

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
        """Times in seconds, within the video, at which phase * per_cycle is a whole number."""
        times = np.linspace(0, seconds, round(seconds * 1000) + 1)
        phase = self.beat(times).phase.astype(np.float64) * per_cycle
        return np.interp(np.arange(math.ceil(phase[0]), math.floor(phase[-1]) + 1), phase, times)


class Motion(NamedTuple):
    """Where the object is and how it looks, each a number or [frames]; 1 is half the picture's side, y points down."""

    x: Array | float = 0.0
    y: Array | float = 0.0
    angle: Array | float = 0.0
    width: Array | float = 1.0
    height: Array | float = 1.0
    glow: Array | float = 0.0


class Sound(NamedTuple):
    """How the object sounds, each a number or [samples]: `octave` is relative to the video's pitch."""

    loudness: Array | float
    octave: Array | float = 0.0
    breath: float = 0.0
    """Share of noise around the pitch, against the tone itself."""


def decay(seconds: Array, constant: float) -> Array:
    """Exponential decay of a struck sound or of a glow."""
    return np.exp(-seconds / np.float32(constant))


def bounce(beat: Beat) -> Motion:
    part, squash = beat.part(2), decay(beat.since(2), 0.06)
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
    """How one class moves and sounds, and how a caption says so."""

    verb: str
    motion: Callable[[Beat], Motion]
    sound: Callable[[Beat], Sound]


# At least one event, seen and heard, falls into every second, so that a clip of 1 s can tell the action.
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


# ---------------------------------------------------------------------------------------------------------------------
# The scene: everything about one video that is drawn at random
# ---------------------------------------------------------------------------------------------------------------------


def triangle(x: Array, y: Array) -> Array:
    return np.maximum(np.maximum(0.866 * x - 0.5 * y, -0.866 * x - 0.5 * y), y) - 0.55


def box(x: Array, y: Array, width: float, height: float) -> Array:
    return np.maximum(np.abs(x) - width, np.abs(y) - height)


# Signed distance to the edge of a shape about 1 in radius, negative inside; x, y: [N].
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": lambda x, y: np.hypot(x, y) - 0.9,
    "square": lambda x, y: box(x, y, 0.78, 0.78),
    "triangle": triangle,
    "star": lambda x, y: np.minimum(triangle(x, y), triangle(x, -y)),
    "cross": lambda x, y: np.minimum(box(x, y, 1, 0.36), box(x, y, 0.36, 1)),
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.72) - 0.26,
    "hexagon": lambda x, y: (
        np.maximum(np.maximum(np.abs(0.866 * x + 0.5 * y), np.abs(0.866 * x - 0.5 * y)), np.abs(y)) - 0.82
    ),
}
HUES = ("red", "orange", "lime", "green", "cyan", "blue", "purple", "pink")


@dataclass(frozen=True)
class Thing:
    """Appearance of an object, actor or distractor; lengths in half the picture's side."""

    shape: str
    radius: float
    colours: Array
    """Of the stripes, 0 to 255, [2, 3]."""
    stripe: tuple[float, float]
    """Wave vector of the stripes in radians per radius."""
    place: tuple[float, float]
    drift: tuple[float, float]
    """Speed of distractors, amplitude of the actor's slow wandering; per second or length."""
    angle: float


@dataclass(frozen=True)
class Scene:
    """All that is drawn at random for one video, save noise."""

    action: str
    tempo: Tempo
    actor: Thing
    distractors: tuple[Thing, ...]
    hue: float
    reach: float
    """Factor of the actor's excursions; negative values mirror them left to right."""
    background: float
    """Coarse (0) to fine (1) texture."""
    background_colours: Array
    pitch: float
    """0 to 1, low to high; 1 minus the size, where the sound copies it."""
    timbre: float
    """0 to 1, pure to bright."""
    ambience: float
    """0 to 1, dark rumble to hiss."""
    seeds: tuple[np.random.SeedSequence, ...]
    """Of the streams for picture, sound and text."""


def colour(hue: float, saturation: float, value: float) -> Array:
    return np.array(colorsys.hsv_to_rgb(hue % 1, saturation, value), np.float32) * 255


def draw_thing(rng: np.random.Generator, hue: float, size: float, place: float, drift: float) -> Thing:
    """An object of random shape and stripes; `size` is 0 to 1, `place` and `drift` bound its place and speed."""
    saturation, direction, fineness = rng.uniform((0.6, 0, 3), (1, 2 * np.pi, 6)).tolist()
    bright, dark = colour(hue, saturation, rng.uniform(0.8, 1)), colour(hue, saturation, rng.uniform(0.2, 0.5))
    return Thing(
        shape=str(rng.choice(tuple(SHAPES))),
        radius=0.3 + 0.16 * size,
        colours=np.stack([bright, dark]),
        stripe=(fineness * math.cos(direction), fineness * math.sin(direction)),
        place=tuple(rng.uniform(-place, place, 2).tolist()),
        drift=tuple(rng.uniform(-drift, drift, 2).tolist()),
        angle=rng.uniform(0, 2 * np.pi),
    )


def draw_scene(settings: Synthetic, split: str, action: str, n: int) -> Scene:
    """The scene of the n-th video of an action in a split, a pure function of its arguments."""
    key = [settings.seed, SPLITS.index(split), tuple(ACTIONS).index(action), n]
    draws, *noise = np.random.SeedSequence(key).spawn(4)
    rng = np.random.default_rng(draws)
    start, rate, depth, period, lead = rng.uniform((0, 0.875, 0.1, 3, 0), (2, 1.165, 0.2, 6, 2 * np.pi)).tolist()
    size, hue, background = rng.uniform(size=3).tolist()
    copied = rng.uniform(size=3) < settings.nuisance
    pitch, timbre, ambience = np.where(copied, (1 - size, hue, background), rng.uniform(size=3)).tolist()
    hues = rng.uniform(size=4).tolist()
    distractors = tuple(
        draw_thing(rng, hues[i], rng.uniform(-1.2, -0.4), place=0.9, drift=rng.choice((0, 0.15)))
        for i in range(rng.integers(1, 3))
    )
    # Panning, jitter, contrast of the background and noise are weak on purpose: where they outweigh the motion and the
    # events, cross-modal learning takes far longer to leave its first plateau, a loss of ln(batch).
    ground, other = (colour(h, *rng.uniform((0.1, 0.2), (0.6, 0.8))) for h in hues[2:])
    return Scene(
        action=action,
        tempo=Tempo(start, rate, depth, period, lead),
        actor=draw_thing(rng, hue, size, place=0.15, drift=0.05),
        distractors=distractors,
        hue=hue,
        reach=rng.uniform(0.85, 1.15) * (-1) ** int(rng.integers(2)),
        background=background,
        background_colours=np.stack([ground, 0.6 * ground + 0.4 * other]),
        pitch=pitch,
        timbre=timbre,
        ambience=ambience,
        seeds=tuple(noise),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Rendering
# ---------------------------------------------------------------------------------------------------------------------


def paint(frames: Frames, thing: Thing, motion: Motion) -> None:
    """Draw an object into `frames` [T, H, W, 3] in place, with edges one pixel soft."""
    count, size = frames.shape[:2]
    x, y, angle, width, height, glow = (np.broadcast_to(np.asarray(v, np.float32), count) for v in motion)
    grid = (np.arange(size, dtype=np.float32) + 0.5) * 2 / size - 1
    # Only pixels of the square around the object are computed, as flat arrays [N]. No shape reaches beyond 1.11.
    reach = 1.11 * thing.radius * np.maximum(width, height)[:, None] + 2 / size
    rows, columns = np.abs(grid - y[:, None]) < reach, np.abs(grid - x[:, None]) < reach
    where = np.flatnonzero(rows[:, :, None] & columns[:, None, :]).astype(np.int32)
    line = where // size
    t = line // size
    row, column = line - t * size, where - line * size
    across, down = (grid[column] - x[t]) / width[t], (grid[row] - y[t]) / height[t]
    cos, sin = np.cos(angle + thing.angle)[t] / thing.radius, np.sin(angle + thing.angle)[t] / thing.radius
    local_x, local_y = cos * across + sin * down, cos * down - sin * across
    distance = SHAPES[thing.shape](local_x, local_y) * (thing.radius * np.minimum(width, height)[t] * size / 2)
    stripes = np.clip(0.5 + 1.5 * np.sin(thing.stripe[0] * local_x + thing.stripe[1] * local_y), 0, 1)
    inks = thing.colours[0][:, None] + stripes * (thing.colours[1] - thing.colours[0])[:, None]  # [3, N]
    inks += glow[t] * (255 - inks)
    pixels = frames.reshape(-1, 3)
    under = pixels.take(where, axis=0).T
    mixed = under + np.clip(0.5 - distance, 0, 1) * (inks - under)
    pixels[where] = np.round(mixed).astype(np.uint8).T


def backdrop(scene: Scene, x: Array, y: Array, size: int, rng: np.random.Generator) -> Frames:
    """Textured background seen by a camera at x, y [T]; uint8 [T, size, size, 3]."""
    steps = np.round(np.stack([x, y], 1) * (size / 2 * SUPERSAMPLING)).astype(int)
    steps -= steps.min(axis=0)
    span = SUPERSAMPLING * size
    width, height = steps.max(axis=0) + span
    fineness = (2 + 10 * scene.background) / (size / 2 * SUPERSAMPLING)
    along, down = (np.arange(n)[:, None] * rng.normal(scale=fineness, size=6) for n in (width, height))
    down += rng.uniform(0, 2 * np.pi, 6)
    # The sum of six plane waves sin(along + down), by the addition theorem two small matrix products.
    texture = (np.sin(down) @ np.cos(along).T + np.cos(down) @ np.sin(along).T).astype(np.float32)[..., None]
    blend = np.clip(0.5 + texture / 5, 0, 1)
    canvas = scene.background_colours[0] + blend * (scene.background_colours[1] - scene.background_colours[0])
    canvas = np.round(canvas).astype(np.uint8)
    return np.stack([canvas[j : j + span : SUPERSAMPLING, i : i + span : SUPERSAMPLING] for i, j in steps])


def picture(scene: Scene, settings: Synthetic) -> Frames:
    """The frames of a scene: uint8 [T, size, size, 3], frame k at k / fps seconds."""
    rng = np.random.default_rng(scene.seeds[0])
    times = np.arange(round(settings.seconds * settings.fps)) / settings.fps
    shake_x, shake_y = rng.normal(scale=0.005, size=(2, len(times))).astype(np.float32)
    pan_x, pan_y = (times * speed for speed in rng.uniform(-0.1, 0.1, 2))
    frames = backdrop(scene, pan_x + shake_x, pan_y + shake_y, settings.size, rng)
    for thing in scene.distractors:
        x, y = (place + times * speed for place, speed in zip(thing.place, thing.drift, strict=True))
        paint(frames, thing, Motion(x=x - shake_x, y=y - shake_y))
    motion = ACTIONS[scene.action].motion(scene.tempo.beat(times))
    wander = np.sin(times * 1.5 + scene.tempo.lead), np.cos(times * 1.5 + scene.tempo.lead)
    (place_x, place_y), (drift_x, drift_y) = scene.actor.place, scene.actor.drift
    motion = motion._replace(
        x=scene.reach * motion.x + place_x + drift_x * wander[0] - shake_x,
        y=abs(scene.reach) * motion.y + place_y + drift_y * wander[1] - shake_y,
        angle=math.copysign(1, scene.reach) * np.asarray(motion.angle),
    )
    paint(frames, scene.actor, motion)
    return frames


def wavetable(timbre: float, rng: np.random.Generator) -> Array:
    """One period [WAVETABLE] of a tone of six harmonics, peak 1; a higher `timbre` is brighter."""
    harmonics = np.arange(1, 7)
    strengths = harmonics ** (-3.0 + 2.7 * timbre) * rng.uniform(0.5, 1, 6)
    angles = 2 * np.pi * harmonics * np.arange(WAVETABLE)[:, None] / WAVETABLE + rng.uniform(0, 2 * np.pi, 6)
    period = np.sin(angles) @ strengths
    return (period / np.abs(period).max()).astype(np.float32)


def room(ambience: float, count: int, rng: np.random.Generator) -> Array:
    """Background noise [count] of unit deviation, its spectrum falling less steeply the higher `ambience` is."""
    bins = np.arange(count // 2 + 1, dtype=np.float32)
    spectrum = rng.standard_normal((len(bins), 2), np.float32).view(np.complex64)[:, 0]
    noise = np.fft.irfft(spectrum * np.maximum(bins, 1) ** np.float32(0.9 * (ambience - 1)), count)
    return (noise / noise.std()).astype(np.float32)


def sound(scene: Scene, settings: Synthetic) -> Array:
    """The waveform of a scene, float32 [samples] within [-1, 1] at `SAMPLE_RATE`."""
    rng = np.random.default_rng(scene.seeds[1])
    times = np.arange(round(settings.seconds * SAMPLE_RATE)) / SAMPLE_RATE
    loudness, octave, breath = ACTIONS[scene.action].sound(scene.tempo.beat(times))
    frequency = 250 * 2**scene.pitch * np.exp2(np.broadcast_to(octave, times.shape))
    turns = np.cumsum(frequency / SAMPLE_RATE, dtype=np.float64)
    tone = wavetable(scene.timbre, rng)[(turns * WAVETABLE).astype(np.int32) % WAVETABLE]
    if breath:
        knots = np.arange(0, settings.seconds + 0.001, 0.001)
        tone *= 1 - breath + breath * np.interp(times, knots, rng.normal(size=len(knots))).astype(np.float32)
    level, noise_level, hum_level = np.exp(rng.uniform(np.log((0.35, 0.002, 0.001)), np.log((0.7, 0.01, 0.01))))
    hum = np.sin((times * (2 * np.pi * rng.uniform(50, 120))).astype(np.float32))
    mixed = level * loudness * tone + noise_level * room(scene.ambience, len(times), rng) + hum_level * hum
    return np.clip(mixed, -1, 1).astype(np.float32)


def captions(scene: Scene, settings: Synthetic) -> dict[str, list[float] | list[str]]:
    """What happens when, as HowTo100M has it: `start` and `end` in seconds and `text`; a caption lasts two cycles."""
    rng = np.random.default_rng(scene.seeds[2])
    turns = (t for t in scene.tempo.events(0.5, settings.seconds).tolist() if 0.5 <= t <= settings.seconds - 0.5)
    bounds = [0.0, *turns, settings.seconds]
    middles = (np.array(bounds[1:]) + bounds[:-1]) / 2
    name, shape, verb = HUES[round(scene.hue * 8) % 8], scene.actor.shape, ACTIONS[scene.action].verb
    phrases = ("a {} {} {}", "the {1} {2} {3}", "look how the {} {} {}", "now it {2} {3}")
    paces = ("slowly" if rate < 1 else "quickly" for rate in scene.tempo.beat(middles).rate)
    texts = [str(rng.choice(phrases)).format(name, shape, verb, pace) for pace in paces]
    times = [round(t, 2) for t in bounds]
    return {"start": times[:-1], "end": times[1:], "text": texts}


class Video(NamedTuple):
    """One video before encoding."""

    frames: Frames
    waveform: Array
    captions: dict[str, list[float] | list[str]]


def render(settings: Synthetic, split: str, action: str, n: int) -> Video:
    """The n-th video of an action in a split: uint8 [T, H, W, 3], float32 [samples], and its captions."""
    scene = draw_scene(settings, split, action, n)
    return Video(picture(scene, settings), sound(scene, settings), captions(scene, settings))


# ---------------------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """One video to make, and where."""

    path: Path
    split: str
    action: str
    n: int


def tasks(destination: Path, settings: Synthetic) -> list[Task]:
    """Every video of the set; the file stem is its id, unique over splits and classes."""
    return [
        Task(destination / split / action / f"{split}_{action}_{n:04d}.mp4", split, action, n)
        for split in SPLITS
        for action in tuple(ACTIONS)[: settings.classes]
        for n in range(getattr(settings, split))
    ]


def ffmpeg_command(settings: Synthetic, raw: Sequence[tuple[Path, Path]], outputs: Iterable[Path]) -> list[str]:
    """One process that turns pairs of raw frames and samples into as many MP4 files, the same bytes every time."""
    side, exact = str(settings.size), "+bitexact"
    command = ["ffmpeg", "-nostdin", "-y", "-v", "error"]
    for frames, samples in raw:
        command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{side}x{side}", "-r", str(settings.fps)]
        command += ["-i", str(frames), "-f", "s16le", "-ar", str(SAMPLE_RATE), "-ac", "1", "-i", str(samples)]
    for k, output in enumerate(outputs):
        command += ["-map", f"{2 * k}:v", "-map", f"{2 * k + 1}:a", "-threads", "1", "-fflags", exact]
        command += ["-c:v", "libx264", "-preset", "superfast", "-crf", "20", "-g", "15", "-pix_fmt", "yuv420p"]
        # The default search of the AAC encoder costs as much as all the rest.
        command += ["-c:a", "aac", "-aac_coder", "fast", "-b:a", "64k", "-flags:v", exact, "-flags:a", exact]
        command += ["-movflags", "+faststart", "-f", "mp4", str(output)]
    return command


def make_group(settings: Synthetic, group: Sequence[Task]) -> int:
    """Render and encode a few videos with one ffmpeg process; returns how many. Raises `UserError` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        raw = [(Path(folder, f"{k}.rgb"), Path(folder, f"{k}.pcm")) for k in range(len(group))]
        for (frames, samples), task in zip(raw, group, strict=True):
            video = render(settings, task.split, task.action, task.n)
            video.frames.tofile(frames)
            np.round(video.waveform * 32767).astype("<i2").tofile(samples)
            task.path.parent.mkdir(parents=True, exist_ok=True)
        outputs = [task.path.with_name(task.path.name + UNFINISHED) for task in group]
        run_ffmpeg(ffmpeg_command(settings, raw, outputs))
    for task, output in zip(group, outputs, strict=True):
        output.rename(task.path)
    return len(group)


def run_ffmpeg(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        raise UserError("ffmpeg was not found; install it (it needs libx264) and make sure it is on PATH.") from None
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise UserError(f"ffmpeg could not encode the synthetic videos (exit status {done.returncode}):\n{last}")


def claim(destination: Path, described: dict[str, object]) -> bool:
    """Whether the set is still to be made or completed, under a marker that says with which settings.

    Raises `UserError` if the folder holds a set with other settings, or something else.
    """
    marker, unfinished = destination / MARKER, destination / (MARKER + UNFINISHED)
    found = next((path for path in (marker, unfinished) if path.exists()), None)
    if found is None:
        if taken := [name for name in (*SPLITS, "captions.json") if (destination / name).exists()]:
            raise UserError(
                f"{destination} holds {', '.join(taken)}, but no {MARKER}; it is not a synthetic data set. "
                "Choose another destination."
            )
        destination.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(described, indent=2) + "\n")
        return True
    existing = json.loads(found.read_text())
    if differing := [key for key in described if existing.get(key) != described[key]]:
        what = ", ".join(f"{key} is {existing.get(key)} there, {described[key]} here" for key in differing)
        raise UserError(
            f"{destination} holds a synthetic data set made with other settings: {what}. "
            "Use the same settings, delete the folder, or choose another destination."
        )
    return found == unfinished


def make_all(settings: Synthetic, missing: Sequence[Task], workers: int, progress: bool) -> None:
    groups = [missing[k : k + GROUP] for k in range(0, len(missing), GROUP)]
    with tqdm(total=len(missing), desc="synthetic videos", unit="video", disable=not progress) as bar:
        if min(workers, len(groups)) <= 1:
            for group in groups:
                bar.update(make_group(settings, group))
            return
        # Spawned, not forked: the caller may have started threads.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(groups)), mp_context=context) as pool:
            try:
                for done in as_completed([pool.submit(make_group, settings, group) for group in groups]):
                    bar.update(done.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def generate(
    destination: Path, settings: Synthetic = Synthetic(), workers: int | None = None, progress: bool = True
) -> None:
    """Make the data set: `<split>/<class>/<id>.mp4`, `captions.json` and, once complete, `synthetic.json`.

    A complete set with the same settings is left alone, a half-made one completed. `workers` processes render and
    encode, by default one per CPU core. Raises `UserError` if the destination is taken or ffmpeg fails.
    """
    described: dict[str, object] = {"format": FORMAT, **asdict(settings)}
    if not claim(destination, described):
        return
    every = tasks(destination, settings)
    missing = [task for task in every if not task.path.exists()]
    make_all(settings, missing, workers or len(os.sched_getaffinity(0)), progress)
    spoken = {t.path.stem: captions(draw_scene(settings, t.split, t.action, t.n), settings) for t in every}
    (destination / "captions.json").write_text(json.dumps(spoken) + "\n")
    (destination / (MARKER + UNFINISHED)).rename(destination / MARKER)


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(generate, config=(tyro.conf.OmitArgPrefixes,)))
