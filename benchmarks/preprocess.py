"""Preprocessing: videos/s of the whole stage, beside bare ffmpeg processes that decode the same files.

The bare run has the same filters, encoders and number of processes, but no Python, no log-mel, no shards. Both are
timed in turn, several times, and the medians compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.common import machine, scratch, videos
from pipeline.errors import UserError, exit_with_message
from preprocess.datasets.listing import Video
from preprocess.ffmpeg import Extraction, Target, command
from preprocess.stage import Preprocess, run


@dataclass(frozen=True)
class Benchmark:
    """Measure preprocessing."""

    source: Path | None = None
    """Folder of videos; by default some are made."""
    repeats: int = 3
    """Runs of each kind, of which the median counts."""
    workers: int = len(os.sched_getaffinity(0))
    """Processes of either kind."""


def bare(paths: Sequence[Path], folder: Path, workers: int) -> float:
    """Seconds that `workers` bare ffmpeg processes at a time take, one video each."""
    folder.mkdir()
    targets = [
        Target(Video(path.name, path), folder / f"{k}.mjpeg", folder / f"{k}.pcm") for k, path in enumerate(paths)
    ]

    def one(target: Target) -> None:
        subprocess.run(command([target], Extraction(), sound=True), check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, targets))
    return time.perf_counter() - began


def stage(source: Path, folder: Path, workers: int) -> float:
    """Seconds of the whole stage, the start of its workers included."""
    began = time.perf_counter()
    run(Preprocess("folder", source, folder, videos_per_shard=8, workers=workers))
    return time.perf_counter() - began


def main() -> None:
    settings = tyro.cli(Benchmark, prog="python -m benchmarks.preprocess")
    with scratch() as name:
        folder = Path(name)
        (folder / "videos").mkdir()
        paths = videos(settings.source, folder / "videos")
        if len(paths) < 2:
            raise UserError("one video is too few to measure with")
        source = settings.source or folder / "videos"
        bare_times, stage_times, start_times = [], [], []
        for k in range(settings.repeats):
            bare_times.append(bare(paths, folder / f"bare-{k}", settings.workers))
            stage_times.append(stage(source, folder / f"stage-{k}", settings.workers))
            empty = folder / f"one-{k}"
            empty.mkdir()
            (empty / paths[0].name).symlink_to(paths[0])
            start_times.append(stage(empty, folder / f"start-{k}", settings.workers))
        n = len(paths)
        alone, whole, start = (statistics.median(times) for times in (bare_times, stage_times, start_times))
        steady = (whole - start) * n / (n - 1)  # the start decodes one video too
        print(f"{machine()}; {n} videos, {settings.workers} processes, median of {settings.repeats}")
        print(f"bare ffmpeg            {n / alone:6.2f} videos/s")
        print(f"stage, start included  {n / whole:6.2f} videos/s   {alone / whole:.2f} of bare ffmpeg")
        print(f"stage, without start   {n / steady:6.2f} videos/s   {alone / steady:.2f} of bare ffmpeg")
        print(f"start of the stage     {start:6.2f} s (workers, imports, one video)")


if __name__ == "__main__":
    exit_with_message(main)
