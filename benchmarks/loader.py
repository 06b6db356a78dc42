"""Loading at the paper's clip size against a peer: CPU time per clip, and clips/s."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import torch
import tyro

from benchmarks import peer
from benchmarks.timing import Clock, in_turns, machine, scratch, videos
from gdt.common.errors import exit_with_message
from gdt.pipeline import presets
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import ROWS
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.tree import Tree, sampling_tree
from gdt.preprocess.stage import Preprocess, run

PER_CLIP, RATE = "CPU time per clip", "speed"


@dataclass(frozen=True)
class Benchmark:
    """Measure the loader against a peer."""

    source: Path | None = None
    """Folder of videos; by default some are generated."""
    made: int = 64
    """Number of generated videos."""
    shards: Path | None = None
    """Folder of shards, instead of videos."""
    rows: tuple[str, ...] = ()
    """Rows of table 1; default e and l, or a where no video has audio."""
    clips: int = 16
    """Decoded clips per batch."""
    rounds: int = 7
    """Rounds of all measurements."""
    decoded: int = 480
    """Clips per measurement, after a tenth as many for warm-up."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device that decodes and crops."""
    loading: Loading = field(default_factory=Loading)
    """Threads and buffers."""


def measure(name: str, clips: Iterator[int], wanted: int) -> dict[str, float]:
    """Milliseconds of CPU time per decoded clip, of this process and its children, and clips/s."""

    def take(least: int) -> int:
        count = 0
        while count < least:
            count += next(clips)
        return count

    take(wanted // 10)
    clock, busy = Clock(), cpu_seconds()
    count = take(wanted)
    busy = cpu_seconds() - busy
    return {f"{name}, {PER_CLIP}": 1000 * busy / count, f"{name}, {RATE}": count / clock.lap()}


def cpu_seconds() -> float:
    """CPU time of this process and its children, all threads together."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def tree(index: Index, row: str, clips: int) -> Tree:
    """The paper's tree over the usable videos, with this many decoded clips per batch."""

    def of(videos: int) -> Tree:
        return sampling_tree(index, presets.composition(row, videos), Clip(), "train", 0)

    one = of(2)
    return of(min(clips // one.composition.decoded_per_video, len(one.source.videos)))


def loader(index: Index, plans: Tree, settings: Benchmark) -> Iterator[int]:
    """Decoded clips of every batch."""
    with Loader(index, plans.plans(0, sys.maxsize), Clip(), torch.device(settings.device), settings.loading) as batches:
        for batch in batches:
            if batch.inputs["video"].floats().is_cuda:  # the conversion to floats is part of the work
                torch.cuda.synchronize()
            yield plans.composition.batch_size * plans.composition.decoded_per_video


def peers(index: Index, plans: Tree) -> Iterator[int]:
    """Decoded clips of every batch, from the peer."""
    for _ in peer.batches(index, lambda step: plans.plan(*divmod(step, plans.batches_per_epoch)), Clip()):
        yield plans.composition.batch_size * plans.composition.decoded_per_video


def measure_checksums(index: Index, repeats: int = 200) -> dict[str, float]:
    """Milliseconds to verify the checksums of one clip's frames and audio, on one core."""
    clip, reader = Clip(), ShardReader(index)
    video = int(np.flatnonzero(index.start_counts(clip.frames, clip.stride) >= 2)[0])
    pieces = [frame.tobytes() for frame in reader.frames(video, np.arange(clip.frames) * clip.stride)]
    pieces += [bytes(4 * ROWS * index.bands)] * 2  # 99 rows are in one or two pieces
    clock = Clock()
    for _ in range(repeats):
        for piece in pieces:
            zlib.crc32(piece)
    return {"checksums": 1000 * clock.lap() / repeats}


def default_rows(index: Index) -> tuple[str, ...]:
    return ("e", "l") if index.mel_count.any() else ("a",)


def measure_row(index: Index, row: str, settings: Benchmark) -> None:
    """Measure the loader, its peer and the share of checksums, in turns."""
    plans = tree(index, row, settings.clips)
    measured = in_turns(
        settings.rounds,
        lambda: measure("loader", loader(index, plans, settings), settings.decoded),
        lambda: measure("peer", peers(index, plans), settings.decoded),
        lambda: measure_checksums(index),
    )
    print(f"\nrow {row}")
    for what, unit in ((PER_CLIP, "ms"), (RATE, "clips/s")):
        measured.show(f"peer, {what}", unit)
        measured.show(f"loader, {what}", unit, f"peer, {what}")
    rates = measured[f"loader, {RATE}"]
    measured["checksums"] = [ms / 10 * rate for ms, rate in zip(measured["checksums"], rates, strict=True)]
    measured.show("checksums", "% of one core")


def main() -> None:
    settings = tyro.cli(Benchmark, prog="python -m benchmarks.loader")
    torch.set_num_threads(1)  # the loader's threads take the cores
    with scratch() as name:
        folder = Path(name)
        if settings.shards is None:
            source = settings.source or folder / "videos"
            videos(settings.source, source, settings.made)
            run(Preprocess("folder", source, folder / "shards", videos_per_shard=16))
        index = Index.open(settings.shards or folder / "shards")
        print(f"{machine()}, {settings.device}; {len(index)} videos, 30 frames of 112x112 per clip")
        for row in settings.rows or default_rows(index):
            measure_row(index, row, settings)


if __name__ == "__main__":
    exit_with_message(main)
