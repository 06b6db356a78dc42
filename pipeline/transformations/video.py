"""i: which video."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pipeline.leaves import Leaves
from pipeline.transformations.base import Branches, Transformation


class Video(Transformation):
    """All videos, each once per epoch: batch b takes the b-th run of k videos of the epoch's permutation."""

    name = "video"

    def sample(self, rng: np.random.Generator, k: int, branches: Branches) -> np.ndarray:
        if branches.count != 1:
            raise ValueError("videos are the first factor of the tree")
        videos, draw = branches.source.videos, branches.draw
        places = _permutation(len(videos), draw.seed, draw.epoch)[draw.batch * k : (draw.batch + 1) * k]
        if len(places) < k:
            raise IndexError(
                f"an epoch of {len(videos)} videos has {len(videos) // k} batches of {k}, not {draw.batch + 1}"
            )
        return videos[places].astype(np.int64)[None]

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.video = values


@lru_cache(maxsize=1)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch]))).permutation(n)
