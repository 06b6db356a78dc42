"""Clips that differ in one factor alone: the same video, time and crop at each of its values.

The transformations fill in the plans, and the loader of the training executes them, so any custom `Choice` can be
measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gdt.common.randomness import Stream, generator
from gdt.eval.factors.settings import PROBE_FOLDS
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import MODALITIES, Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import Augment, centred, draw_augmentations
from gdt.pipeline.transformations.base import Choice, Transformation
from gdt.pipeline.transformations.modality import Modality
from gdt.pipeline.transformations.time_shift import TimeShift
from gdt.pipeline.tree import BatchPlan

_STARTS = 3
"""Clips per video; for the time shift, per third of it."""
_THIRDS = 3
"""Thirds of a video."""
_DRAWS = 4
"""Augmentations per clip."""
_LEAVES = 64
"""Maximum leaves per plan, unless one clip has more values."""


@dataclass(frozen=True)
class Trial:
    """The clips of one factor, for one network."""

    shape: tuple[int, int, int]
    """Videos n, clips per video s, values k."""
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
class Trials:
    """Makes trials on held-out videos."""

    index: Index
    candidates: np.ndarray
    """Held-out rows of the index, the preferred ones first: int64 [n]."""
    inputs: Inputs
    """Of the model; factors other than augmentation have the centre crop."""
    videos: int
    """Most videos of a trial."""

    def trial(self, factor: Transformation, network: str) -> Trial | None:
        """The trial of a factor for a network, video or audio.

        None if the factor has no values to compare in one network, or if too few videos are long enough.
        """
        k = _values(factor)
        if k < 2:
            return None
        longest = self._leaves(factor, network, np.zeros(1, np.int64), np.zeros((1, 1, k), np.int64))
        audio = network == "audio"
        frames = 0 if audio else int(longest.frames.max()) + 1
        rows = int(longest.mel_frames.max()) + 1 if audio else 0
        counts = self.index.start_counts(frames, 1, rows)
        least = _THIRDS if isinstance(factor, TimeShift) else 1
        usable = self.candidates[counts[self.candidates] >= least]
        if len(usable) < PROBE_FOLDS:
            return None
        videos = np.sort(usable[: self.videos])
        starts = _starts(factor, counts[videos], k)
        return Trial(starts.shape, self._leaves(factor, network, videos, starts))

    def _leaves(self, factor: Transformation, network: str, videos: np.ndarray, starts: np.ndarray) -> Leaves:
        """Leaves of videos [n] at start frames [n, s, k] with the factor's values in turn, and nothing else changed."""
        leaves = Leaves.plain(starts.size, self.inputs.clip, self.index.bands)
        leaves.video = np.repeat(videos, starts[0].size)
        leaves.start = starts.reshape(-1)
        leaves.modality[:] = MODALITIES.index(network)
        values = np.arange(starts.size, dtype=np.int64) % starts.shape[2]
        rng = generator(Stream.FACTOR_DRAWS, 0)  # the same draws for every network
        crop = centred(self.inputs.short_side)
        leaves.draws = {
            name: np.repeat(draw, starts.size) for name, draw in draw_augmentations(crop, rng, 1, (1, 1)).items()
        }
        if isinstance(factor, Augment):
            Augment(self.inputs.augmentation).act(leaves, values, rng)
        elif not isinstance(factor, TimeShift):  # which the starts hold
            factor.act(leaves, values, rng)
        return leaves


def _values(factor: Transformation) -> int:
    """Number of values that are compared; 1 if they cannot be set, or are the networks."""
    if isinstance(factor, Choice) and not isinstance(factor, Modality):
        return len(factor.values)
    return {TimeShift: _THIRDS, Augment: _DRAWS}.get(type(factor), 1)


def _starts(factor: Transformation, counts: np.ndarray, k: int) -> np.ndarray:
    """Start frames, given the number of possible ones per video: int64 [n, s, k]."""
    if isinstance(factor, TimeShift):  # the middles of equal parts of each third
        shares = (np.arange(k)[None] + (np.arange(_STARTS)[:, None] + 0.5) / _STARTS) / k
        return np.floor(shares * counts[:, None, None]).astype(np.int64)
    starts = np.floor(np.linspace(0, 1, _STARTS) * (counts[:, None] - 1) + 0.5).astype(np.int64)
    return np.repeat(starts[:, :, None], k, axis=2)
