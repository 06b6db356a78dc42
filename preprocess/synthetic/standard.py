"""The data set `synthetic`: ten actions that differ in video, audio and captions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from gdt.preprocess.synthetic import drawing
from gdt.preprocess.synthetic.beat import Array, Beat, Motion, Sound, Tempo, decay
from gdt.preprocess.synthetic.files import SPLITS, GeneratedSet, Task, Video

TAKE_OFF, LANDING = 0.35, 0.8  # of a jump, in cycles
HUES = ("red", "orange", "lime", "green", "cyan", "blue", "purple", "pink")


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


@dataclass(frozen=True)
class Synthetic(GeneratedSet):
    """Ten actions that differ in video, audio and captions; equal settings give equal files."""

    name: ClassVar[str] = "synthetic"
    format: ClassVar[int] = 1

    train: int = 250
    """Training videos per class."""
    classes: int = 10
    """Number of classes, 1 to 10."""
    nuisance: float = 0.3
    """Probability that pitch follows size, timbre follows hue, and ambience follows the
    background, each drawn on its own; above 0.7, they hide the action."""

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(ACTIONS)[: self.classes]

    def checks(self) -> dict[str, bool]:
        return {
            f"--classes is {self.classes}; it must be 1 to {len(ACTIONS)}": 1 <= self.classes <= len(ACTIONS),
            f"--nuisance is {self.nuisance}; it must be 0 to 1": 0 <= self.nuisance <= 1,
        }

    def render(self, split: str, action: str, n: int) -> Video:
        scene = draw_scene(self, split, action, n)
        return Video(picture(scene, self), sound(scene, self))

    def metadata(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Captions in the format of HowTo100M."""
        by_id = {t.path.stem: captions(draw_scene(self, t.split, t.action, t.n), self) for t in tasks}
        return {"captions.json": json.dumps(by_id) + "\n"}


@dataclass(frozen=True)
class Scene:
    """Everything random about one video, except noise."""

    action: str
    tempo: Tempo
    actor: drawing.Thing
    distractors: tuple[drawing.Thing, ...]
    hue: float
    reach: float
    """Factor of the actor's excursions; negative values mirror them horizontally."""
    background: float
    """Coarse (0) to fine (1) texture."""
    background_colours: Array
    pitch: float
    """0 to 1, low to high; 1 minus the size where it follows the size."""
    timbre: float
    """0 to 1, pure to bright."""
    ambience: float
    """0 to 1, dark rumble to hiss."""
    seeds: tuple[np.random.SeedSequence, ...]
    """Of the noise in video, audio and text."""
    later: tuple[tuple[str, Tempo], ...] = ()
    """Actions after the first, with their tempi; all have equal length."""

    @property
    def actions(self) -> tuple[tuple[str, Tempo], ...]:
        return ((self.action, self.tempo), *self.later)

    def moments(self, times: drawing.Times, seconds: float) -> npt.NDArray[np.intp]:
        """Index of the action at each of `times` [N], in seconds."""
        count = len(self.actions)
        return np.minimum(times * (count / seconds), count - 1).astype(np.intp)


def _radius(size: float) -> float:
    """Radius of a size from 0 to 1; distractors have negative sizes."""
    return 0.3 + 0.16 * size


def draw_scene(settings: Synthetic, split: str, action: str, n: int) -> Scene:
    """The scene of the n-th video of an action in a split, a pure function of its arguments."""
    key = [settings.seed, SPLITS.index(split), tuple(ACTIONS).index(action), n]
    return scene_of(np.random.SeedSequence(key), action, settings.nuisance)


def draw_tempo(rng: np.random.Generator) -> Tempo:
    return Tempo(*rng.uniform((0, 0.875, 0.1, 3, 0), (2, 1.165, 0.2, 6, 2 * np.pi)).tolist())


