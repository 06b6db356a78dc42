"""Hierarchical sampling is a pure, balanced function of (seed, epoch, batch)."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.pipeline import presets
from gdt.pipeline.groups import take_rank
from gdt.pipeline.leaves import Clip, Leaves
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import EVALUATION, Augmentation, draw_augmentations
from gdt.pipeline.transformations.base import VideoPool, distinct
from gdt.pipeline.transformations.order import Order
from gdt.pipeline.tree import BatchPlan, Tree, sampling_tree
from tests.composed import composed

STARTS = np.array([7, 2, 90, 33, 5, 61, 12, 40, 2, 8, 100, 3, 3])


def tree(preset: str = "l", k: int = 4, seed: int = 0) -> Tree:
    return Tree(composed(preset, k), VideoPool(np.arange(len(STARTS)), STARTS, 30), Clip(), 40, seed)


def same(one: BatchPlan, other: BatchPlan) -> bool:
    return all(np.array_equal(one.columns[name], other.columns[name]) for name in one.columns) and all(
        np.array_equal(one.leaves.draws[name], other.leaves.draws[name]) for name in one.leaves.draws
    )


@pytest.mark.parametrize("preset", presets.TABLE_1)
def test_a_plan_depends_only_on_seed_epoch_and_batch(preset: str) -> None:
    forwards = [tree(preset).plan(epoch, batch) for epoch in range(3) for batch in range(3)]
    one = tree(preset)
    backwards = [one.plan(epoch, batch) for epoch in (2, 1, 0) for batch in (2, 1, 0)]
    assert all(same(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))
    assert [same(a, b) for a, b in zip(forwards, one.plans(0, 9), strict=True)] == [True] * 9
    assert not any(same(forwards[0], other) for other in forwards[1:])
    assert not same(forwards[0], tree(preset, seed=1).plan(0, 0))


def same_leaves(shares: list[BatchPlan], whole: BatchPlan) -> np.ndarray:
    """Assert that the ranks' shares together equal the whole batch; return their leaf numbers."""
    leaf = np.concatenate([share.columns["leaf"] for share in shares])
    assert np.array_equal(np.sort(leaf), np.arange(len(whole)))  # each is on one rank
    for share in shares:
        assert (np.diff(share.leaves.modality) >= 0).all()
    for name, values in whole.columns.items():
        assert np.array_equal(np.concatenate([share.columns[name] for share in shares]), values[leaf])
    parts = [share.leaves.arrays() | share.leaves.draws for share in shares]
    for name, values in (whole.leaves.arrays() | whole.leaves.draws).items():
        assert np.array_equal(np.concatenate([part[name] for part in parts]), values[leaf])
    return leaf


@pytest.mark.parametrize("preset", ["a", "e", "l", "three"])
def test_groups_are_the_same_on_any_number_of_ranks_and_hold_no_video_twice(preset: str) -> None:
    composition = composed(preset, 16)
    source = VideoPool(np.arange(40), np.full(40, 100), 30)
    one = Tree(composition, source, Clip(), 40, seed=3)
    whole = one.plan(1, 1)

    def grouped(world: int) -> list[tuple[int, ...]]:
        shares = [take_rank(whole, rank, world, group_size=4) for rank in range(world)]
        same_leaves(shares, whole)
        members = []
        for share in shares:
            for modality in np.unique(share.leaves.modality):
                rows = np.flatnonzero(share.leaves.modality == modality)
                for chosen in rows.reshape(-1, 4):
                    group = share.take(chosen)
                    assert len(np.unique(group.leaves.video)) == len(group) == 4
                    members.append((int(modality), *group.columns["leaf"].tolist()))
        return sorted(members)

    assert grouped(1) == grouped(2) == grouped(4)
    # each modality has its own order
    by_modality = [[group for group in grouped(1) if group[0] == number] for number in np.unique(whole.leaves.modality)]
    videos = [[frozenset(whole.leaves.video[list(group[1:])]) for group in of] for of in by_modality]
    assert all(set(one) != set(other) for one, other in itertools.combinations(videos, 2))
    for in_modality in videos:  # and each view
        assert len(set(in_modality)) > 0.8 * len(in_modality)
    tree_order = [frozenset(np.unique(whole.leaves.video)[:4])]
    assert not set(tree_order) & set(videos[0])
    with pytest.raises(
        UserError, match="16 videos per batch do not make whole groups of --group-size 4 for 64 processes; set it to"
    ):
        take_rank(whole, 0, 64, group_size=4)
    with pytest.raises(UserError, match="of --group-size 5 for 1 process; set it to 2, 4, 8, 16, 0, start"):
        take_rank(whole, 0, 1, group_size=5)
    with pytest.raises(UserError, match="16 videos per batch cannot be split over 3 GPUs"):
        take_rank(whole, 0, 3)
    whole.leaves.modality[0] = 2  # by a transformation of one's own
    assert len(take_rank(whole, 0, 1)) == len(whole)
    with pytest.raises(UserError, match="videos or modalities unequal numbers of leaves"):
        take_rank(whole, 0, 1, group_size=4)


