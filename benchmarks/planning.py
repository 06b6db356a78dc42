"""A list of a million videos: planned and scheduled as tasks that do nothing, in bounded memory; batches of them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import tyro

from benchmarks.common import machine, print_apart, scratch
from gdt.common.errors import exit_with_message
from gdt.pipeline import presets
from gdt.pipeline.groups import shared
from gdt.pipeline.leaves import Clip
from gdt.pipeline.transformations.base import Source
from gdt.pipeline.tree import Tree
from gdt.preprocess import cluster
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.plan import Plan, ShardTask
from gdt.preprocess.videos import VideoList


@dataclass(frozen=True)
class Benchmark:
    """Measure planning."""

    videos: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Lengths of the lists."""
    videos_per_shard: int = 128
    """Videos in one shard, and so in one task."""


def entries(count: int, source: Path) -> Iterator[Video]:
    """Videos with names like those of Kinetics; there are no such files."""
    for k in range(count):
        name = f"{k:011x}_{k % 300:06d}_{k % 300 + 10:06d}"
        yield Video(name, source / f"class {k % 400}" / f"{name}.mp4", f"class {k % 400}")


def simulated(task: ShardTask) -> int:
    """What a worker gets, without the work."""
    return len(task.videos)


def measure(count: int, videos_per_shard: int) -> str:
    """One line of the table, measured in this process, which holds the list, the client and the scheduler."""
    language = {"vocabulary": "", "stop_words": ""}
    with scratch() as name:
        folder = Path(name)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        with VideoList(entries(count, folder), folder, folder) as videos:
            listed = time.perf_counter()
            plan = Plan(videos, folder, videos_per_shard, megabytes_per_shard=256)
            plan.write(language)
            pending = plan.pending(Extraction(), language)
            planned = time.perf_counter()
            with cluster.connect("", len(os.sched_getaffinity(0))) as client:
                tasks = (plan.task(shard, Extraction(), language) for shard in pending)
                total = sum(cluster.unordered(client, simulated, tasks, 1))
            ended = time.perf_counter()
        if total != count:
            raise RuntimeError(f"{total} of {count} videos came back")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return (
            f"{count:9d} videos, {len(plan):6d} tasks: listed in {listed - began:.1f} s, planned in "
            f"{planned - listed:.1f} s, scheduled in {ended - planned:.1f} s; {peak / 1024:.0f} MiB, of which "
            f"{before / 1024:.0f} before"
        )


def batches(count: int, ranks: int = 8, steps: int = 20) -> str:
    """Plans of batches of so many videos of a set, and a rank's share of each: time by the number of videos."""
    tree = Tree(presets.composition("l", min(512, count // 2)), Source(np.arange(count), np.full(count, 250), 30),
                Clip(), bands=40)  # fmt: skip
    took = []
    for step in range(steps + 1):
        began = time.perf_counter()
        shared(tree.plan(0, step % tree.batches_per_epoch), 0, ranks)
        took.append(1000 * (time.perf_counter() - began))
    first, usual = took[0], median(took[1:])
    size = tree.composition.videos_per_batch
    return (
        f"{count:9d} videos, batches of {size} of row l for {ranks} ranks: {usual:.1f} ms each, {first:.0f} ms for the "
        "first of an epoch"
    )


def main() -> None:
    settings = tyro.cli(Benchmark, prog="python -m benchmarks.planning")
    print(machine(), flush=True)
    for count in settings.videos:
        print_apart(partial(measure, count, settings.videos_per_shard))
    for count in settings.videos:
        print_apart(partial(batches, count))


if __name__ == "__main__":
    exit_with_message(main)
