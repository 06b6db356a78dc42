"""A million videos: listing, planning, scheduling tasks that do nothing, and planning batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import tyro

from benchmarks.timing import Clock, in_turns, machine, peak, scratch
from gdt.common.errors import exit_with_message
from gdt.pipeline import presets
from gdt.pipeline.groups import take_rank
from gdt.pipeline.leaves import Clip
from gdt.pipeline.transformations.base import Source
from gdt.pipeline.tree import Tree
from gdt.preprocess import cluster
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.plan import Plan, ShardTask
from gdt.preprocess.videos import VideoList


def entries(count: int, source: Path) -> Iterator[Video]:
    """Videos with names as in Kinetics; the files do not exist."""
    for k in range(count):
        name = f"{k:011x}_{k % 300:06d}_{k % 300 + 10:06d}"
        yield Video(name, source / f"class {k % 400}" / f"{name}.mp4", f"class {k % 400}")


def skip_work(task: ShardTask) -> int:
    """A worker's task that only counts its videos."""
    return len(task.videos)


def scheduling(count: int, videos_per_shard: int) -> dict[str, float]:
    """Seconds, and memory of this process, which holds list, client and scheduler."""
    language = {"vocabulary": "", "stop_words": ""}
    before, clock = peak(), Clock()
    with scratch() as name, VideoList(entries(count, Path(name)), Path(name), Path(name)) as videos:
        measured = {"listed": clock.lap()}
        plan = Plan(videos, Path(name), videos_per_shard, megabytes_per_shard=256)
        plan.write(language)
        pending = plan.pending(Extraction(), language)
        measured["planned"] = clock.lap()
        with cluster.connect("", len(os.sched_getaffinity(0))) as client:
            tasks = (plan.task(shard, Extraction(), language) for shard in pending)
            total = sum(cluster.map_unordered(client, skip_work, tasks, 1))
        measured["scheduled"] = clock.lap()
    if total != count:
        raise RuntimeError(f"{total} of {count} videos came back")
    return measured | {"memory": peak(), "memory before": before}


def batches(count: int, ranks: int = 8, steps: int = 20) -> dict[str, float]:
    """Milliseconds to plan a batch of row l and take a rank's share of it."""
    source = Source(np.arange(count), np.full(count, 250), 30)
    tree = Tree(presets.composition("l", min(512, count // 2)), source, Clip(), bands=40)
    taken, clock = [], Clock()
    for step in range(steps + 1):
        take_rank(tree.plan(0, step % tree.batches_per_epoch), 0, ranks)
        taken.append(1000 * clock.lap())
    return {"first batch of an epoch": taken[0], "batch": median(taken[1:])}


def main(videos: tuple[int, ...] = (10_000, 100_000, 1_000_000), videos_per_shard: int = 128, rounds: int = 1) -> None:
    """Measure the planning of lists of videos.

    Args:
        videos: Lengths of the lists.
        videos_per_shard: Videos per task.
        rounds: Rounds of all measurements.

    """
    print(machine(), flush=True)
    for count in videos:
        measures = partial(scheduling, count, videos_per_shard), partial(batches, count)
        measured = in_turns(rounds, *measures)
        print(f"\n{count} videos, {videos_per_shard} per task")
        for name in measured:
            measured.show(name, "ms" if "batch" in name else "MiB" if "memory" in name else "s")


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.planning"))