@pytest.mark.parametrize("row", [*"bdfhiklm", "rotation", "order"])
def test_a_group_holds_every_value_of_a_factor_that_takes_all(row: str) -> None:
    varied = {"rotation": "rotation:d:4", "order": "order(2):d:2"}.get(row, "")
    text = f"video:d time_shift:i:1 modality:i:1 {varied} augmentation:i:2"
    factors = presets.TABLE_1[row].factors if row in presets.TABLE_1 else text
    composition = parse(factors, 64, Augmentation())
    whole = Tree(composition, VideoPool(np.arange(64), np.full(64, 100), 30), Clip(), 40, seed=1).plan(0, 0)
    share = take_rank(whole, 0, 1, group_size=32)
    every = [f for f in composition.factors if f.k > 1 and f.name != "modality" and f.transformation.takes_all(f.k)]
    assert every
    for modality, factor in itertools.product(np.unique(share.leaves.modality), every):
        rows = np.flatnonzero(share.leaves.modality == modality)
        for chosen in rows.reshape(-1, 32):
            assert set(share.columns[factor.name][chosen]) == set(range(factor.k))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_distinct_draws_are_uniform_over_ordered_tuples(k: int) -> None:
    rng = np.random.default_rng(0)
    sizes = np.full(24_000, 4)
    drawn = distinct(rng, sizes, k)
    assert all(len(set(row)) == k for row in drawn[:500].tolist())
    _, count = np.unique(drawn, axis=0, return_counts=True)
    tuples = {1: 4, 2: 12, 3: 24}[k]
    expected = 24_000 / tuples
    assert len(count) == tuples
    assert np.abs(count - expected).max() < 5 * np.sqrt(expected)


def test_draws_stay_in_their_ranges() -> None:
    a = Augmentation(hue=0.1)
    draws = draw_augmentations(a, np.random.default_rng(0), 20_000, (99, 40))
    assert set(np.unique(draws["scale"])) == set(range(128, 161))
    for name, low, high in [("brightness", 0.6, 1.4), ("hue", -0.1, 0.1), ("volume", 0.9, 1.1), ("top", 0, 1)]:
        assert low <= draws[name].min() < low + 0.01 and high - 0.01 < draws[name].max() <= high
    assert abs(draws["flip"].mean() - 0.5) < 0.02
    assert set(np.unique(draws["frequency_width"])) == {0, 1, 2, 3}
    assert set(np.unique(draws["time_width"])) == set(range(7))
    assert (draws["frequency_start"] + draws["frequency_width"]).max() == 40
    assert (draws["time_start"] + draws["time_width"]).max() == 99
    fixed = draw_augmentations(EVALUATION, np.random.default_rng(0), 5, (99, 40))
    assert all(len(np.unique(values)) == 1 for name, values in fixed.items() if not name.endswith("start"))
    assert fixed["time_width"].max() == fixed["frequency_width"].max() == 0
    with pytest.raises(UserError, match="hue is 1.5"):
        Augmentation(hue=1.5)


@pytest.mark.parametrize("clip", [Clip(size=16), Clip(frames=8, stride=4, size=16)], ids=["paper", "tiny"])
def test_sound_is_cut_where_the_frames_are(clip: Clip) -> None:
    for segments in (2, 3, 4, 5):
        order = Order(segments)
        values = np.arange(len(order.values))
        leaves = Leaves.plain(len(values), clip, 40)
        order.act(leaves, values, np.random.default_rng(0))
        assert (np.sort(leaves.frames, 1) == np.arange(clip.frames) * clip.stride).all()
        assert (np.sort(leaves.mel_frames, 1) == np.arange(clip.mel_frames)).all()
        played = leaves.frames / clip.stride / clip.frames  # source of each frame, as a share of the clip
        middles = np.floor((np.arange(clip.frames) + 0.5) * clip.mel_frames / clip.frames).astype(int)
        heard = leaves.mel_frames[:, middles] / clip.mel_frames
        assert np.abs(heard - played - 0.5 / clip.frames).max() < 1 / clip.frames, segments
        assert len(np.unique(leaves.frames, axis=0)) == len(values)
    with pytest.raises(UserError, match="order has 5 segments and a clip 4 frames"):
        Order(5).act(Leaves.plain(1, Clip(frames=4), 40), np.zeros(1, np.int64), np.random.default_rng(0))


def test_a_clip_fits_after_the_rounding_of_each_factor(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Order, "reach", lambda *_: 2.0)  # 98 * 1.25 is rounded to 123, and 2 * 123 is above 98 * 2.5
    composition = parse("video:d speed(1,1.25):i:2 order(2):i:2 modality(audio):i:1 augmentation:i:1", 3)
    short, exact = (replace(index, mel_count=np.full(len(index), rows)) for rows in (246, 247))
    with pytest.raises(UserError, match="too short for a clip of 2.48 s"):
        sampling_tree(short, composition, Clip(), "train", 0)
    assert not sampling_tree(exact, composition, Clip(), "train", 0).plan(0, 0).leaves.start.any()  # there is only one
