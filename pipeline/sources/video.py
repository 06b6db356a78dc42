"""JPEG frames -> crops. This module plans what to decode for which leaves; an engine decodes it.

Frames that leaves share are decoded once. Per leaf, one resize of a region does scale jitter, crop and flip, a
permutation orders the frames, and one affine map of RGB does colour jitter and normalisation on the encoder's device.
"""

from collections.abc import Iterator

import numpy as np
import torch

from gdt.pipeline.colour import Pixels, affine
from gdt.pipeline.engines import CpuEngine, DaliEngine, DecodingRun
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.base import InputSource, Part, SourceContext, ahead, chunks


class VideoSource(InputSource):
    modality = "video"

    def __init__(self, context: SourceContext) -> None:
        super().__init__(context)
        engine = DaliEngine if self.loading.decoder == "gpu" else CpuEngine
        self._engine: CpuEngine | DaliEngine = engine(self.clip, self.loading, self.device)

    def parts(self, batches: Iterator[Leaves]) -> Iterator[Part]:
        runs = ahead(self._runs(batches), self.loading.read_ahead, lambda run: len(run.rows))
        for leaves, crops in self._engine.fill(runs):
            for leaf in np.flatnonzero(leaves.turns):
                crops[leaf] = torch.rot90(crops[leaf], int(leaves.turns[leaf]), (1, 2))
            matrix, offset = affine(leaves.draws, self.statistics.pixel_mean, self.statistics.pixel_std)
            yield Part(Pixels(crops, matrix.to(self.device), offset.to(self.device)))

    def close(self) -> None:
        super().close()
        self._engine.close()

    def _runs(self, batches: Iterator[Leaves]) -> Iterator[DecodingRun]:
        for leaves in batches:
            begin, end = regions(self.index, leaves, self.clip.size)
            shared = share_decoding(leaves)
            for chunk in chunks(len(shared), self.loading.decode_batch_size):
                rows = shared[chunk]
                decoded = leaves.take(rows[:, 0])
                stored = decoded.start[:, None] + np.sort(decoded.frames, 1)
                jpegs = self.begin(self.reader.frames, decoded.video.tolist(), stored)
                sizes = np.stack([self.index.height[decoded.video], self.index.width[decoded.video]], 1)
                # rank of each frame of a leaf among the decoded ones, which are sorted
                order = leaves.frames[rows].argsort(2, kind="stable").argsort(2)
                last = chunk.stop == len(shared)
                yield DecodingRun(leaves, rows, jpegs, sizes, begin[rows], end[rows], order, last)


def regions(index: Index, leaves: Leaves, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Corners (y, x) of each leaf's crop in the stored frame, pixels: float32 [n, 2] each; a flip swaps the x
    coordinates.

    Crops are resized to squares of `size` pixels.
    """
    video = leaves.video
    draws = leaves.draws
    shape = np.stack([index.height[video], index.width[video]], 1).astype(np.float64)
    side = size * shape.min(1) / draws["scale"] * leaves.crop_scale
    extent = np.minimum(side, shape.min(1))[:, None]
    begin = np.stack([draws["top"], draws["left"]], 1) * (shape - extent)
    end = begin + extent
    flip = draws["flip"] > 0
    begin[flip, 1], end[flip, 1] = end[flip, 1], begin[flip, 1]
    return begin.astype(np.float32), end.astype(np.float32)


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
