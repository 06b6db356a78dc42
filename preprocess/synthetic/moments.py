"""The videos of the synthetic data set: actions that may change within a video, and an identity that stays.

Background and drone show the identity throughout a video: one number sets the hue of the background and the pitch of
the drone, another the brightness of both. Both numbers are drawn independently of the actions.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdt.common.errors import UserError, require_range
from gdt.common.randomness import Stream, generator, seed_sequence
from gdt.preprocess.synthetic import scenes
from gdt.preprocess.synthetic.actions import ACTIONS, Array, Motion, Sound, Tempo

SPLITS = ("train", "val", "test")
FPS = 15
SIZE = 64
LOWEST = 110.0
"""Lowest pitch of the drone in Hz."""
OCTAVES = 3.5
"""Range of the drone above it."""
HUES = 0.85
"""Range of the background's hue: not the whole circle, whose ends look alike but would sound different."""
HUE_NAMES = ("red", "orange", "lime", "green", "cyan", "blue", "purple", "pink")
"""Bins of the actor's hue."""


@dataclass(frozen=True)
class Synthetic:
    """Ten actions that differ in video, audio and captions; equal settings give equal files."""

    seed: int = 0
    """Random seed; every video has its own stream."""
    train: int = 100
    """Training videos per class."""
    val: int = 40
    """Validation videos per class."""
    test: int = 20
    """Test videos per class."""
    classes: int = 10
    """Number of classes, 1 to 10."""
    seconds: float = 6.0
    """Duration of every video in seconds."""
    identity: float = 0.0
    """Strength of what stays in a video, 0 to 1: the background's saturation is 0.1 + 0.8 * identity, the amplitude of
    a drone 0.15 * identity."""
    actions_per_video: int = 1
    """Actions of a training video, 1 to 3, of equal length. With several, training videos have no class."""

    def __post_init__(self) -> None:
        require_range(self, "classes", most=len(ACTIONS))
        require_range(self, "actions_per_video", most=3)
        require_range(self, *SPLITS, "seed", least=0)
        if not (self.seconds >= 0.1 and 0 <= self.identity <= 1):
            raise UserError(
                f"--seconds is {self.seconds} and --identity {self.identity}; they must be 0.1 or more, and from 0 to 1"
            )

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(ACTIONS)[: self.classes]

    def count(self, split: str) -> int:
        """Actions of each video of a split."""
        return self.actions_per_video if split == "train" else 1


def _radius(size: float) -> float:
    """Radius of a size from 0 to 1; distractors have negative sizes."""
    return 0.3 + 0.16 * size


def _draw_tempo(rng: np.random.Generator) -> Tempo:
    return Tempo(*rng.uniform((0, 0.875, 0.1, 3, 0), (2, 1.165, 0.2, 6, 2 * np.pi)).tolist())


