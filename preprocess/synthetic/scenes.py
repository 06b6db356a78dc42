"""Drawing and sound of synthetic videos: objects, backgrounds, tones and room noise."""

import colorsys
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdt.preprocess.synthetic.actions import Array, Motion, Sound

SOUND_RATE = 24_000  # Hz, mono
SUPERSAMPLING = 2  # of the background, to pan in steps of half a pixel
WAVETABLE = 2048  # samples of one period of the tone
PITCH = 250.0  # Hz, of a tone with pitch 0

Frames = npt.NDArray[np.uint8]
Times = npt.NDArray[np.float64]


def triangle(x: Array, y: Array) -> Array:
    return np.maximum(np.maximum(0.866 * x - 0.5 * y, -0.866 * x - 0.5 * y), y) - 0.55


def box(x: Array, y: Array, width: float, height: float) -> Array:
    return np.maximum(np.abs(x) - width, np.abs(y) - height)


# Signed distance to the edge of a shape of about radius 1, negative inside; x, y: [N].
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


@dataclass(frozen=True)
class Thing:
    """Appearance of an object, actor or distractor; lengths in half the frame's side."""

    shape: str
    radius: float
    colours: Array
    """Colours of the stripes, 0 to 255, [2, 3]."""
    stripe: tuple[float, float]
    """Wave vector of the stripes in radians per radius."""
    position: tuple[float, float]
    drift: tuple[float, float]
    """Speed of a distractor per second; amplitude of the actor's slow wandering."""
    angle: float


def colour(hue: float, saturation: float, value: float) -> Array:
    return np.array(colorsys.hsv_to_rgb(hue % 1, saturation, value), np.float32) * 255


def draw_thing(rng: np.random.Generator, hue: float, radius: float, position: float, drift: float) -> Thing:
    """An object of random shape, stripes, position and drift."""
    saturation, direction, fineness = rng.uniform((0.6, 0, 3), (1, 2 * np.pi, 6)).tolist()
    bright = colour(hue, saturation, rng.uniform(0.8, 1))
    dark = colour(hue, saturation, rng.uniform(0.2, 0.5))
    return Thing(
        shape=str(rng.choice(tuple(SHAPES))),
        radius=radius,
        colours=np.stack([bright, dark]),
        stripe=(fineness * math.cos(direction), fineness * math.sin(direction)),
        position=tuple(rng.uniform(-position, position, 2).tolist()),
        drift=tuple(rng.uniform(-drift, drift, 2).tolist()),
        angle=rng.uniform(0, 2 * np.pi),
    )


def paint(frames: Frames, thing: Thing, motion: Motion) -> None:
    """Draw an object into `frames` [T, H, W, 3] in place, with edges one pixel soft."""
    count, size = frames.shape[:2]
    x, y, angle, width, height, glow = (np.broadcast_to(np.asarray(v, np.float32), count) for v in motion)
    grid = (np.arange(size, dtype=np.float32) + 0.5) * 2 / size - 1
    # Only pixels of the square around the object are computed, as flat arrays [N]; shapes are within 1.11.
    reach = 1.11 * thing.radius * np.maximum(width, height)[:, None] + 2 / size
    rows = np.abs(grid - y[:, None]) < reach
    columns = np.abs(grid - x[:, None]) < reach
    where = np.flatnonzero(rows[:, :, None] & columns[:, None, :]).astype(np.int32)
    line = where // size
    t = line // size
    row = line - t * size
    column = where - line * size
    across = (grid[column] - x[t]) / width[t]
    down = (grid[row] - y[t]) / height[t]
    cos = np.cos(angle + thing.angle)[t] / thing.radius
    sin = np.sin(angle + thing.angle)[t] / thing.radius
    local_x = cos * across + sin * down
    local_y = cos * down - sin * across
    distance = SHAPES[thing.shape](local_x, local_y) * (thing.radius * np.minimum(width, height)[t] * size / 2)
    stripes = np.clip(0.5 + 1.5 * np.sin(thing.stripe[0] * local_x + thing.stripe[1] * local_y), 0, 1)
    inks = thing.colours[0][:, None] + stripes * (thing.colours[1] - thing.colours[0])[:, None]  # [3, N]
    inks += glow[t] * (255 - inks)
    pixels = frames.reshape(-1, 3)
    under = pixels.take(where, axis=0).T
    mixed = under + np.clip(0.5 - distance, 0, 1) * (inks - under)
    pixels[where] = np.round(mixed).astype(np.uint8).T