def scene_of(seeds: np.random.SeedSequence, action: str, nuisance: float) -> Scene:
    """The scene drawn with these seeds."""
    draws, *noise = seeds.spawn(4)
    rng = np.random.default_rng(draws)
    tempo = draw_tempo(rng)
    size, hue, background = rng.uniform(size=3).tolist()
    copied = rng.uniform(size=3) < nuisance
    pitch, timbre, ambience = np.where(copied, (1 - size, hue, background), rng.uniform(size=3)).tolist()
    hues = rng.uniform(size=4).tolist()
    distractors = tuple(
        drawing.draw_thing(rng, hues[i], _radius(rng.uniform(-1.2, -0.4)), position=0.9, drift=rng.choice((0, 0.15)))
        for i in range(rng.integers(1, 3))
    )
    # Panning, jitter, background contrast and noise are weak on purpose: if they outweigh motion and events,
    # cross-modal learning takes far longer to leave its first plateau, a loss of ln(batch size).
    ground = drawing.draw_ground(rng, iter(hues[2:]).__next__)
    return Scene(
        action=action,
        tempo=tempo,
        actor=drawing.draw_thing(rng, hue, _radius(size), position=0.15, drift=0.05),
        distractors=distractors,
        hue=hue,
        reach=rng.uniform(0.85, 1.15) * (-1) ** int(rng.integers(2)),
        background=background,
        background_colours=ground,
        pitch=pitch,
        timbre=timbre,
        ambience=ambience,
        seeds=tuple(noise),
    )


def picture(scene: Scene, settings: GeneratedSet) -> drawing.Frames:
    """The frames of a scene: uint8 [T, size, size, 3], frame k at k / fps seconds."""
    rng = np.random.default_rng(scene.seeds[0])
    times = np.arange(round(settings.seconds * settings.fps)) / settings.fps
    shake_x, shake_y = rng.normal(scale=0.005, size=(2, len(times))).astype(np.float32)
    pan_x, pan_y = (times * speed for speed in rng.uniform(-0.1, 0.1, 2))
    camera = pan_x + shake_x, pan_y + shake_y
    frames = drawing.backdrop(scene.background, scene.background_colours, *camera, settings.size, rng)
    for thing in scene.distractors:
        x, y = (position + times * speed for position, speed in zip(thing.position, thing.drift, strict=True))
        drawing.paint(frames, thing, Motion(x=x - shake_x, y=y - shake_y))
    motions = [ACTIONS[action].motion(tempo.beat(times)) for action, tempo in scene.actions]
    now = scene.moments(times, settings.seconds)
    motion = Motion(*(np.choose(now, np.broadcast_arrays(*parts, now)[:-1]) for parts in zip(*motions, strict=True)))
    wander = np.sin(times * 1.5 + scene.tempo.lead), np.cos(times * 1.5 + scene.tempo.lead)
    (position_x, position_y), (drift_x, drift_y) = scene.actor.position, scene.actor.drift
    motion = motion._replace(
        x=scene.reach * motion.x + position_x + drift_x * wander[0] - shake_x,
        y=abs(scene.reach) * motion.y + position_y + drift_y * wander[1] - shake_y,
        angle=math.copysign(1, scene.reach) * np.asarray(motion.angle),
    )
    drawing.paint(frames, scene.actor, motion)
    return frames


def sound(scene: Scene, settings: GeneratedSet) -> Array:
    """The waveform of a scene, float32 [samples] within [-1, 1] at `SAMPLE_RATE`."""
    rng = np.random.default_rng(scene.seeds[1])
    times = np.arange(round(settings.seconds * drawing.SAMPLE_RATE)) / drawing.SAMPLE_RATE
    sounds = [ACTIONS[action].sound(tempo.beat(times)) for action, tempo in scene.actions]
    table = drawing.wavetable(scene.timbre, rng)
    waves = [drawing.tone(each, scene.pitch, table, times, settings.seconds + 0.001, rng) for each in sounds]
    level, noise_level, hum_level = np.exp(rng.uniform(np.log((0.35, 0.002, 0.001)), np.log((0.7, 0.01, 0.01))))
    hum = np.sin((times * (2 * np.pi * rng.uniform(50, 120))).astype(np.float32))
    noise = drawing.room(scene.ambience, len(times), rng)
    parts = [level * each.loudness * wave for each, wave in zip(sounds, waves, strict=True)]
    mixed = np.choose(scene.moments(times, settings.seconds), parts) + noise_level * noise + hum_level * hum
    return np.clip(mixed, -1, 1).astype(np.float32)


def captions(scene: Scene, settings: Synthetic) -> dict[str, list[float] | list[str]]:
    """Captions in the format of HowTo100M, each two cycles long: `start` and `end` in seconds, and `text`."""
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
