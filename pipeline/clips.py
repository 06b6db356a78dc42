"""Plans without contrast: clips to finetune on and to evaluate with, executed by the same loader as those of the tree.

Videos that are shorter than a clip take part: their last frame is held. Official splits count every video.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gdt.pipeline.leaves import MODALITIES, Clip, Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import BatchPlan

_TRIES = 10


@dataclass(frozen=True)
class ResizedCrop:
    """Crops of random area and shape, resized to the square of a clip, as in torchvision's RandomResizedCrop."""

    area: tuple[float, float] = (0.14, 1.0)
    """Smallest and largest share of the frame's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest ratio of width to height, drawn uniformly on a logarithmic scale."""

    def draw(self, rng: np.random.Generator, height: np.ndarray, width: np.ndarray) -> dict[str, np.ndarray]:
        """Crops of frames of these sizes [n]: `height` and `width`, shares of the frame's, and where in the free margin
        they lie, `top` and `left`; float32 [n] each.

        The first of ten that fits into the frame; else the largest of the allowed shapes, in the centre.
        """
        shape = (_TRIES, len(height))
        area = rng.uniform(self.area[0], self.area[1], shape) * height * width
        ratio = np.exp(rng.uniform(np.log(self.ratio[0]), np.log(self.ratio[1]), shape))
        found = np.stack([np.sqrt(area / ratio) / height, np.sqrt(area * ratio) / width])  # [2, tries, n]
        fits = (found <= 1).all(0)
        first = found[:, fits.argmax(0), np.arange(len(height))]
        allowed = np.clip(width / height, *self.ratio)
        largest = np.stack([np.minimum(1, width / allowed / height), np.minimum(1, height * allowed / width)])
        margin = rng.random((2, len(height)))
        values = np.where(fits.any(0), [*first, *margin], [*largest, *np.full_like(margin, 0.5)]).astype(np.float32)
        return dict(zip(("height", "width", "top", "left"), values, strict=True))


@dataclass(frozen=True)
class ClipSampling:
    """How clips are drawn for supervised training."""

    clips: int
    """Random clips per video and epoch."""
    batch: int
    """Clips per batch; those left over at the end of an epoch are left out, others in each."""
    augmentation: Augmentation
    resized: ResizedCrop | None = None
    """Crops of random shape, in place of the augmentation's square ones."""
    jittered: float = 1.0
    """Share of the clips whose colours are jittered."""

    def batches(self, videos: int) -> int:
        """Per epoch over so many videos."""
        return videos * self.clips // self.batch


def random_clips(
    index: Index, videos: np.ndarray, targets: np.ndarray, clip: Clip, how: ClipSampling, seeds: Sequence[int]
) -> Iterator[BatchPlan]:
    """One epoch of clips in random order, a pure function of its `seeds`; the column `target` is that of the video.

    `videos` [n] are rows of the index, `targets` int64 [n].
    """
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seeds))))
    order = rng.permutation(np.repeat(np.arange(len(videos)), how.clips))
    starts = np.maximum(index.start_counts(clip.frames, clip.stride), 1)
    for number in range(how.batches(len(videos))):
        chosen = order[number * how.batch : (number + 1) * how.batch]
        leaves = Leaves.plain(len(chosen), clip, bands=1)
        leaves.video = videos[chosen].astype(np.int64)
        leaves.start = rng.integers(0, starts[leaves.video])
        leaves.draws = how.augmentation.draw(rng, len(leaves), (1, 1))
        if how.resized is not None:
            leaves.draws |= how.resized.draw(rng, index.height[leaves.video], index.width[leaves.video])
        plain = rng.random(len(leaves)) >= how.jittered
        for name, neutral in (("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0)):
            leaves.draws[name][plain] = neutral
        yield _plan(index, leaves, {"target": targets[chosen].astype(np.int64)})


def uniform_clips(
    index: Index, videos: np.ndarray, clips: int, clip: Clip, augmentation: Augmentation, crops: int = 1,
    to_the_end: bool = True, modalities: Sequence[str] = MODALITIES[:1],
) -> BatchPlan:  # fmt: skip
    """`clips` clips spread uniformly over each video [n], each in `crops` crops side by side along its longer side.

    From the first start to the last, or, unless `to_the_end`, at 0, 1/clips, 2/clips ... of them. The leaves of a video
    come one after another: modality by modality, clip by clip, crop by crop. A video that offers fewer starts repeats
    some.
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
    rng = np.random.Generator(np.random.Philox(0))  # every range of an evaluation augmentation is a single value
    leaves.draws = augmentation.draw(rng, len(leaves), (1, 1))
    if crops > 1:
        tall = (index.height > index.width)[leaves.video]
        places = spread(np.linspace(0, 1, crops, dtype=np.float32))
        leaves.draws["top"] = np.where(tall, places, np.float32(0.5))
        leaves.draws["left"] = np.where(tall, np.float32(0.5), places)
    return _plan(index, leaves, {})


def uniform_plans(
    index: Index, videos: np.ndarray, clips: int, clip: Clip, augmentation: Augmentation, crops: int = 1,
    to_the_end: bool = True, modalities: Sequence[str] = MODALITIES[:1], crops_per_plan: int = 64,
) -> Iterator[BatchPlan]:  # fmt: skip
    """`uniform_clips` of all the videos in turn, about `crops_per_plan` crops of one modality in a plan."""
    for part in split_videos(videos, clips * crops, crops_per_plan):
        yield uniform_clips(index, part, clips, clip, augmentation, crops, to_the_end, modalities)


def split_videos(videos: np.ndarray, per_video: int, crops_per_plan: int = 64) -> list[np.ndarray]:
    """The videos of each plan of `uniform_plans`: as many as have `crops_per_plan` crops together, one at least."""
    size = max(1, crops_per_plan // per_video)
    return [videos[first : first + size] for first in range(0, len(videos), size)]


def _plan(index: Index, leaves: Leaves, columns: dict[str, np.ndarray]) -> BatchPlan:
    """The plan of these leaves, none of which goes past the last frame of its video."""
    last = (index.frame_count[leaves.video] - 1 - leaves.start)[:, None]
    leaves.frames = np.minimum(leaves.frames, last)
    return BatchPlan(0, 0, columns | {"leaf": np.arange(len(leaves), dtype=np.int64)}, leaves)
