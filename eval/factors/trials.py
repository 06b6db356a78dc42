"""Plans that vary one factor and keep video, time and crop the same.

The transformations fill in the plans, and the loader of the training executes them, so any custom `Choice` can be
measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gdt.common.errors import UserError
from gdt.common.streams import Stream, generator
from gdt.eval.factors.settings import Factors
from gdt.pipeline.leaves import INPUT_FIELDS, MODALITIES, Clip, Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import Augment, Augmentation
from gdt.pipeline.transformations.base import Choice, Transformation
from gdt.pipeline.transformations.modality import Modality
from gdt.pipeline.transformations.time_shift import TimeShift
from gdt.pipeline.transformations.video import Video
from gdt.pipeline.tree import BatchPlan

THIRDS = ("first third", "second third", "last third")
_LEAVES = 64
"""Maximum per plan, unless one clip has more values."""
_AUDIO_DRAWS = ("volume", "frequency_", "time_")
"""Prefixes of the augmentation draws of audio."""


@dataclass(frozen=True)
class Trial:
    """One factor, for one network."""

    transformation: Transformation
    network: str
    """Its modality."""
    values: tuple[str, ...]
    """Names of the k values; one name for factors whose value cannot be set, such as the video."""
    videos: np.ndarray
    """Rows of the index: int64 [n], ascending."""
    clips: int
    """Per video: s."""
    leaves: Leaves
    """n s k leaves, ordered by video, clip, value."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.videos), self.clips, len(self.values)

    def plans(self) -> Iterator[BatchPlan]:
        """The leaves in order, with all values of a clip in one plan."""
        k = len(self.values)
        size = max(1, _LEAVES // k) * k
        for first in range(0, len(self.leaves), size):
            part = self.leaves.take(slice(first, first + size))
            yield BatchPlan(0, 0, {"leaf": np.arange(len(part), dtype=np.int64)}, part)


@dataclass(frozen=True)
class Planner:
    """Plans trials on held-out videos."""

    index: Index
    candidates: np.ndarray
    """Held-out rows of the index, the preferred ones first: int64 [n]."""
    clip: Clip
    crop: Augmentation
    """For all factors except the augmentation; deterministic."""
    ranges: Augmentation
    """For the augmentation."""
    settings: Factors

    def trial(self, transformation: Transformation, network: str) -> Trial | None:
        """The trial of a factor for the network of a modality; None if the factor does not change its inputs.

        For the factor modality k is 1, since its values are the networks. Raises UserError with the reason if no trial
        is possible on these videos.
        """
        values = self._values(transformation)
        probe = Leaves.plain(len(values), self.clip, self.index.bands)
        self._apply(transformation, probe, network)
        if len(values) > 1 and not isinstance(transformation, TimeShift) and not _differ(probe, network):
            return None
        videos, counts = self._videos(transformation, network, probe)
        starts = self._starts(transformation, counts, len(values))
        _, clips, k = starts.shape
        leaves = Leaves.plain(starts.size, self.clip, self.index.bands)
        leaves.video = np.repeat(videos, clips * k)
        leaves.start = starts.reshape(-1)
        self._apply(transformation, leaves, network)
        named = (network,) if isinstance(transformation, Modality) else values
        return Trial(transformation, network, named, videos, clips, leaves)

    def _values(self, transformation: Transformation) -> tuple[str, ...]:
        if isinstance(transformation, Video | Modality):
            return ("",)
        if isinstance(transformation, TimeShift):
            return THIRDS
        if isinstance(transformation, Augment):
            return tuple(f"draw {number + 1}" for number in range(self.settings.draws))
        if isinstance(transformation, Choice) and len(transformation.values) > 1:
            return tuple(transformation.values)
        raise UserError("it is not a Choice of two or more values, so a probe cannot classify its value")

    def _apply(self, transformation: Transformation, leaves: Leaves, network: str) -> None:
        """Apply the factor's values in turn, and nothing else."""
        values = np.arange(len(leaves), dtype=np.int64) % len(self._values(transformation))
        rng = generator(Stream.FACTOR_DRAWS, self.settings.seed)  # the same draws for every network
        leaves.modality[:] = MODALITIES.index(network)
        leaves.draws = {name: np.repeat(draw, len(leaves)) for name, draw in self.crop.draw(rng, 1, (1, 1)).items()}
        if isinstance(transformation, Augment):
            Augment(self.ranges).act(leaves, values, rng)
        elif not isinstance(transformation, Video | Modality | TimeShift):  # `trial` sets these
            transformation.act(leaves, values, rng)

    def _videos(self, transformation: Transformation, network: str, probe: Leaves) -> tuple[np.ndarray, np.ndarray]:
        """Videos long enough for every value, and their numbers of possible start frames, both int64 [n]."""
        sound = network == "audio" or isinstance(transformation, Modality)
        rows = int(probe.mel_frames.max()) + 1 if sound else 0
        counts = self.index.start_counts(int(probe.frames.max()) + 1, 1, rows)
        needed = {Video: 2, TimeShift: len(THIRDS)}.get(type(transformation), 1)
        usable = self.candidates[counts[self.candidates] >= needed]
        if len(usable) < self.settings.min_videos:
            with_sound = int((self.index.mel_count[self.candidates] > 0).sum())
            audible = f" ({with_sound} have sound)" if sound else ""
            raise UserError(
                f"only {len(usable)} of {len(self.candidates)} videos are long enough{audible}, but at least "
                f"{self.settings.min_videos} are needed"
            )
        videos = np.sort(usable[: self.settings.videos])
        return videos, counts[videos]

    def _starts(self, transformation: Transformation, counts: np.ndarray, k: int) -> np.ndarray:
        """Start frames, given the number of possible ones per video: int64 [n, clips, k]."""
        s = self.settings.starts
        if isinstance(transformation, TimeShift):  # the middles of equal parts of each third
            shares = (np.arange(k)[None] + (np.arange(s)[:, None] + 0.5) / s) / k
            return np.floor(shares * counts[:, None, None]).astype(np.int64)
        s = 2 if isinstance(transformation, Video) else s
        shares = np.arange(s) / (s - 1) if s > 1 else np.array([0.5])
        starts = np.floor(shares * (counts[:, None] - 1) + 0.5).astype(np.int64)
        return np.repeat(starts[:, :, None], k, axis=2)


def _differ(leaves: Leaves, network: str) -> bool:
    """Whether leaves differ in the inputs of a network."""
    inputs = [getattr(leaves, name) for name in INPUT_FIELDS[network]]
    inputs += [draw for name, draw in leaves.draws.items() if name.startswith(_AUDIO_DRAWS) == (network == "audio")]
    return any((values != values[:1]).any() for values in inputs)
