"""The peer that the loader is compared with: torch's DataLoader, simplejpeg and OpenCV, written well in an afternoon.

It reads the same shards, checks the same checksums, decodes each clip once and makes the same video leaves with one
`cv2.resize` per frame for the region, at whole pixels, and one `cv2.transform` for the colours. No audio, no
skipping of damaged clips, floats instead of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cv2
import numpy as np
import simplejpeg
import torch
from torch.utils.data import DataLoader, Dataset

from gdt.pipeline.colour import affine
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.video import regions, share_decoding
from gdt.pipeline.tree import BatchPlan


class Batches(Dataset[torch.Tensor]):
    """Item k is the batch of step k: float32 [n, frames, size, size, 3]."""

    def __init__(self, index: Index, plan: Callable[[int], BatchPlan], clip: Clip) -> None:
        self.index, self.plan, self.clip = index, plan, clip
        self.reader = ShardReader(index)

    def __getitem__(self, step: int) -> torch.Tensor:
        leaves, size = self.plan(step).leaves.of("video"), self.clip.size
        shape = (len(leaves), self.clip.frames, size, size, 3)
        # in shared memory, as torch's own collation does, so batches are not copied
        storage = torch.UntypedStorage._new_shared(4 * int(np.prod(shape)))
        batch = torch.empty(0).set_(storage).view(shape)
        pixels, statistics = batch.numpy(), self.index.statistics
        matrix, offset = affine(leaves.draws, statistics.pixel_mean, statistics.pixel_std)
        maps = torch.cat([matrix, offset[:, :, None]], 2).numpy()
        begin, end = (np.rint(corners).astype(int) for corners in regions(self.index, leaves, size))
        for rows in share_decoding(leaves):
            stored = leaves.start[rows[0]] + np.sort(leaves.frames[rows[0]])
            position = leaves.frames[rows].argsort(1)  # of the decoded frames in each leaf
            for k, jpeg in enumerate(self.reader.frames(int(leaves.video[rows[0]]), stored)):
                frame = simplejpeg.decode_jpeg(jpeg)
                for leaf, where in zip(rows, position[:, k], strict=True):
                    (top, left), (bottom, right) = begin[leaf], end[leaf]
                    crop = frame[top:bottom, left:right] if left < right else frame[top:bottom, right:left][:, ::-1]
                    small = cv2.resize(crop, (size, size))
                    cv2.transform(small.astype(np.float32), maps[leaf], dst=pixels[leaf, where])
        return batch


def batches(index: Index, plan: Callable[[int], BatchPlan], clip: Clip, workers: int = 2) -> Iterator[torch.Tensor]:
    """Endless batches for the encoder: [n, 3, frames, size, size], channels-last in memory."""
    loader = DataLoader(
        Batches(index, plan, clip), batch_size=None, sampler=range(1_000_000_000), num_workers=workers,
        worker_init_fn=lambda _: cv2.setNumThreads(0),
    )  # fmt: skip
    return (batch.permute(0, 4, 1, 2, 3) for batch in loader)
