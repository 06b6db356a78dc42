"""What the benchmarks share: real videos to measure on, and a machine's name for the figures."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from gdt.common.errors import UserError
from gdt.preprocess.datasets.listing import video_files


def machine() -> str:
    """Processor and the number of cores this process may use."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def videos(source: Path | None, folder: Path, count: int = 64) -> list[Path]:
    """Videos of `source`, or without one `count` made in `folder`: 10 s, 426x320, 25 fps, H.264 and AAC.

    The made ones hold moving noise and texture, so that their decoding and JPEGs cost about what real ones do.
    """
    if source is not None:
        found = [path for path in video_files(source.resolve()) if isinstance(path, Path)]
        if not found:
            raise UserError(f"there are no videos in {source}; set SOURCE to a folder of videos")
        return found
    for number in range(count):
        picture = f"mandelbrot=s=426x320:r=25:start_scale={3 / (1 + number):.4f},noise=alls=12:allf=t"
        sound = f"anoisesrc=d=10:c=pink:seed={number}:a=0.3"
        subprocess.run(
            ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", sound, "-t", "10",
             "-c:v", "libx264", "-preset", "veryfast", "-crf", "28", "-pix_fmt", "yuv420p", "-c:a", "aac",
             str(folder / f"{number:03d}.mp4")],
            check=True,
        )  # fmt: skip
    return sorted(folder.glob("*.mp4"))


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for what a benchmark writes, removed at its end."""
    return tempfile.TemporaryDirectory(prefix="gdt-benchmark-")


def apart(measure: Callable[[], float]) -> float:
    """What is measured in a process of its own, which has no threads and no memory of other measurements."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            pipe.write(repr(measure()))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
    return float(said)


def processor_seconds() -> float:
    """Processor time that this process and its children have taken, all threads together."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(taken.user + taken.system for taken in times)


def print_apart(measure: Callable[[], str]) -> None:
    """Print what is measured in a process of its own, whose greatest memory is its own; ends where that fails."""
    child = os.fork()
    if child == 0:
        print(measure())
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(1)
