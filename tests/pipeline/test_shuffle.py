"""Shuffling all videos, or windows of shards: randomness of the batches and reading of the shards."""

import numpy as np
import pytest

from gdt.common.randomness import Stream, generator
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.base import Branches, VideoPool
from gdt.pipeline.transformations.video import Video
from gdt.pipeline.tree import sampling_tree
from tests.composed import composed


def batches(where: VideoPool, k: int, epoch: int = 0, seed: int = 0) -> list[np.ndarray]:
    """The videos of every batch of an epoch."""
    drawn = []
    for batch in range(len(where.videos) // k):
        rng = generator(Stream.BATCH, seed, epoch, batch)
        drawn.append(Video().sample(rng, k, Branches(1, {}, where, seed, epoch, batch))[0])
    return drawn


UNEVEN = np.repeat(np.arange(11), [3, 9, 1, 6, 6, 2, 8, 5, 7, 4, 6])


@pytest.mark.parametrize(("window", "k"), [(0, 5), (1, 5), (3, 2), (4, 8), (11, 5), (99, 2)])
def test_an_epoch_reads_at_most_a_window_of_shards_at_any_time(window: int, k: int) -> None:
    usable = np.flatnonzero(np.arange(len(UNEVEN)) % 7 != 2)  # the third shard has no usable video
    where = VideoPool(usable, np.full(len(UNEVEN), 50), 30, UNEVEN if window else None, window)
    orders = []
    for epoch in range(4):
        order = np.concatenate(batches(where, 1, epoch))
        assert sorted(order) == usable.tolist()  # each once
        assert np.concatenate(batches(where, k, epoch)).tolist() == order[: len(order) // k * k].tolist()
        shard = UNEVEN[order]
        for position in range(len(order)):  # shards begun but not finished
            assert len(set(shard[: position + 1]) & set(shard[position:])) <= (window or 11)
        orders.append(order.tolist())
    assert len({tuple(order) for order in orders}) == 4
    assert np.concatenate(batches(where, 1, 2)).tolist() == orders[2]
    assert np.concatenate(batches(where, 1, 2, seed=1)).tolist() != orders[2]


def test_windows_use_the_shards_of_the_index(index: Index) -> None:
    messages: list[str] = []
    composition = composed("e", 4)
    clip = Clip(8, 4, 32)
    trees = {n: sampling_tree(index, composition, clip, "train", 0, messages.append, n) for n in (0, 1, 2, 99)}
    shards = np.unique(index.shard[index.split == "train"])
    assert ["; shuffled within groups" in line for line in messages] == [False, True, len(shards) > 2, False]
    assert f"shuffled within groups of 1 of the {len(shards)} shards" in messages[1]
    tree = trees[1]
    read = [index.shard[tree.plan(0, batch).columns["video"]] for batch in range(tree.batches_per_epoch)]
    order = np.concatenate([shard[::2] for shard in read])
    assert len(np.flatnonzero(np.diff(order))) == len(set(order.tolist())) - 1
