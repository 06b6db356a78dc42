"""Clip plans for finetuning and evaluation, executed by the same loader as the plans of the sampling tree.

Each modality has its own starts, whatever else is asked for; only comparisons take several modalities at the same time.
Videos shorter than a clip are padded by repeating the last frame and the last log-mel row, since official splits count
every video.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gdt.common.randomness import Stream, generator
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import MODALITIES, Clip, Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import MEL_RATE
from gdt.pipeline.transformations.augmentation import Augmentation, centred, draw_augmentations
from gdt.pipeline.tree import BatchPlan


@dataclass(frozen=True)
class ClipSampling:
    """Settings of random clips for supervised training."""

    clips: int
    """Random clips per video and epoch."""
    batch: int
    """Clips per batch; an epoch drops its last, partial batch."""
    augmentation: Augmentation

    def batches(self, videos: int) -> int:
        """Batches per epoch of that many videos."""
        return videos * self.clips // self.batch


def usable(index: Index, clip: Clip, modalities: Collection[str]) -> np.ndarray:
    """Whether each video has all of these modalities: bool [n_videos].

    Pictures count however short they are, sound only if a clip fits, or if official folds count a shorter video.
    """
    # the window of the last row, 20 ms long, ends one row later
    too_short = (index.folds != "") & (index.length / index.fps < (clip.mel_frames + 1) / MEL_RATE)
    sound = (index.mel_count >= clip.mel_frames) | (too_short & (index.mel_count > 0))
    present = {"video": index.frame_count > 0, "audio": sound, "text": index.text_count > 0}
    return np.logical_and.reduce([present[name] for name in modalities])


def start_counts(index: Index, clip: Clip, modalities: Collection[str]) -> np.ndarray:
    """Number of start frames at which a clip of each of these modalities fits, at least 1: int64 [n_videos]."""
    frames = clip.frames if "video" in modalities else 0
    rows = clip.mel_frames if "audio" in modalities else 0
    return np.maximum(index.start_counts(frames, clip.stride, rows), 1)


def random_clips(
    index: Index,
    videos: np.ndarray,
    targets: np.ndarray,
    clip: Clip,
    sampling: ClipSampling,
    seeds: Sequence[int],
    modality: str = "video",
) -> Iterator[BatchPlan]:
    """One epoch of clips in random order, a pure function of `seeds`, with the targets in the column `target`.

    `videos` [n] are rows of the index, `targets` int64 [n] their classes.
    """
    rng = generator(Stream.FINETUNING_CLIPS, *seeds)
    order = rng.permutation(np.repeat(np.arange(len(videos)), sampling.clips))
    mel_frames, bands = (clip.mel_frames, index.bands) if modality == "audio" else (0, 1)
    starts = start_counts(index, clip, [modality])
    for number in range(sampling.batches(len(videos))):
        chosen = order[number * sampling.batch : (number + 1) * sampling.batch]
        leaves = Leaves.plain(len(chosen), clip, bands)
        leaves.video = videos[chosen].astype(np.int64)
        leaves.modality[:] = MODALITIES.index(modality)
        leaves.start = rng.integers(0, starts[leaves.video])
        leaves.draws = draw_augmentations(sampling.augmentation, rng, len(chosen), (mel_frames or 1, bands))
        rng.random(len(chosen))  # unused: it keeps the numbers of earlier runs
        yield _plan(index, leaves, {"target": targets[chosen].astype(np.int64)})


def uniform_clips(
    index: Index,
    videos: np.ndarray,
    clips: int,
    clip: Clip,
    augmentation: Augmentation,
    modalities: Sequence[str] = MODALITIES[:1],
    starts: np.ndarray | None = None,
) -> BatchPlan:
    """`clips` clips spread uniformly over each video [n], from the first to the last possible start.

    A video with fewer starts repeats some. Clips of several modalities begin at the same time. Leaves are sorted by
    video, modality and clip. `starts`: other first frames, int64 [n, clips].
    """
    if starts is None:
        position = np.arange(clips) / (clips - 1) if clips > 1 else np.array([0.5])
        counts = start_counts(index, clip, modalities)[videos]
        starts = np.floor(position[None] * (counts[:, None] - 1) + 0.5).astype(np.int64)
    leaves = Leaves.plain(len(videos) * len(modalities) * clips, clip, index.bands)
    shape = (len(videos), len(modalities), clips)

    def spread(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(values, shape)).reshape(-1)

    leaves.video = spread(videos.astype(np.int64)[:, None, None])
    leaves.modality = spread(np.array([MODALITIES.index(name) for name in modalities])[None, :, None])
    leaves.start = spread(starts[:, None])
    rng = np.random.Generator(np.random.Philox(0))  # unused: the evaluation augmentation draws nothing at random
    leaves.draws = draw_augmentations(augmentation, rng, len(leaves), (1, 1))
    return _plan(index, leaves, {})


def moment_starts(
    index: Index, videos: np.ndarray, clip: Clip, modalities: Sequence[str], every: float
) -> tuple[np.ndarray, np.ndarray]:
    """Clips that start each `every` seconds, as long as all modalities fit that a video has, and at least one.

    Returns, for each, the row of its video and its first stored frame: int64 [clips].
    """
    counts = np.full(len(index), np.nan)
    for name in modalities:
        has = usable(index, clip, [name])
        counts = np.fmin(counts, np.where(has, start_counts(index, clip, [name]), np.nan))  # a number, if one is
    counts = np.nan_to_num(counts, nan=1.0)[videos]
    step = every * index.fps
    many = np.ceil((counts - 0.5) / step).astype(np.int64)  # of the numbers whose start, when rounded, is below count
    number = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    starts = np.minimum(np.floor(number * step + 0.5), np.repeat(counts, many) - 1)  # `many` may be rounded up
    return np.repeat(videos, many), starts.astype(np.int64)


def uniform_plans(
    index: Index,
    videos: np.ndarray,
    clips: int,
    inputs: Inputs,
    modalities: Sequence[str] = MODALITIES[:1],
    clips_per_plan: int = 64,
    starts: np.ndarray | None = None,
) -> Iterator[BatchPlan]:
    """`uniform_clips` of all videos, centre-cropped, with about `clips_per_plan` clips of a modality per plan.

    `starts`: other first frames, int64 [n, clips].
    """
    size = max(1, clips_per_plan // clips)
    crop = centred(inputs.short_side)
    for first in range(0, len(videos), size):
        some = slice(first, first + size)
        at = None if starts is None else starts[some]
        yield uniform_clips(index, videos[some], clips, inputs.clip, crop, modalities, at)


def _plan(index: Index, leaves: Leaves, columns: dict[str, np.ndarray]) -> BatchPlan:
    """The plan of these leaves, with frames and log-mel rows clipped to the last ones of the video."""
    last_frame = index.length[leaves.video] - 1 - leaves.start
    leaves.frames = np.minimum(leaves.frames, last_frame[:, None])
    last_row = index.mel_count[leaves.video] - 1 - index.mel_position(leaves.start)
    leaves.mel_frames = np.minimum(leaves.mel_frames, np.maximum(last_row, 0)[:, None])
    return BatchPlan(0, 0, columns | {"leaf": np.arange(len(leaves), dtype=np.int64)}, leaves)
