"""i: which video."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.base import Branches, Source, Transformation


class Video(Transformation):
    """All videos, each once per epoch: batch b takes the b-th run of k videos of the epoch's order."""

    name = "video"

    def sample(self, rng: np.random.Generator, k: int, branches: Branches) -> np.ndarray:
        if branches.count != 1:
            raise ValueError("videos are the first factor of the tree")
        videos, draw = branches.source.videos, branches.draw
        places = _order(branches.source, draw.seed, draw.epoch)[draw.batch * k : (draw.batch + 1) * k]
        if len(places) < k:
            raise IndexError(
                f"an epoch of {len(videos)} videos has {len(videos) // k} batches of {k}, not {draw.batch + 1}"
            )
        return videos[places].astype(np.int64)[None]

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.video = values


@lru_cache(maxsize=1)
def _order(source: Source, seed: int, epoch: int) -> np.ndarray:
    """The places of all videos in the order in which an epoch takes them: int64 [n].

    A permutation. With a window, the shards are permuted first and cut into as few runs of at most so many as there
    can be, all of one length or one less; then come the videos of the first run, permuted, those of the second, and so
    on. So all of a shard's videos are taken while those of its run are.

    With n videos in S shards of one size, and windows of N shards or M = nN/S >= k videos, two of one shard meet in
    about (k - 1) / (M - 1) of the epochs and not in (k - 1) / (n - 1), which is S/N times as often, and two of
    different shards 1 - 1/N times as often. 1/N of the others in its batch, not 1/S, are of a video's own shard.
    """
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch])))
    n, size = len(source.videos), source.window
    if not size:
        return rng.permutation(n)
    if source.shards is None:
        raise ValueError("a window of shards needs the shard of every video")
    shards, shard = np.unique(source.shards[source.videos], return_inverse=True)
    windows = -(-len(shards) // size)
    window = rng.permutation(len(shards)) * windows // len(shards)  # of each shard
    videos = rng.permutation(n)
    return videos[np.argsort(window[shard[videos]], kind="stable")]
