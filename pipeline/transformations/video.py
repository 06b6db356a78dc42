"""i: which video."""

from functools import lru_cache

import numpy as np

from gdt.common.randomness import Stream, generator
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.base import Branches, Transformation, VideoPool


class Video(Transformation):
    """Each video at most once per epoch, K per batch; an incomplete last batch is dropped."""

    name = "video"

    def sample(self, rng: np.random.Generator, k: int, branches: Branches) -> np.ndarray:
        first = branches.batch * k
        chosen = _order(branches.pool, branches.seed, branches.epoch)[first : first + k]
        return branches.pool.videos[chosen].astype(np.int64)[None]

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.video = values


@lru_cache(maxsize=2)  # a cache of shards looks into the next epoch
def _order(pool: VideoPool, seed: int, epoch: int) -> np.ndarray:
    """The order of the videos in an epoch, as indices into pool.videos: int64 [n].

    A random permutation. With a window, the shards are permuted and cut into as few, equal windows as possible; the
    videos of the first window follow each other in random order, then those of the second, and so on, so that a shard
    is read only during its window.
    """
    rng = generator(Stream.EPOCH, seed, epoch)
    n = len(pool.videos)
    if not pool.window:
        return rng.permutation(n)
    assert pool.shards is not None
    shards, shard = np.unique(pool.shards[pool.videos], return_inverse=True)
    windows = -(-len(shards) // pool.window)
    window = rng.permutation(len(shards)) * windows // len(shards)  # of each shard
    videos = rng.permutation(n)
    return videos[np.argsort(window[shard[videos]], kind="stable")]
