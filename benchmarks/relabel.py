"""Another split for a quarter of many videos: a whole run, which decodes nothing, and what it is made of."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import tyro

from benchmarks.common import machine, print_apart, scratch
from benchmarks.planning import entries
from gdt.common.errors import exit_with_message
from gdt.pipeline.shards.index import Index, read_said, rewrite_index
from gdt.pipeline.shards.writer import VideoRecord, write_shard
from gdt.preprocess import datasets
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.logmel import BANDS
from gdt.preprocess.plan import Plan, ShardTask
from gdt.preprocess.stage import Preprocess, run
from gdt.preprocess.videos import VideoList

NAME = "benchmark"
"""What the generated data set is called."""


@dataclass(frozen=True)
class Benchmark:
    """Measure relabelling."""

    videos: tuple[int, ...] = (10_000, 100_000)
    """Lengths of the lists."""
    videos_per_shard: int = 128
    """Videos in one shard."""


def relabelled(count: int, source: Path) -> Iterator[Video]:
    """The videos of `entries`, every fourth of which is one of the test split now; all with two further columns."""
    for k, video in enumerate(entries(count, source)):
        columns = (("colour", f"colour {k % 8}"), ("caption", f"this is what video {k} shows"))
        yield replace(video, split="" if k % 4 else "test", columns=columns)


def write_hollow(task: ShardTask, scratch: Path) -> None:
    """A shard as it is wanted, of videos that have a frame of four bytes each and no sound."""
    records = []
    for k, video in enumerate(task.videos):
        files = scratch / f"{k}.jpeg", scratch / f"{k}.mel"
        files[0].write_bytes(b"\xff\xd8\xff\xd9")
        files[1].touch()
        said = {"id": video.id, "label": video.label, "split": video.split, "folds": ",".join(video.folds)}
        records.append(VideoRecord({**said, "height": 2, "width": 2}, files[0], np.full(1, 4), files[1]))
    attributes = {
        "settings": json.dumps(dict(task.details)), "pixel_sums": np.ones((3, 3), int), "mel_sums": np.ones(3, int),
    }  # fmt: skip
    write_shard(task.path, records, [], attributes, task.content, BANDS, scratch)


def measure(count: int, videos_per_shard: int) -> str:
    """One line of the table, measured in this process."""
    with scratch() as name:
        source, folder = Path(name), Path(name, "shards")
        (folder / "scratch").mkdir(parents=True)
        settings = Preprocess(NAME, source, folder, videos_per_shard=videos_per_shard)
        details = settings.extraction.identity | {"bands": BANDS, "dataset": NAME, "vocabulary": "", "stop_words": ""}
        with VideoList(entries(count, source), source, folder) as videos:
            plan = Plan(videos, folder, videos_per_shard, settings.megabytes_per_shard)
            for shard in range(len(plan)):
                write_hollow(plan.task(shard, settings.extraction, details), folder / "scratch")
        datasets.DATASETS[NAME] = datasets.DataSet(lambda source: entries(count, source), "")
        first = seconds_of(settings, (0, 0))
        datasets.DATASETS[NAME] = datasets.DataSet(lambda source: relabelled(count, source), "")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        second = seconds_of(settings, (0, count))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        third = seconds_of(settings, (0, 0))
        began = time.perf_counter()
        with VideoList(relabelled(count, source), source, folder) as videos:
            listed = time.perf_counter()
            said = videos.say(read_said(folder)[0])
            looked_up = time.perf_counter()
            rewrite_index(folder, said)
            written = time.perf_counter()
            Index.open(folder)
        return (
            f"{count:9d} videos in {len(plan)} shards: relabelled in {second:.1f} s (listed in {listed - began:.1f} s, "
            f"labels looked up in {looked_up - listed:.1f} s, index rewritten in {written - looked_up:.1f} s), nothing "
            f"changed {third:.1f} s, index from the shards {first:.1f} s; {peak / 1024:.0f} MiB, of which "
            f"{before / 1024:.0f} before"
        )


def seconds_of(settings: Preprocess, expected: tuple[int, int]) -> float:
    """How long a run takes that decodes and relabels so many videos."""
    began = time.perf_counter()
    summary = run(settings)
    taken = time.perf_counter() - began
    if (summary.decoded, summary.relabelled) != expected:
        raise RuntimeError(f"{summary.decoded} videos were decoded and {summary.relabelled} relabelled")
    return taken


def main() -> None:
    settings = tyro.cli(Benchmark, prog="python -m benchmarks.relabel")
    print(machine(), flush=True)
    for count in settings.videos:
        print_apart(partial(measure, count, settings.videos_per_shard))


if __name__ == "__main__":
    exit_with_message(main)