def backdrop(texture: float, colours: Array, x: Array, y: Array, size: int, rng: np.random.Generator) -> Frames:
    """Background of two colours [2, 3] for camera positions x, y [T]; `texture` is 0 (coarse) to 1 (fine).

    Returns uint8 [T, size, size, 3].
    """
    steps = np.round(np.stack([x, y], 1) * (size / 2 * SUPERSAMPLING)).astype(int)
    steps -= steps.min(axis=0)
    span = SUPERSAMPLING * size
    width, height = steps.max(axis=0) + span
    fineness = (2 + 10 * texture) / (size / 2 * SUPERSAMPLING)
    along, down = (np.arange(n)[:, None] * rng.normal(scale=fineness, size=6) for n in (width, height))
    down += rng.uniform(0, 2 * np.pi, 6)
    # The sum of six plane waves sin(along + down), as two matrix products by the addition theorem.
    waves = (np.sin(down) @ np.cos(along).T + np.cos(down) @ np.sin(along).T).astype(np.float32)[..., None]
    blend = np.clip(0.5 + waves / 5, 0, 1)
    canvas = colours[0] + blend * (colours[1] - colours[0])
    canvas = np.round(canvas).astype(np.uint8)
    return np.stack([canvas[j : j + span : SUPERSAMPLING, i : i + span : SUPERSAMPLING] for i, j in steps])


def wavetable(timbre: float, rng: np.random.Generator) -> Array:
    """One period [WAVETABLE] of a tone of six harmonics, peak 1; a higher `timbre` is brighter."""
    harmonics = np.arange(1, 7)
    strengths = harmonics ** (-3.0 + 2.7 * timbre) * rng.uniform(0.5, 1, 6)
    angles = 2 * np.pi * harmonics * np.arange(WAVETABLE)[:, None] / WAVETABLE + rng.uniform(0, 2 * np.pi, 6)
    period = np.sin(angles) @ strengths
    return (period / np.abs(period).max()).astype(np.float32)


def tone(sound: Sound, pitch: float, table: Array, times: Times, until: float, rng: np.random.Generator) -> Array:
    """The wave of a sound, without its loudness, at times [N]; `pitch` is in octaves above PITCH.

    Breath noise is drawn for every millisecond up to `until`.
    """
    frequency = PITCH * 2**pitch * np.exp2(np.broadcast_to(sound.octave, times.shape))
    turns = np.cumsum(frequency / SOUND_RATE, dtype=np.float64)
    wave = table[(turns * WAVETABLE).astype(np.int64) % WAVETABLE]
    if sound.breath:
        knots = np.arange(0, until, 0.001)
        hiss = np.interp(times, knots, rng.normal(size=len(knots))).astype(np.float32)
        wave = wave * (1 - sound.breath + sound.breath * hiss)
    return wave


def room(ambience: float, count: int, rng: np.random.Generator) -> Array:
    """Background noise [count] of unit deviation, from rumble (`ambience` 0) to hiss (1)."""
    bins = np.arange(count // 2 + 1, dtype=np.float32)
    spectrum = rng.standard_normal((len(bins), 2), np.float32).view(np.complex64)[:, 0]
    noise = np.fft.irfft(spectrum * np.maximum(bins, 1) ** np.float32(0.9 * (ambience - 1)), count)
    return (noise / noise.std()).astype(np.float32)
