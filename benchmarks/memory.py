"""Memory of preprocessing a long video: the most that the worker and its ffmpeg hold at any moment."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.common import machine, scratch, videos
from gdt.common.errors import exit_with_message
from gdt.pipeline.shards.layout import shard_rejected
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.worker import make_shard


@dataclass(frozen=True)
class Benchmark:
    """Measure the memory that one video takes."""

    video: Path | None = None
    """The video; by default one of `hours` is made."""
    hours: float = 2.0
    """Length of the made video."""


def long_video(folder: Path, hours: float) -> Path:
    """The benchmark's 10 s video, over and over."""
    (short,) = videos(None, folder, count=1)
    path = folder / "long.mp4"
    subprocess.run(
        ["ffmpeg", "-v", "error", "-stream_loop", str(int(hours * 360) - 1), "-i", short, "-c", "copy", path],
        check=True,
    )  # fmt: skip
    short.unlink()
    return path


def main() -> None:
    settings = tyro.cli(Benchmark, prog="python -m benchmarks.memory")
    with scratch() as name:
        folder = Path(name)
        path = settings.video.absolute() if settings.video else long_video(folder, settings.hours)
        task = ShardTask(folder / "shard-000000.h5", [Video(path.name, path)], Extraction(), path.parent, content="")
        child = os.fork()  # a process of its own, as a worker is
        if child == 0:
            began = time.perf_counter()
            make_shard(task)
            own, ffmpeg = (
                resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            )
            reasons = [row["reason"] for row in shard_rejected(task.path)]
            print(
                f"{machine()}; {path.stat().st_size / 1e6:.0f} MB of video to {task.path.stat().st_size / 1e6:.0f} MB "
                f"of shard in {time.perf_counter() - began:.0f} s {reasons or ''}\n"
                f"worker {own / 1024:.0f} MiB, its ffmpeg {ffmpeg / 1024:.0f} MiB"
            )
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    exit_with_message(main)
