"""The data set `synthetic-moments`: actions that change within a video, and an identity that stays; see docs/claim.md.

Background and drone show the identity throughout a video: one number sets the hue of the background and the pitch of
the drone, another the brightness of both. Both numbers are drawn independently of the actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from gdt.common.streams import Stream, generator, seed_sequence
from gdt.preprocess.synthetic import drawing, standard
from gdt.preprocess.synthetic.beat import Array, Sound
from gdt.preprocess.synthetic.files import SPLITS, GeneratedSet, Task, Video, csv_text

OCTAVES = 3.5
"""Range of the drone, upwards from LOWEST."""
LOWEST = 110.0
"""Hz."""
HUES = 0.85
"""Range of the background's hue: not the whole circle, whose ends look alike but would sound different."""
BINS = 10
"""Values of the label `identity`, as many as there are actions."""


@dataclass(frozen=True)
class SyntheticMoments(GeneratedSet):
    """Actions of `synthetic` that change within a training video, while background and drone stay.

    Background and drone are the identity. Videos of val (the gallery) and test (the queries) show one action each.
    Equal settings give equal files.
    """

    name: ClassVar[str] = "synthetic-moments"
    format: ClassVar[int] = 1

    train: int = 100
    """Training videos per class (their first action)."""
    val: int = 40
    """Gallery videos per class."""
    seconds: float = 6.0
    """Duration of every video in seconds."""
    identity: float = 0.3
    """Strength of the identity, 0 to 1: background saturation is 0.1 + 0.8 * identity, drone amplitude
    0.15 * identity."""
    actions_per_video: int = 3
    """Number of actions of a training video, 1 to 3, of equal length; by default 2 s each."""

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(standard.ACTIONS)

    def checks(self) -> dict[str, bool]:
        return {
            f"--identity is {self.identity}; it must be 0 to 1": 0 <= self.identity <= 1,
            f"--actions-per-video is {self.actions_per_video}; it must be 1 to 3": 1 <= self.actions_per_video <= 3,
        }

    def folder(self, split: str, action: str) -> str:
        """Training videos of several actions have no class."""
        return split if self._count(split) > 1 else super().folder(split, action)

    def _count(self, split: str) -> int:
        return self.actions_per_video if split == "train" else 1

    def draw(self, split: str, action: str, n: int) -> Draw:
        """Everything random about a video."""
        key = (self.seed, SPLITS.index(split), self.actions.index(action), n)
        rng = generator(Stream.MOMENTS, *key, 1)
        identity = tuple(rng.uniform(size=2).tolist())
        others = rng.permutation([other for other in self.actions if other != action])[: self._count(split) - 1]
        later = tuple((str(other), standard.draw_tempo(rng)) for other in others)
        # without an identity the background is as random as in `synthetic`
        hue, brightness = identity if self.identity else rng.uniform(size=2).tolist()
        ground = drawing.colour(HUES * hue, 0.1 + 0.8 * self.identity, 0.45 + 0.45 * brightness)
        colours = np.stack([ground, 0.85 * ground])
        scene = standard.scene_of(seed_sequence(Stream.MOMENTS, *key), action, nuisance=0)
        return Draw(replace(scene, later=later, background_colours=colours), identity, rng)

    def render(self, split: str, action: str, n: int) -> Video:
        drawn = self.draw(split, action, n)
        heard = standard.sound(drawn.scene, self) + 0.15 * self.identity * drone(drawn, self)
        return Video(standard.picture(drawn.scene, self), np.clip(heard, -1, 1).astype(np.float32))

    def metadata(self, tasks: Sequence[Task]) -> dict[str, str]:
        """The actions and the identity of every video."""
        rows: list[Sequence[object]] = [["path", "actions", "identity"]]
        for task in tasks:
            drawn = self.draw(task.split, task.action, task.n)
            path = f"{self.folder(task.split, task.action)}/{task.path.name}"
            actions = " ".join(action for action, _ in drawn.scene.actions)
            rows.append([path, actions, int(BINS * drawn.identity[0])])
        return {"labels.csv": csv_text(rows)}


class Draw(NamedTuple):
    """Everything random about one video, except noise."""

    scene: standard.Scene
    identity: tuple[float, ...]
    """Hue and pitch, then brightness of colour and tone; each 0 to 1."""
    rng: np.random.Generator
    """Of the drone's harmonics."""


def drone(drawn: Draw, settings: SyntheticMoments) -> Array:
    """The drone of a video, float32 [samples], peak 1."""
    times = np.arange(round(settings.seconds * drawing.SAMPLE_RATE)) / drawing.SAMPLE_RATE
    pitch, brightness = drawn.identity
    table = drawing.wavetable(brightness, drawn.rng)
    octave = math.log2(LOWEST / drawing.PITCH) + OCTAVES * pitch
    return drawing.tone(Sound(1.0), octave, table, times, settings.seconds, drawn.rng)
