"""Plans of clips for finetuning and evaluation."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gdt.pipeline.clips import ClipSampling, moment_starts, random_clips, uniform_clips, usable
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
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
    assert uniform_clips(lengths, np.array([3]), 1, Clip(), EVALUATION).leaves.start.tolist() == [45]
    assert moment_starts(lengths, np.array([3]), Clip(53), ["video"], 0.09)[1].max() == 67  # of 68 starts, not 25 * 2.7


@pytest.mark.parametrize(("rows", "audio", "both"), [(200, 30, 5), (110, 3, 3)])
def test_each_modality_has_its_own_starts_unless_they_are_compared(
    index: Index, rows: int, audio: int, both: int
) -> None:
    """The last clip of each ends with its own stream: sound that ends early moves no picture, nor long clips sound."""
    clip = Clip(frames=8, stride=12)  # 85 frames, and 99 rows
    cut = replace(index, frame_count=np.full(len(index), 90), mel_count=np.full(len(index), rows))
    for modalities, last in ((["video"], 5), (["audio"], audio), (["video", "audio"], both)):
        leaves = uniform_clips(cut, np.array([3]), 3, clip, EVALUATION, modalities).leaves
        assert leaves.start.reshape(-1, 3)[:, 2].tolist() == [last] * len(modalities)
    for name, last in (("video", 5), ("audio", audio)):
        plans = random_clips(cut, VIDEOS, TARGETS, clip, replace(TRAINING, clips=200), (0,), name)
        assert max(int(plan.leaves.start.max()) for plan in plans) == last


def test_usable_videos_have_every_modality_whatever_else_is_in_the_data_set(index: Index) -> None:
    """Against the rule in words: pictures count however short, sound from a clip on, or in short official videos."""
    rng, clip = np.random.default_rng(0), Clip(frames=8, stride=4)
    n = len(index)
    columns = {
        "frame_count": rng.choice([0, 10, 29, 90], n), "mel_count": rng.choice([0, 40, 99, 300], n),
        "text_count": rng.choice([0, 3], n), "folds": rng.choice(["", "train,test"], n).astype(object),
    }  # fmt: skip
    mixed = replace(index, **columns)
    for modalities in (["video"], ["audio"], ["video", "audio"], ["video", "text"]):
        for video, found in enumerate(usable(mixed, clip, modalities).tolist()):
            frames, rows = columns["frame_count"][video], columns["mel_count"][video]
            short = columns["folds"][video] and (frames or rows * 30 // 100) < 30
            has = {
                "video": frames > 0,
                "audio": rows >= 99 or (rows > 0 and short),
                "text": columns["text_count"][video],
            }
            assert found == all(has[name] for name in modalities), (modalities, frames, rows)


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
    plans = random_clips(index, VIDEOS, TARGETS, CLIP, TRAINING, (0, 0, 0))
    assert [len(plan) for plan in plans] == [4, 4, 4] and TRAINING.batches(5) == 3, "of 15 clips"


def test_random_starts_are_uniform(index: Index) -> None:
    short = replace(index, frame_count=np.full(len(index), 20))  # 5 starts for a clip of 16 frames
    many = replace(TRAINING, clips=600, batch=3000)
    (plan,) = random_clips(short, VIDEOS, TARGETS, CLIP, many, (0, 0, 0))
    counts = np.bincount(plan.leaves.start, minlength=5)
    assert len(counts) == 5 and np.abs(counts - 600).max() < 4 * np.sqrt(3000 * 0.2 * 0.8)
