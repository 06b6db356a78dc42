"""Loading at the paper's clip size: processor time beside a peer's; clips/s beside decoding alone and DALI's colour."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
import torch
import tyro
from nvidia.dali import pipeline_def

from benchmarks import peer
from benchmarks.common import apart, machine, processor_seconds, scratch, videos
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


@dataclass(frozen=True)
class Benchmark:
    """Measure the loader on the shards of some videos."""

    source: Path | None = None
    """Folder of videos; by default some are made."""
    shards: Path | None = None
    """Folder of shards, instead of videos."""
    rows: tuple[str, ...] = ("e", "l")
    """Rows of table 1."""
    clips: int = 16
    """Decoded clips per batch."""
    seconds: float = 15.0
    """Length of each measurement of clips/s."""
    rounds: int = 7
    """Of measurements of processor time, the loader and its peer in turns; 0 for none."""
    decoded: int = 480
    """Clips per measurement of processor time, after a tenth as many to warm up."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """cpu or cuda."""
    loading: Loading = field(default_factory=Loading)
    """Threads and buffers."""


def rate(items: Iterator[int], seconds: float) -> float:
    """Items per second over a stretch of time, after two warm-up steps."""
    for _ in range(2):
        next(items)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        count += next(items)
    return count / (time.perf_counter() - began)


def tree(index: Index, row: str, clips: int) -> Tree:
    """The paper's tree over the videos that are long enough, with a batch of so many decoded clips."""
    per_video = presets.composition(row, 2).decoded_per_video
    usable = sampling_tree(index, presets.composition(row, 2), Clip(), "train", 0).source.videos
    return sampling_tree(index, presets.composition(row, min(clips // per_video, len(usable))), Clip(), "train", 0)


def loader(index: Index, row: str, settings: Benchmark) -> Iterator[int]:
    """Decoded clips of every batch."""
    plans = tree(index, row, settings.clips)
    decoded = plans.composition.videos_per_batch * plans.composition.decoded_per_video
    endless = (plans.plan(*divmod(step, plans.batches_per_epoch)) for step in itertools.count())
    with Loader(index, endless, Clip(), torch.device(settings.device), settings.loading) as batches:
        for batch in batches:
            if batch.inputs["video"].floats().is_cuda:  # what the encoder does first is part of the work
                torch.cuda.synchronize()
            yield decoded


def peer_loader(index: Index, row: str, settings: Benchmark) -> Iterator[int]:
    """The same batches from the peer: decoded clips of every one."""
    plans = tree(index, row, settings.clips)
    decoded = plans.composition.videos_per_batch * plans.composition.decoded_per_video
    for _ in peer.batches(index, lambda step: plans.plan(*divmod(step, plans.batches_per_epoch)), Clip()):
        yield decoded


def _processor_time(
    make: Callable[[Index, str, Benchmark], Iterator[int]], index: Index, row: str, settings: Benchmark
) -> float:
    """Processor milliseconds per decoded clip, of this process and its children."""
    batches, decoded = make(index, row, settings), settings.decoded

    def take(wanted: int) -> int:
        count = 0
        while count < wanted:
            count += next(batches)
        return count

    take(decoded // 10)
    began = processor_seconds()
    count = take(decoded)
    return 1000 * (processor_seconds() - began) / count


def against_peer(index: Index, row: str, settings: Benchmark) -> str:
    """Both, in turns, each time in a process of its own: medians, and the lowest and highest."""
    makers = {"peer": peer_loader, "loader": loader}
    taken: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(settings.rounds):
        for name, make in makers.items():
            taken[name].append(apart(partial(_processor_time, make, index, row, settings)))
    ratios = np.divide(taken["peer"], taken["loader"])
    told = [f"{name} {np.median(ms):.1f} ms ({min(ms):.1f}-{max(ms):.1f})" for name, ms in taken.items()]
    return (
        f"processor time per decoded clip, row {row}: {', '.join(told)}; the peer takes {np.median(ratios):.2f} times "
        f"as long ({min(ratios):.2f}-{max(ratios):.2f} in {settings.rounds} rounds)"
    )


@pipeline_def
def plain(branches: int, device: str) -> Any:
    """Decoding, and per branch the same work with DALI's own operators, one after another."""
    jpeg = fn.external_source(name="jpeg", batch=True)
    frames = fn.decoders.image(jpeg, device="mixed" if device == "cuda" else "cpu", output_type=types.RGB)
    if not branches:
        return frames
    outputs = []
    for branch in range(branches):
        begin, end, jitter = (fn.external_source(name=f"{name}{branch}", batch=True) for name in ("b", "e", "j"))
        crop = fn.resize(frames, size=(112, 112), roi_start=begin, roi_end=end, antialias=False)
        twisted = fn.color_twist(
            crop, brightness=jitter, contrast=jitter, saturation=jitter, hue=jitter, dtype=types.FLOAT
        )
        outputs.append(fn.crop_mirror_normalize(twisted, mean=[100.0] * 3, std=[50.0] * 3, output_layout="HWC"))
    return tuple(outputs)


def dali_alone(index: Index, branches: int, settings: Benchmark) -> Iterator[int]:
    """Clips per run of a plain DALI graph fed from memory."""
    clip, n = Clip(), settings.clips
    starts = index.start_counts(clip.frames, clip.stride)
    rng = np.random.default_rng(0)
    reader = ShardReader(index)
    chosen = rng.choice(np.flatnonzero(starts >= 2), 4 * n)
    stock = [reader.frames(int(v), int(rng.integers(starts[v])) + np.arange(clip.frames)) for v in chosen]
    device = settings.device
    graph = plain(
        branches, device, batch_size=n * clip.frames, num_threads=settings.loading.threads,
        device_id=0 if device == "cuda" else None, prefetch_queue_depth=1,
    )  # fmt: skip
    graph.build()
    while True:
        graph.feed_input("jpeg", [frame for k in rng.integers(0, len(stock), n) for frame in stock[k]])
        for branch in range(branches):
            begin = np.repeat(rng.uniform(0, 40, (n, 2)).astype(np.float32), clip.frames, 0)
            graph.feed_input(f"b{branch}", begin)
            graph.feed_input(f"e{branch}", begin + 112)
            graph.feed_input(f"j{branch}", np.repeat(rng.uniform(0.6, 1.4, n).astype(np.float32), clip.frames))
        graph.run()
        yield n


def checking(index: Index, repeats: int = 200) -> float:
    """Seconds that the checksums of one clip's frames and sound take, on one core."""
    clip, reader = Clip(), ShardReader(index)
    video = int(np.flatnonzero(index.start_counts(clip.frames, clip.stride) >= 2)[0])
    pieces = [frame.tobytes() for frame in reader.frames(video, np.arange(clip.frames) * clip.stride)]
    pieces += [bytes(4 * ROWS * index.bands)] * 2  # 99 rows lie in one or two pieces
    began = time.perf_counter()
    for _ in range(repeats):
        for piece in pieces:
            zlib.crc32(piece)
    return (time.perf_counter() - began) / repeats


def main() -> None:
    settings = tyro.cli(Benchmark, prog="python -m benchmarks.loader")
    torch.set_num_threads(1)  # DALI's threads take the cores
    with scratch() as name:
        folder = Path(name)
        if settings.shards is None:
            (folder / "videos").mkdir()
            source = settings.source
            videos(source, folder / "videos")
            run(Preprocess("folder", source or folder / "videos", folder / "shards", videos_per_shard=16))
        index = Index.open(settings.shards or folder / "shards")
        print(f"{machine()}, {settings.device}; {len(index)} videos, 30 frames of 112x112 per clip")
        for row in settings.rows if settings.rounds else ():
            print(against_peer(index, row, settings), flush=True)
        check = checking(index)
        decode = rate(dali_alone(index, 0, settings), settings.seconds)
        print(f"decoding alone                          {decode:6.0f} clips/s")
        for row in settings.rows:
            composition = presets.composition(row, videos_per_batch=2)
            leaves = composition.clips_per_video // composition.decoded_per_video
            mine = rate(loader(index, row, settings), settings.seconds)
            plain_rate = rate(dali_alone(index, leaves, settings), settings.seconds)
            print(f"loader, row {row} ({leaves} video leaves a clip)    {mine:6.0f} clips/s", end="")
            print(f"   {mine / decode:.2f} of decoding alone", end="")
            print(f", {mine / plain_rate:.2f} of the same with DALI's colour operators ({plain_rate:.0f} clips/s)")
            print(f"    checksums of what it reads: {100 * check * mine:.1f} % of one core")


if __name__ == "__main__":
    exit_with_message(main)
