"""A new split for a quarter of many videos: a whole run that decodes nothing, and its parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import tyro

from benchmarks.planning import entries
from benchmarks.timing import Clock, in_turns, machine, peak, scratch
from gdt.common.errors import exit_with_message
from gdt.pipeline.shards.index import Index, read_annotations, rewrite_index
from gdt.pipeline.shards.writer import VideoRecord, write_shard
from gdt.preprocess import datasets
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.logmel import BANDS
from gdt.preprocess.plan import Plan, ShardTask
from gdt.preprocess.stage import Preprocess, run
from gdt.preprocess.videos import VideoList

NAME = "benchmark"
"""Name of the generated data set."""


def relabelled(count: int, source: Path) -> Iterator[Video]:
    """The videos of `entries` with two more columns; every fourth is now in the test split."""
    for k, video in enumerate(entries(count, source)):
        columns = (("colour", f"colour {k % 8}"), ("caption", f"the caption of video {k}"))
        yield replace(video, split="" if k % 4 else "test", columns=columns)


def write_dummy_shard(task: ShardTask, scratch: Path) -> None:
    """Write a shard whose videos have one frame of four bytes and no audio."""
    records = []
    for k, video in enumerate(task.videos):
        frame, sound = scratch / f"{k}.jpeg", scratch / f"{k}.mel"
        frame.write_bytes(b"\xff\xd8\xff\xd9")
        sound.touch()
        columns = {"id": video.id, "label": video.label, "split": video.split, "folds": ",".join(video.folds)}
        records.append(VideoRecord({**columns, "height": 2, "width": 2}, frame, np.full(1, 4), sound))
    sums = {"pixel_sums": np.ones((3, 3), int), "mel_sums": np.ones(3, int)}
    write_shard(
        task.path, records, [], {"settings": json.dumps(dict(task.details))} | sums, task.content, BANDS, scratch
    )


def measure(count: int, videos_per_shard: int) -> dict[str, float]:
    """Seconds and memory of this process."""
    with scratch() as name:
        source, folder = Path(name), Path(name, "shards")
        (folder / "scratch").mkdir(parents=True)
        settings = Preprocess(NAME, source, folder, videos_per_shard=videos_per_shard)
        details = settings.extraction.identity | {"bands": BANDS, "dataset": NAME, "vocabulary": "", "stop_words": ""}
        with VideoList(entries(count, source), source, folder) as videos:
            plan = Plan(videos, folder, videos_per_shard, settings.megabytes_per_shard)
            for shard in range(len(plan)):
                write_dummy_shard(plan.task(shard, settings.extraction, details), folder / "scratch")
        datasets.DATASETS[NAME] = datasets.DataSet(lambda source: entries(count, source), "")
        measured = {"index from the shards": seconds_of(settings, 0)}
        datasets.DATASETS[NAME] = datasets.DataSet(lambda source: relabelled(count, source), "")
        before = peak()
        measured |= {"relabelled": seconds_of(settings, count), "memory": peak(), "memory before": before}
        measured["nothing changed"] = seconds_of(settings, 0)
        clock = Clock()
        with VideoList(relabelled(count, source), source, folder) as videos:
            measured["relabelled: listing"] = clock.lap()
            annotations = videos.annotations(read_annotations(folder)[0])
            measured["relabelled: labels looked up"] = clock.lap()
            rewrite_index(folder, annotations)
            measured["relabelled: index rewritten"] = clock.lap()
            Index.open(folder)
        return measured


def seconds_of(settings: Preprocess, relabelled: int) -> float:
    """Seconds of a run that decodes nothing and relabels this many videos."""
    clock = Clock()
    summary = run(settings)
    taken = clock.lap()
    if (summary.decoded, summary.relabelled) != (0, relabelled):
        raise RuntimeError(f"{summary.decoded} videos were decoded and {summary.relabelled} relabelled")
    return taken


def main(videos: tuple[int, ...] = (10_000, 100_000), videos_per_shard: int = 128, rounds: int = 1) -> None:
    """Measure relabelling.

    Args:
        videos: Lengths of the lists.
        videos_per_shard: Videos per shard.
        rounds: Rounds of all measurements.

    """
    print(machine(), flush=True)
    for count in videos:
        measured = in_turns(rounds, partial(measure, count, videos_per_shard))
        print(f"\n{count} videos")
        for name in measured:
            measured.show(name, "MiB" if "memory" in name else "s")


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.relabel"))
