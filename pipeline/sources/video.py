"""JPEG frames -> crops. This module plans what to decode for which leaves; an engine decodes it.

Frames that leaves share are decoded once. Per leaf, one resize of a region does scale jitter, crop and flip, a
permutation orders the frames, and one affine map of RGB does colour jitter and normalisation on the encoder's device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from gdt.common.errors import UserError
from gdt.pipeline.colour import Pixels, affine
from gdt.pipeline.engines import Run, engine, failure
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.base import InputSource, Memory, Part, Reading, ahead, chunks


@dataclass(frozen=True)
class _Work:
    """The video leaves of a batch."""

    leaves: Leaves
    shared: np.ndarray
    """Leaves of each decoded clip: int64 [clips, branches]."""
    begin: np.ndarray
    """Corner (y, x) of each leaf's crop in the stored frame, pixels: float32 [leaves, 2]."""
    end: np.ndarray
    """The opposite corner."""


@dataclass(frozen=True)
class _Clips:
    """Some clips of a batch that are being read."""

    work: _Work
    rows: np.ndarray
    """Their leaves: int64 [clips, branches]."""
    reading: Reading[list[np.ndarray]]


class VideoSource(InputSource):
    """Pixels."""

    modality = "video"

    def prepare(self) -> None:
        self._engine = engine(self.clip, self.device, self.loading)
        self._floats: dict[torch.dtype, torch.Tensor] = {}

    def parts(self, batches: Iterator[Leaves], memory: Callable[[], Memory]) -> Iterator[Part]:
        frames, size = self.clip.frames, self.clip.size

        def crops(leaves: int) -> torch.Tensor:
            return memory().get(self.modality, (leaves, frames, size, size, 3), torch.uint8)

        taken: deque[_Clips] = deque()
        clips = ahead(self._clips(batches), self.loading.read_ahead, lambda clips: len(clips.rows))
        filled = self._engine.fill(self._runs(clips, taken), crops)
        statistics = self.index.statistics
        while self._next(filled):
            work = taken[0].work
            while taken and taken[0].work is work:
                taken.popleft()
            pixels = crops(len(work.leaves))
            for leaf in np.flatnonzero(work.leaves.turns):
                pixels[leaf] = torch.rot90(pixels[leaf], int(work.leaves.turns[leaf]), (1, 2))
            matrix, offset = affine(work.leaves.draws, statistics.pixel_mean, statistics.pixel_std)
            colours = memory().store("matrix", matrix), memory().store("offset", offset)
            yield Part(Pixels(pixels, *colours, self._floats))

    def close(self) -> None:
        super().close()
        self._engine.close()

    def _next(self, filled: Iterator[None]) -> bool:
        """Whether there was another batch."""
        try:
            return next(filled, self) is None
        except RuntimeError as error:
            raise UserError(
                f"decoding failed although all frames are intact: {failure(error)}; if this names CUDA or the driver, "
                "check nvidia-smi, or set --loading.decoder cpu"
            ) from error

    def _clips(self, batches: Iterator[Leaves]) -> Iterator[_Clips]:
        for leaves in batches:
            corners = regions(self.index, leaves, self.clip.size)
            work = _Work(leaves, share_decoding(leaves), *corners)
            for run in chunks(len(work.shared), self.loading.decode_batch_size):
                rows = work.shared[run]
                decoded = leaves.take(rows[:, 0])
                yield _Clips(work, rows, self.begin(decoded.video, self.reader.frames, _frames_of(decoded)))

    def _runs(self, clips: Iterable[_Clips], taken: deque[_Clips]) -> Iterator[Run]:
        for group in clips:
            work, rows = group.work, group.rows
            jpegs = group.reading.result()
            taken.append(group)
            videos = group.reading.videos
            sizes = np.stack([self.index.height[videos], self.index.width[videos]], 1).astype(np.int64)
            # rank of each frame of a leaf among the decoded ones, which are sorted
            order = work.leaves.frames[rows].argsort(2, kind="stable").argsort(2)
            last = bool(rows[-1, 0] == work.shared[-1, 0])
            yield Run(rows, len(work.leaves), jpegs, sizes, work.begin[rows], work.end[rows], order, last)


def regions(index: Index, leaves: Leaves, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Corners (y, x) of each leaf's crop in the stored frame, pixels: float32 [n, 2] each; a flip swaps the x
    coordinates.

    Crops are resized to squares of `size` pixels.
    """
    video, draws = leaves.video, leaves.draws
    shape = np.stack([index.height[video], index.width[video]], 1).astype(np.float64)
    side = size * shape.min(1) / draws["scale"] * leaves.crop_scale
    extent = np.minimum(side, shape.min(1))[:, None]
    begin = np.stack([draws["top"], draws["left"]], 1) * (shape - extent)
    end = begin + extent
    flip = draws["flip"] > 0
    begin[flip, 1], end[flip, 1] = end[flip, 1], begin[flip, 1]
    return begin.astype(np.float32), end.astype(np.float32)


def _frames_of(leaves: Leaves) -> np.ndarray:
    """Stored frames of each leaf, sorted: int64 [n, frames]."""
    return leaves.start[:, None] + np.sort(leaves.frames, 1)


def share_decoding(leaves: Leaves) -> np.ndarray:
    """Leaves of each decoded clip, which is a video and a set of its frames: int64 [clips, branches]."""
    frames = np.sort(leaves.frames, 1)
    pattern = np.ascontiguousarray(frames - frames[:, :1])
    pattern = pattern.view(np.dtype((np.void, pattern.itemsize * pattern.shape[1]))).reshape(-1)  # one item per leaf
    which = np.unique(pattern, return_inverse=True)[1].reshape(-1)
    key = np.stack([leaves.video, leaves.start + frames[:, 0], which], 1)
    _, clip, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    branches = int(count.min())
    # sort leaves by clip; split clips that have more leaves than others, or share nothing if they do not divide evenly
    rows = np.argsort(clip.reshape(-1), kind="stable")
    if (count % branches).any():
        return rows[:, None]
    return rows.reshape(-1, branches)
