"""A scene as frames and a waveform."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gdt.preprocess.synthetic.actions import Array, Motion
from gdt.preprocess.synthetic.hard.actions import ACTIONS
from gdt.preprocess.synthetic.hard.scene import WALK, Idle, Scene, SyntheticHard, Voice, draw_scene
from gdt.preprocess.synthetic.scene import (
    SAMPLE_RATE,
    WAVETABLE,
    Frames,
    Thing,
    Video,
    backdrop,
    paint,
    room,
    wavetable,
)  # fmt: skip

Times = npt.NDArray[np.float64]
RIM = 0.75
"""Of a thing's radius, where its marker is: without it a disc would not be seen to turn."""


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
        frequency = 250 * 2**voice.pitch * np.exp2(np.broadcast_to(part.octave, times.shape))
        cycles = np.cumsum(frequency / SAMPLE_RATE, dtype=np.float64)
        tone = table[(cycles * WAVETABLE).astype(np.int64) % WAVETABLE]
        if part.breath:
            knots = np.arange(0, times[-1] + 0.002, 0.001)
            hiss = np.interp(times, knots, rng.normal(size=len(knots))).astype(np.float32)
            tone = tone * (1 - part.breath + part.breath * hiss)
        mixed += (voice.loudness * part.loudness * tone).astype(np.float32)
    return mixed


def sound(scene: Scene, settings: SyntheticHard) -> Array:
    """The waveform of a scene, float32 [samples] within [-1, 1] at `SAMPLE_RATE`."""
    rng = np.random.default_rng(scene.seeds[1])
    times = np.arange(round(settings.seconds * SAMPLE_RATE)) / SAMPLE_RATE
    mixed = scene.noise * room(scene.ambience, len(times), rng)
    for voice in scene.voices:
        mixed += heard(voice, times, rng)
    return np.clip(mixed, -1, 1).astype(np.float32)


def render(settings: SyntheticHard, split: str, action: str, n: int) -> Video:
    """The n-th video of an action in a split: uint8 [T, H, W, 3], float32 [samples], and nothing that is said."""
    scene = draw_scene(settings, split, action, n)
    return Video(picture(scene, settings), sound(scene, settings), {})
