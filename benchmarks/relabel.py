"""Another split for a quarter of many videos: a whole run, which decodes nothing, and what it is made of."""

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
"""What the generated data set is called."""


def relabelled(count: int, source: Path) -> Iterator[Video]:
    """The videos of `entries`, every fourth of which is one of the test split now; all with two further columns."""
    for k, video in enumerate(entries(count, source)):
        columns = (("colour", f"colour {k % 8}"), ("caption", f"this is what video {k} shows"))
        yield replace(video, split="" if k % 4 else "test", columns=columns)


def write_hollow(task: ShardTask, scratch: Path) -> None:
    """A shard as it is wanted, of videos that have a frame of four bytes each and no sound."""
    records = []
    for k, video in enumerate(task.videos):
        frame, sound = scratch / f"{k}.jpeg", scratch / f"{k}.mel"
        frame.write_bytes(b"\xff\xd8\xff\xd9")
        sound.touch()
        said = {"id": video.id, "label": video.label, "split": video.split, "folds": ",".join(video.folds)}
        records.append(VideoRecord({**said, "height": 2, "width": 2}, frame, np.full(1, 4), sound))
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
                write_hollow(plan.task(shard, settings.extraction, details), folder / "scratch")
        datasets.DATASETS[NAME] = datasets.DataSet(lambda source: entries(count, source), "")
        figures = {"index from the shards": seconds_of(settings, 0)}
        datasets.DATASETS[NAME] = datasets.DataSet(lambda source: relabelled(count, source), "")
        before = peak()
        figures |= {"relabelled": seconds_of(settings, count), "memory": peak(), "memory before": before}
        figures["nothing changed"] = seconds_of(settings, 0)
        clock = Clock()
        with VideoList(relabelled(count, source), source, folder) as videos:
            figures["relabelled: listing"] = clock.lap()
            said = videos.annotations(read_annotations(folder)[0])
            figures["relabelled: labels looked up"] = clock.lap()
            rewrite_index(folder, said)
            figures["relabelled: index rewritten"] = clock.lap()
            Index.open(folder)
        return figures


def seconds_of(settings: Preprocess, relabelled: int) -> float:
    """How long a run takes that decodes nothing and relabels so many videos."""
    clock = Clock()
    summary = run(settings)
    taken = clock.lap()
    if (summary.decoded, summary.relabelled) != (0, relabelled):
        raise RuntimeError(f"{summary.decoded} videos were decoded and {summary.relabelled} relabelled")
    return taken


def main(videos: tuple[int, ...] = (10_000, 100_000), videos_per_shard: int = 128, rounds: int = 1) -> None:
    """Metric lists of so many videos."""
    print(machine(), flush=True)
    for count in videos:
        figures = in_turns(rounds, partial(measure, count, videos_per_shard))
        print(f"\n{count} videos")
        for name in figures:
            figures.show(name, "MiB" if "memory" in name else "s")


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.relabel"))
