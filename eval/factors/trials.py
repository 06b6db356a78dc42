"""Plans that vary one factor and keep video, time and crop the same.

The transformations fill in the plans, and the loader of the training executes them, so any custom `Choice` can be
measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gdt.common.streams import Stream, generator
from gdt.eval.factors.settings import FOLDS, Factors
from gdt.pipeline.leaves import INPUT_FIELDS, MODALITIES, Clip, Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import Augment, Augmentation, centred
from gdt.pipeline.transformations.base import Choice, Transformation
from gdt.pipeline.transformations.modality import Modality
from gdt.pipeline.transformations.time_shift import TimeShift
from gdt.pipeline.transformations.video import Video
from gdt.pipeline.tree import BatchPlan

_STARTS, _THIRDS, _DRAWS = 3, 3, 4
"""Clips per video (for the time shift, per third of it), thirds of a video, and augmentations per clip."""
_LEAVES = 64
"""Maximum per plan, unless one clip has more values."""
_AUDIO_DRAWS = ("volume", "frequency_", "time_")
"""Prefixes of the augmentation draws of audio."""


@dataclass(frozen=True)
class Trial:
    """One factor, for one network."""

    factor: Transformation
    network: str
    """Its modality."""
    shape: tuple[int, int, int]
    """Videos n, clips per video s, values k; k is 1 for factors whose value cannot be set, such as the video."""
    leaves: Leaves
    """n s k leaves, ordered by video, clip, value."""

    def plans(self) -> Iterator[BatchPlan]:
        """The leaves in order, with all values of a clip in one plan."""
        k = self.shape[2]
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
    augmentation: Augmentation
    """Ranges of the factor augmentation; all others have the centre crop."""
    settings: Factors

    def trial(self, factor: Transformation, network: str) -> Trial | None:
        """The trial of a factor for the network of a modality.

        None if the factor does not change its inputs or has no values to set, or if too few videos are long enough.
        For the factor modality k is 1, since its values are the networks.
        """
        k = _count(factor)
        probe = Leaves.plain(k, self.clip, self.index.bands)
        self._apply(factor, probe, network)
        if not isinstance(factor, Video | Modality | TimeShift) and not _differ(probe, network):
            return None
        sound = network == "audio" or isinstance(factor, Modality)
        rows = int(probe.mel_frames.max()) + 1 if sound else 0
        counts = self.index.start_counts(int(probe.frames.max()) + 1, 1, rows)
        needed = {Video: 2, TimeShift: _THIRDS}.get(type(factor), 1)
        usable = self.candidates[counts[self.candidates] >= needed]
        if len(usable) < FOLDS:
            return None
        videos = np.sort(usable[: self.settings.videos])
        starts = _starts(factor, counts[videos], k)
        leaves = Leaves.plain(starts.size, self.clip, self.index.bands)
        leaves.video = np.repeat(videos, starts[0].size)
        leaves.start = starts.reshape(-1)
        self._apply(factor, leaves, network)
        return Trial(factor, network, starts.shape, leaves)

    def _apply(self, factor: Transformation, leaves: Leaves, network: str) -> None:
        """Apply the factor's values in turn, and nothing else."""
        values = np.arange(len(leaves), dtype=np.int64) % _count(factor)
        rng = generator(Stream.FACTOR_DRAWS, self.settings.seed)  # the same draws for every network
        crop = centred(self.augmentation.scale[0])
        leaves.modality[:] = MODALITIES.index(network)
        leaves.draws = {name: np.repeat(draw, len(leaves)) for name, draw in crop.draw(rng, 1, (1, 1)).items()}
        if isinstance(factor, Augment):
            Augment(self.augmentation).act(leaves, values, rng)
        elif not isinstance(factor, Video | Modality | TimeShift):  # `trial` sets these
            factor.act(leaves, values, rng)


def _count(factor: Transformation) -> int:
    """Number of values that are compared; 1 if they cannot be set, or are the networks."""
    if isinstance(factor, Choice) and not isinstance(factor, Modality):
        return len(factor.values)
    return {TimeShift: _THIRDS, Augment: _DRAWS}.get(type(factor), 1)


def _starts(factor: Transformation, counts: np.ndarray, k: int) -> np.ndarray:
    """Start frames, given the number of possible ones per video: int64 [n, s, k]."""
    if isinstance(factor, TimeShift):  # the middles of equal parts of each third
        shares = (np.arange(k)[None] + (np.arange(_STARTS)[:, None] + 0.5) / _STARTS) / k
        return np.floor(shares * counts[:, None, None]).astype(np.int64)
    shares = np.linspace(0, 1, 2 if isinstance(factor, Video) else _STARTS)
    starts = np.floor(shares * (counts[:, None] - 1) + 0.5).astype(np.int64)
    return np.repeat(starts[:, :, None], k, axis=2)


def _differ(leaves: Leaves, network: str) -> bool:
    """Whether leaves differ in the inputs of a network."""
    inputs = [getattr(leaves, name) for name in INPUT_FIELDS[network]]
    inputs += [draw for name, draw in leaves.draws.items() if name.startswith(_AUDIO_DRAWS) == (network == "audio")]
    return any((values != values[:1]).any() for values in inputs)
