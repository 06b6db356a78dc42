"""Plans of clips for finetuning and evaluation."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from gdt.pipeline.clips import ClipSampling, ResizedCrop, random_clips, uniform_clips
from gdt.pipeline.leaves import MODALITIES, Clip
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.video import regions
from gdt.pipeline.transformations.augmentation import EVALUATION, Augmentation
from tests.pipeline.test_loader import CLIP, NO_COLOUR, load

TRAINING = ClipSampling(clips=3, batch=4, augmentation=Augmentation(scale=(44, 60)))
VIDEOS, TARGETS = np.array([3, 8, 20, 21, 30]), np.array([0, 1, 1, 0, 2])


def test_uniform_clips_span_all_starts(index: Index) -> None:
    lengths = replace(index, frame_count=np.where(np.arange(len(index)) == 3, 120, 31))
    leaves = uniform_clips(lengths, np.array([3, 8]), 10, Clip(), EVALUATION).leaves
    assert leaves.start.reshape(2, 10)[0].tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert leaves.start.reshape(2, 10)[1].tolist() == [0] * 5 + [1] * 5
    assert leaves.video.tolist() == [3] * 10 + [8] * 10
    tenths = uniform_clips(lengths, np.array([3]), 10, Clip(), EVALUATION, to_the_end=False).leaves
    assert tenths.start.tolist() == [0, 9, 18, 27, 36, 45, 54, 63, 72, 81]  # 0, 0.1, ... 0.9 of the 91 starts
    assert uniform_clips(lengths, np.array([3]), 1, Clip(), EVALUATION).leaves.start.tolist() == [45]


def test_leaves_are_sorted_by_video_modality_clip_and_crop(index: Index) -> None:
    plan = uniform_clips(index, np.array([3, 8]), 2, CLIP, EVALUATION, 3, modalities=("video", "audio")).leaves
    assert plan.video.tolist() == [3] * 12 + [8] * 12
    assert plan.modality.tolist() == ([MODALITIES.index("video")] * 6 + [MODALITIES.index("audio")] * 6) * 2
    assert plan.start[:6].tolist() == [0] * 3 + [plan.start[5]] * 3 and plan.start[5] > 0
    assert plan.draws["left"][:6].tolist() == [0, 0.5, 1] * 2 and (plan.draws["top"] == 0.5).all()


def test_three_crops_span_the_longer_side(index: Index) -> None:
    side = int(index.height[0])
    for longer, expected in (
        ("width", [[0, 0], [0, side / 2], [0, side]]),
        ("height", [[0, 0], [side / 2, 0], [side, 0]]),
    ):
        longish = replace(index, **{longer: 2 * getattr(index, longer)})
        plan = uniform_clips(longish, np.array([0]), 1, CLIP, replace(EVALUATION, scale=(CLIP.size,) * 2), 3)
        begin, end = regions(longish, plan.leaves, CLIP.size)
        assert begin.tolist() == expected and (end - begin == side).all()


def test_a_clip_longer_than_its_video_repeats_the_last_frame(index: Index) -> None:
    video = 5
    short = replace(index, frame_count=np.where(np.arange(len(index)) == video, 10, index.frame_count))
    fixed = replace(NO_COLOUR, scale=(44, 44), flip=0.0, center_crop=True)
    plan = uniform_clips(short, np.array([video]), 2, CLIP, fixed)  # 16 frames long
    assert plan.leaves.start.tolist() == [0, 0]
    assert plan.leaves.frames[0].tolist() == [0, 3, 6, 9, 9, 9]
    (batch,) = load(index, [plan])
    clip = batch.inputs["video"][0]
    assert clip[:, 3].equal(clip[:, 5]) and not clip[:, 3].equal(clip[:, 2])
    assert len(ShardReader(index).frames(video, np.array([9, 9, 9]))) == 3


def test_an_epoch_takes_every_video_equally_often_in_a_new_order(index: Index) -> None:
    epochs = [
        list(random_clips(index, VIDEOS, TARGETS, CLIP, replace(TRAINING, batch=5), (0, 1, epoch)))
        for epoch in (0, 1, 0)
    ]
    orders = [np.concatenate([plan.leaves.video for plan in plans]).tolist() for plans in epochs]
    assert Counter(orders[0]) == dict.fromkeys(VIDEOS.tolist(), 3)
    assert orders[0] != orders[1] and orders[0] == orders[2]
    assert all(
        np.array_equal(one.leaves.draws["left"], other.leaves.draws["left"])
        for one, other in zip(epochs[0], epochs[2], strict=True)
    )
    of = dict(zip(VIDEOS.tolist(), TARGETS.tolist(), strict=True))
    for plan in epochs[0]:
        assert plan.columns["target"].tolist() == [of[video] for video in plan.leaves.video.tolist()]
        last = plan.leaves.start + plan.leaves.frames.max(1)
        assert (plan.leaves.start >= 0).all() and (last < index.frame_count[plan.leaves.video]).all()


def test_an_epoch_drops_its_partial_batch(index: Index) -> None:
    plans = list(random_clips(index, VIDEOS, TARGETS, CLIP, TRAINING, (0, 0, 0)))
    assert [len(plan) for plan in plans] == [4, 4, 4] and TRAINING.batches(5) == 3  # of 15 clips


def test_random_starts_are_uniform(index: Index) -> None:
    short = replace(index, frame_count=np.full(len(index), 20))  # 5 starts for a clip of 16 frames
    many = replace(TRAINING, clips=600, batch=3000)
    (plan,) = random_clips(short, VIDEOS, TARGETS, CLIP, many, (0, 0, 0))
    counts = np.bincount(plan.leaves.start, minlength=5)
    assert len(counts) == 5 and np.abs(counts - 600).max() < 4 * np.sqrt(3000 * 0.2 * 0.8)


def test_share_of_clips_with_colour_jitter(index: Index) -> None:
    some = replace(TRAINING, clips=600, batch=3000, jittered=0.8)
    (plan,) = random_clips(index, VIDEOS, TARGETS, CLIP, some, (0, 0, 0))
    plain = np.all([plan.leaves.draws[name] == 1 for name in ("brightness", "contrast", "saturation")], axis=0)
    assert abs(plain.mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 3000)


def test_areas_and_ratios_of_resized_crops() -> None:
    n = 20_000
    height, width = np.full(n, 240), np.full(n, 320)
    crop = ResizedCrop().draw(np.random.default_rng(0), height, width)
    area, ratio = crop["height"] * crop["width"], crop["width"] / crop["height"] * 320 / 240
    assert area.min() > 0.139 and area.max() <= 1 and (crop["height"] <= 1).all() and (crop["width"] <= 1).all()
    assert ratio.min() > 0.749 and ratio.max() < 1.334
    # small areas fit at any ratio, so they are uniform
    small = area[area < 0.5]
    assert abs(small.mean() - 0.32) < 0.01 and abs(np.log(ratio[area < 0.5]).mean()) < 0.01


@pytest.mark.parametrize(("height", "width", "expected"), [(10, 1000, (1.0, 1 / 75)), (1000, 10, (1 / 75, 1.0))])
def test_a_crop_that_never_fits_becomes_the_largest_allowed_one(
    height: int, width: int, expected: tuple[float, float]
) -> None:
    crop = ResizedCrop(area=(0.9, 1.0)).draw(np.random.default_rng(0), np.array([height]), np.array([width]))
    assert (crop["height"][0], crop["width"][0]) == pytest.approx(expected, rel=1e-5)
    assert crop["top"][0] == crop["left"][0] == 0.5


def test_a_resized_crop_equals_pillow(index: Index) -> None:
    plan = uniform_clips(index, np.array([0]), 1, CLIP, replace(NO_COLOUR, scale=(44, 44), flip=0.0, center_crop=True))
    plan.leaves.draws |= {"height": np.array([0.5], np.float32), "width": np.array([0.9], np.float32)}
    plan.leaves.draws |= {"top": np.array([1.0], np.float32), "left": np.array([0.0], np.float32)}
    (batch,) = load(index, [plan])
    first = int(plan.leaves.start[0])
    (jpeg,) = ShardReader(index).frames(0, np.array([first]))
    picture = Image.open(io.BytesIO(jpeg.tobytes()))
    w, h = picture.size
    expected = np.asarray(picture.resize((CLIP.size,) * 2, Image.Resampling.BILINEAR, (0, h / 2, 0.9 * w, h)), float)
    s = index.statistics
    got = batch.inputs["video"][0, :, 0].permute(1, 2, 0).numpy() * s.pixel_std + s.pixel_mean
    assert np.abs(got - expected).mean() < 3