class Scene:
    """Everything random about the n-th video of a split that begins with an action.

    A pure function of the arguments; numbers are from 0 to 1 unless signed.
    """

    def __init__(self, settings: Synthetic, split: str, action: str, n: int) -> None:
        key = (settings.seed, SPLITS.index(split), tuple(ACTIONS).index(action), n)
        lasting = generator(Stream.MOMENTS, *key, 1)
        self.seconds = settings.seconds
        self.strength = settings.identity
        self.identity: tuple[float, float] = tuple(lasting.uniform(size=2).tolist())
        """Hue and pitch, then brightness of colour and tone."""
        further = lasting.permutation([name for name in ACTIONS if name != action])[: settings.count(split) - 1]
        later = [(str(name), _draw_tempo(lasting)) for name in further]
        # without an identity the background is random, too
        shown, brightness = self.identity if self.strength else lasting.uniform(size=2).tolist()
        ground = scenes.colour(HUES * shown, 0.1 + 0.8 * self.strength, 0.45 + 0.45 * brightness)
        self.background_colours = np.stack([ground, 0.85 * ground])
        self.drone = lasting  # of its harmonics; used once

        draws, *self.seeds = seed_sequence(Stream.MOMENTS, *key).spawn(4)  # of the noise in video, audio and text
        rng = np.random.default_rng(draws)
        self.actions = [(action, _draw_tempo(rng)), *later]
        """One after another, each as long as the others."""
        size, self.hue, self.texture = rng.uniform(size=3).tolist()  # of the actor; of the background, coarse to fine
        # Draws without use, here and below, keep the videos as they have been since version 0.2.
        self.pitch, self.timbre, self.ambience = rng.uniform(size=6)[3:].tolist()
        hues = rng.uniform(size=4).tolist()
        self.distractors = [
            scenes.draw_thing(rng, hue, _radius(rng.uniform(-1.2, -0.4)), position=0.9, drift=rng.choice((0, 0.15)))
            for hue in hues[: rng.integers(1, 3)]
        ]
        rng.uniform(size=4)
        self.actor = scenes.draw_thing(rng, self.hue, _radius(size), position=0.15, drift=0.05)
        self.reach = rng.uniform(0.85, 1.15) * (-1) ** int(rng.integers(2))
        """Factor of the actor's excursions; negative values mirror them horizontally."""

    def _moments(self, times: scenes.Times) -> npt.NDArray[np.intp]:
        """Index of the action at each of `times` [N], in seconds."""
        count = len(self.actions)
        return np.minimum(times * (count / self.seconds), count - 1).astype(np.intp)

    def picture(self) -> scenes.Frames:
        """The frames: uint8 [T, SIZE, SIZE, 3], frame k at k / FPS seconds."""
        # Panning, jitter, background contrast and noise are weak on purpose: if they outweigh motion and events,
        # cross-modal learning takes far longer to leave its first plateau, a loss of ln(batch size).
        rng = np.random.default_rng(self.seeds[0])
        times = np.arange(round(self.seconds * FPS)) / FPS
        shake_x, shake_y = rng.normal(scale=0.005, size=(2, len(times))).astype(np.float32)
        speed_x, speed_y = rng.uniform(-0.1, 0.1, 2)
        camera_x = times * speed_x + shake_x
        camera_y = times * speed_y + shake_y
        frames = scenes.backdrop(self.texture, self.background_colours, camera_x, camera_y, SIZE, rng)
        for thing in self.distractors:
            x, y = (position + times * speed for position, speed in zip(thing.position, thing.drift, strict=True))
            scenes.paint(frames, thing, Motion(x=x - shake_x, y=y - shake_y))
        motions = [ACTIONS[action].motion(tempo.beat(times)) for action, tempo in self.actions]
        now = self._moments(times)
        parts = zip(*motions, strict=True)  # x of all actions, then y of all, and so on
        motion = Motion(*(np.choose(now, np.broadcast_arrays(*values, now)[:-1]) for values in parts))
        angle = times * 1.5 + self.actions[0][1].lead
        position_x, position_y = self.actor.position
        drift_x, drift_y = self.actor.drift
        motion = motion._replace(
            x=self.reach * motion.x + position_x + drift_x * np.sin(angle) - shake_x,
            y=abs(self.reach) * motion.y + position_y + drift_y * np.cos(angle) - shake_y,
            angle=math.copysign(1, self.reach) * np.asarray(motion.angle),
        )
        scenes.paint(frames, self.actor, motion)
        return frames

    def sound(self) -> Array:
        """The waveform, float32 [samples] within [-1, 1] at `SOUND_RATE`."""
        rng = np.random.default_rng(self.seeds[1])
        times = np.arange(round(self.seconds * scenes.SOUND_RATE)) / scenes.SOUND_RATE
        sounds = [ACTIONS[action].sound(tempo.beat(times)) for action, tempo in self.actions]
        table = scenes.wavetable(self.timbre, rng)
        waves = [scenes.tone(sound, self.pitch, table, times, self.seconds + 0.001, rng) for sound in sounds]
        level, noise_level, hum_level = np.exp(rng.uniform(np.log((0.35, 0.002, 0.001)), np.log((0.7, 0.01, 0.01))))
        hum = np.sin((times * (2 * np.pi * rng.uniform(50, 120))).astype(np.float32))
        noise = scenes.room(self.ambience, len(times), rng)
        parts = [level * sound.loudness * wave for sound, wave in zip(sounds, waves, strict=True)]
        mixed = np.choose(self._moments(times), parts) + noise_level * noise + hum_level * hum
        heard = np.clip(mixed, -1, 1).astype(np.float32)
        if self.strength:
            pitch, brightness = self.identity
            octave = math.log2(LOWEST / scenes.PITCH) + OCTAVES * pitch
            period = scenes.wavetable(brightness, self.drone)
            heard = heard + 0.15 * self.strength * scenes.tone(Sound(1.0), octave, period, times, 0.0, self.drone)
        return np.clip(heard, -1, 1).astype(np.float32)

    def captions(self) -> dict[str, list[float] | list[str]]:
        """Captions as in HowTo100M, `start` and `end` in seconds: each of one action and about two cycles."""
        rng = np.random.default_rng(self.seeds[2])
        phrases = ("a {} {} {}", "the {1} {2} {3}", "look how the {} {} {}", "now it {2} {3}")
        length = self.seconds / len(self.actions)
        bounds = [0.0]
        texts: list[str] = []
        for moment, (action, tempo) in enumerate(self.actions):
            first = moment * length
            last = (moment + 1) * length
            turns = [t for t in tempo.events(0.5, self.seconds).tolist() if first + 0.5 <= t <= last - 0.5]
            for start, end in zip([first, *turns], [*turns, last], strict=True):
                (rate,) = tempo.beat(np.array([(start + end) / 2])).rate
                words = (HUE_NAMES[round(self.hue * 8) % 8], self.actor.shape, ACTIONS[action].verb)
                texts.append(str(rng.choice(phrases)).format(*words, "slowly" if rate < 1 else "quickly"))
                bounds.append(round(end, 2))
        return {"start": bounds[:-1], "end": bounds[1:], "text": texts}
