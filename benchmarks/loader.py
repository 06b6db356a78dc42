"""Loading at the paper's clip size against a peer: CPU time per decoded clip, and clips/s.

The peer is torch's DataLoader with simplejpeg and OpenCV, written well in an afternoon. It reads the same shards,
checks the same checksums, decodes each clip once and makes the same video leaves with one `cv2.resize` per frame for
the region, at whole pixels, and one `cv2.transform` for the colours. No sound, no skipping of damaged clips, floats
instead of bytes.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import psutil
import simplejpeg
import torch
import tyro
from torch.utils.data import DataLoader, Dataset

from benchmarks.shared import Measurements, draw, machine
from gdt.common.errors import exit_with_message
from gdt.pipeline.colour import affine
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Loader
from gdt.pipeline.notation import parse
from gdt.pipeline.presets import preset
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.video import regions, share_decoding
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import Tree, sampling_tree

CLIP = Clip()


class PeerBatches(Dataset[torch.Tensor]):
    """Item k is the batch of step k: float32 [n, frames, size, size, 3]."""

    def __init__(self, index: Index, tree: Tree) -> None:
        self.index, self.tree, self.reader = index, tree, ShardReader(index)

    def __getitem__(self, step: int) -> torch.Tensor:
        leaves, size = self.tree.plan(*divmod(step, self.tree.batches_per_epoch)).leaves.of("video"), CLIP.size
        shape = (len(leaves), CLIP.frames, size, size, 3)
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


def of_peer(index: Index, tree: Tree) -> Iterator[object]:
    """Batches of the peer for the encoder, endlessly."""
    loader = DataLoader(
        PeerBatches(index, tree), batch_size=None, sampler=range(1_000_000_000), num_workers=2,
        worker_init_fn=lambda _: cv2.setNumThreads(0),
    )  # fmt: skip
    return (batch.permute(0, 4, 1, 2, 3) for batch in loader)


def of_loader(index: Index, tree: Tree) -> Iterator[object]:
    """Batches of our loader as floats for the encoder, endlessly."""
    inputs = Inputs(CLIP, Augmentation(), index.statistics)
    with Loader(index, tree.plans(0, sys.maxsize), inputs, torch.device("cpu")) as batches:
        for batch in batches:
            yield batch.inputs["video"].floats()


def measure(batches: Iterator[object], per_batch: int, clips: int) -> tuple[float, float]:
    """Milliseconds of CPU time per decoded clip, of this process and its children, and decoded clips/s."""

    def take(wanted: int) -> int:
        """Take at least as many clips; returns their number."""
        number = -(-wanted // per_batch)
        for _ in range(number):
            next(batches)
        return number * per_batch

    take(clips // 10)
    start, busy = time.perf_counter(), cpu_seconds()
    count = take(clips)
    return 1000 * (cpu_seconds() - busy) / count, count / (time.perf_counter() - start)


def cpu_seconds() -> float:
    """CPU time of this process and its children, all threads together."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def main(shards: Path | None = None, rows: tuple[str, ...] = ("e", "l"), clips: int = 240, rounds: int = 5) -> None:
    """Measure the loader against a peer.

    Args:
        shards: Folder of shards; by default some are drawn.
        rows: Rows of table 1; a where no video has sound.
        clips: Decoded clips per measurement, after a tenth as many for warm-up.
        rounds: Rounds of all measurements.

    """
    torch.set_num_threads(1)  # the loader's threads take the cores
    with tempfile.TemporaryDirectory() as folder:
        index = Index.open(shards) if shards else draw(Path(folder) / "shards", 64)
        print(f"{machine()}; {len(index)} videos, {CLIP} per clip", flush=True)
        for row in rows:
            pair = sampling_tree(index, parse(preset(row).factors, 2), CLIP, "train", 0)
            decoded = len(share_decoding(pair.plan(0, 0).leaves.of("video"))) // 2  # clips per video
            videos = min(max(2, 16 // decoded), len(index))
            tree = sampling_tree(index, parse(preset(row).factors, videos), CLIP, "train", 0)
            found = Measurements()
            print(f"row {row}", flush=True)
            for _ in range(rounds):
                for name, way in (("peer", of_peer), ("loader", of_loader)):
                    taken, rate = measure(way(index, tree), videos * decoded, clips)
                    found.add(f"{name}, CPU time per clip", taken, "ms")
                    found.add(f"{name}, speed", rate, "clips/s")
            for what, unit in (("CPU time per clip", "ms"), ("speed", "clips/s")):
                found.show(f"loader, {what}", unit, f"peer, {what}")


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.loader"))
