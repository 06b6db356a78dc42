"""Clip plans for finetuning and evaluation, executed by the same loader as the plans of the sampling tree.

Videos shorter than a clip are padded by repeating the last frame and the last log-mel row, since official splits count
every video.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gdt.common.streams import Stream, generator
from gdt.pipeline.leaves import MODALITIES, Clip, Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import BatchPlan

_TRIES = 10


@dataclass(frozen=True)
class ResizedCrop:
    """Crops of random area and shape, resized to the square of a clip, as in torchvision's RandomResizedCrop."""

    area: tuple[float, float] = (0.14, 1.0)
    """Range of the share of the frame's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of width / height, drawn log-uniformly."""

    def draw(self, rng: np.random.Generator, height: np.ndarray, width: np.ndarray) -> dict[str, np.ndarray]:
        """Crops of n frames: `height` and `width` as shares of the frame's, `top` and `left` as shares of the free
        margin; float32 [n] each.

        Takes the first of ten tries that fits into the frame, or else the largest centre crop of an allowed ratio.
        """
        shape = (_TRIES, len(height))
        area = rng.uniform(self.area[0], self.area[1], shape) * height * width
        ratio = np.exp(rng.uniform(np.log(self.ratio[0]), np.log(self.ratio[1]), shape))
        tries = np.stack([np.sqrt(area / ratio) / height, np.sqrt(area * ratio) / width])  # [2, tries, n]
        fits = (tries <= 1).all(0)
        first = tries[:, fits.argmax(0), np.arange(len(height))]
        allowed = np.clip(width / height, *self.ratio)
        largest = np.stack([np.minimum(1, width / allowed / height), np.minimum(1, height * allowed / width)])
        margin = rng.random((2, len(height)))
        values = np.where(fits.any(0), [*first, *margin], [*largest, *np.full_like(margin, 0.5)]).astype(np.float32)
        return dict(zip(("height", "width", "top", "left"), values, strict=True))


