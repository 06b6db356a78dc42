"""Plans without contrast: clips to evaluate with, executed by the same loader as those of the sampling tree."""

from __future__ import annotations

import numpy as np

from pipeline.leaves import Clip, Leaves
from pipeline.transformations.augmentation import Augmentation
from pipeline.tree import BatchPlan


def uniform_clips(
    videos: np.ndarray, starts: np.ndarray, clips: int, clip: Clip, augmentation: Augmentation
) -> BatchPlan:
    """Evaluation plan: `clips` video clips spread uniformly over each video, from its first to its last start.

    `videos` [n] are rows of the index, `starts` [n] the numbers of start frames they offer. n * clips leaves, the
    clips of a video one after another; a video that offers fewer starts repeats some.
    """
    position = np.linspace(0.0, 1.0, clips) if clips > 1 else np.array([0.5])
    leaves = Leaves.plain(len(videos) * clips, clip, bands=1)
    leaves.video = np.repeat(videos.astype(np.int64), clips)
    leaves.start = np.floor(position[None] * (starts[:, None] - 1) + 0.5).astype(np.int64).reshape(-1)
    rng = np.random.Generator(np.random.Philox(0))  # every range of an evaluation augmentation is a single value
    leaves.draws = augmentation.draw(rng, len(leaves), (1, 1))
    return BatchPlan(0, 0, {"leaf": np.arange(len(leaves), dtype=np.int64)}, leaves)
