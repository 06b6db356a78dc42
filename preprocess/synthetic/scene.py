"""Everything about one video that is drawn at random, and its rendering: frames, waveform, captions."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gdt.common.errors import UserError
from gdt.preprocess.synthetic.actions import ACTIONS, Array, Motion, Tempo

SPLITS = ("train", "val", "test")
SAMPLE_RATE = 24_000  # Hz, mono
SUPERSAMPLING = 2  # texels per pixel of the background, so that it pans in steps of half a pixel
WAVETABLE = 2048  # samples of one period of the tone

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


def backdrop(texture: float, colours: Array, x: Array, y: Array, size: int, rng: np.random.Generator) -> Frames:
    """Background of two colours [2, 3], coarse (0) to fine (1), seen from x, y [T]; uint8 [T, size, size, 3]."""
    steps = np.round(np.stack([x, y], 1) * (size / 2 * SUPERSAMPLING)).astype(int)
    steps -= steps.min(axis=0)
    span = SUPERSAMPLING * size
    width, height = steps.max(axis=0) + span
    fineness = (2 + 10 * texture) / (size / 2 * SUPERSAMPLING)
    along, down = (np.arange(n)[:, None] * rng.normal(scale=fineness, size=6) for n in (width, height))
    down += rng.uniform(0, 2 * np.pi, 6)
    # The sum of six plane waves sin(along + down), by the addition theorem two small matrix products.
    waves = (np.sin(down) @ np.cos(along).T + np.cos(down) @ np.sin(along).T).astype(np.float32)[..., None]
    blend = np.clip(0.5 + waves / 5, 0, 1)
    canvas = colours[0] + blend * (colours[1] - colours[0])
    canvas = np.round(canvas).astype(np.uint8)
    return np.stack([canvas[j : j + span : SUPERSAMPLING, i : i + span : SUPERSAMPLING] for i, j in steps])


def picture(scene: Scene, settings: Synthetic) -> Frames:
    """The frames of a scene: uint8 [T, size, size, 3], frame k at k / fps seconds."""
    rng = np.random.default_rng(scene.seeds[0])
    times = np.arange(round(settings.seconds * settings.fps)) / settings.fps
    shake_x, shake_y = rng.normal(scale=0.005, size=(2, len(times))).astype(np.float32)
    pan_x, pan_y = (times * speed for speed in rng.uniform(-0.1, 0.1, 2))
    camera = pan_x + shake_x, pan_y + shake_y
    frames = backdrop(scene.background, scene.background_colours, *camera, settings.size, rng)
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