@dataclass(frozen=True)
class ClipSampling:
    """Settings of random clips for supervised training."""

    clips: int
    """Random clips per video and epoch."""
    batch: int
    """Clips per batch; an epoch drops its last, partial batch."""
    augmentation: Augmentation
    resized: ResizedCrop | None = None
    """Random resized crops instead of the augmentation's square ones."""
    jittered: float = 1.0
    """Share of the clips with colour jitter."""
    late_jitter: bool = False
    """Colour jitter after normalisation, see `colour.late_affine`."""

    def draw(self, rng: np.random.Generator, index: Index, videos: np.ndarray) -> dict[str, np.ndarray]:
        """Draws of a clip of each video [n], see `Leaves.draws`."""
        draws = self.augmentation.draw(rng, len(videos), (1, 1))
        if self.resized is not None:
            draws |= self.resized.draw(rng, index.height[videos], index.width[videos])
        plain = rng.random(len(videos)) >= self.jittered
        for name, neutral in (("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0)):
            draws[name][plain] = neutral
        if self.late_jitter:
            draws["late_jitter"] = np.ones(len(videos), np.float32)
        return draws

    def batches(self, videos: int) -> int:
        """Batches per epoch of that many videos."""
        return videos * self.clips // self.batch


def usable(index: Index, clip: Clip, audio: bool) -> np.ndarray:
    """Whether a clip fits into each video, with its audio if asked for: bool [n_videos].

    Official splits count shorter videos, too.
    """
    fits = index.start_counts(clip.frames, clip.stride, clip.mel_frames if audio else 0) > 0
    # the window of the last row, 20 ms long, ends one row later
    needed = max(((clip.frames - 1) * clip.stride + 1) / index.fps, (clip.mel_frames + 1) / 100 if audio else 0)
    too_short = (index.folds != "") & (index.frame_count / index.fps < needed)
    return fits | (too_short & (index.mel_count > 0) if audio else too_short)


def random_clips(
    index: Index, videos: np.ndarray, targets: np.ndarray, clip: Clip, sampling: ClipSampling, seeds: Sequence[int]
) -> Iterator[BatchPlan]:
    """One epoch of clips in random order, a pure function of `seeds`, with the targets in the column `target`.

    `videos` [n] are rows of the index, `targets` int64 [n] their classes.
    """
    rng = generator(Stream.FINETUNING_CLIPS, *seeds)
    order = rng.permutation(np.repeat(np.arange(len(videos)), sampling.clips))
    starts = np.maximum(index.start_counts(clip.frames, clip.stride), 1)
    for number in range(sampling.batches(len(videos))):
        chosen = order[number * sampling.batch : (number + 1) * sampling.batch]
        leaves = Leaves.plain(len(chosen), clip, bands=1)
        leaves.video = videos[chosen].astype(np.int64)
        leaves.start = rng.integers(0, starts[leaves.video])
        leaves.draws = sampling.draw(rng, index, leaves.video)
        yield _plan(index, leaves, {"target": targets[chosen].astype(np.int64)})


def uniform_clips(
    index: Index, videos: np.ndarray, clips: int, clip: Clip, augmentation: Augmentation, crops: int = 1,
    to_the_end: bool = True, modalities: Sequence[str] = MODALITIES[:1],
) -> BatchPlan:  # fmt: skip
    """`clips` clips spread uniformly over each video [n], each in `crops` crops along the longer side.

    Clips start from the first to the last possible start; without `to_the_end`, at 0, 1/clips, 2/clips, ... of them. A
    video with fewer starts repeats some. Leaves are sorted by video, modality, clip and crop.
    """
    steps = max(clips - 1, 1) if to_the_end else clips
    position = np.arange(clips) / steps if clips > 1 else np.array([0.5])
    mel_frames = clip.mel_frames if "audio" in modalities else 0
    starts = np.maximum(index.start_counts(clip.frames, clip.stride, mel_frames)[videos], 1)
    first = np.floor(position[None] * (starts[:, None] - 1) + 0.5).astype(np.int64)  # [n, clips]
    leaves = Leaves.plain(len(videos) * len(modalities) * clips * crops, clip, index.bands)
    shape = (len(videos), len(modalities), clips, crops)

    def spread(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(values, shape)).reshape(-1)

    leaves.video = spread(videos.astype(np.int64)[:, None, None, None])
    leaves.modality = spread(np.array([MODALITIES.index(name) for name in modalities])[None, :, None, None])
    leaves.start = spread(first[:, None, :, None])
    rng = np.random.Generator(np.random.Philox(0))  # unused: the evaluation augmentation draws nothing at random
    leaves.draws = augmentation.draw(rng, len(leaves), (1, 1))
    if crops > 1:
        tall = (index.height > index.width)[leaves.video]
        offset = spread(np.linspace(0, 1, crops, dtype=np.float32))
        leaves.draws["top"] = np.where(tall, offset, np.float32(0.5))
        leaves.draws["left"] = np.where(tall, np.float32(0.5), offset)
    return _plan(index, leaves, {})


def uniform_plans(
    index: Index, videos: np.ndarray, clips: int, clip: Clip, augmentation: Augmentation, crops: int = 1,
    to_the_end: bool = True, modalities: Sequence[str] = MODALITIES[:1], crops_per_plan: int = 64,
) -> Iterator[BatchPlan]:  # fmt: skip
    """`uniform_clips` of all videos, with about `crops_per_plan` crops of a modality per plan."""
    for part in split_videos(videos, clips * crops, crops_per_plan):
        yield uniform_clips(index, part, clips, clip, augmentation, crops, to_the_end, modalities)


def augmented(
    index: Index, plans: Iterable[BatchPlan], sampling: ClipSampling, rng: np.random.Generator,
    moved: Clip | None = None,
) -> Iterator[BatchPlan]:  # fmt: skip
    """Plans of `uniform_plans` with the draws of `sampling`.

    Start frames and crop positions stay, unless `moved` gives the length and stride of the clips: then both are random.
    """
    for plan in plans:
        leaves = plan.leaves
        draws = sampling.draw(rng, index, leaves.video)
        if moved:
            leaves.start = rng.integers(0, np.maximum(index.start_counts(moved.frames, moved.stride), 1)[leaves.video])
        else:
            draws |= {name: leaves.draws[name] for name in ("top", "left")}
        leaves.draws = draws
        yield plan


def split_videos(videos: np.ndarray, per_video: int, crops_per_plan: int = 64) -> list[np.ndarray]:
    """The videos of each plan of `uniform_plans`: up to `crops_per_plan` crops, at least one video."""
    size = max(1, crops_per_plan // per_video)
    return [videos[first : first + size] for first in range(0, len(videos), size)]


def _plan(index: Index, leaves: Leaves, columns: dict[str, np.ndarray]) -> BatchPlan:
    """The plan of these leaves, with frames and log-mel rows clipped to the last ones of the video."""
    last = (index.frame_count[leaves.video] - 1 - leaves.start)[:, None]
    leaves.frames = np.minimum(leaves.frames, last)
    last = (index.mel_count[leaves.video] - 1 - index.mel_position(leaves.start))[:, None]
    leaves.mel_frames = np.minimum(leaves.mel_frames, np.maximum(last, 0))
    return BatchPlan(0, 0, columns | {"leaf": np.arange(len(leaves), dtype=np.int64)}, leaves)
