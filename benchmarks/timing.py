"""The one timing helper: measurements in turns, each in a process of its own; medians, ranges and ratios of one run."""

from __future__ import annotations

import os
import pickle
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gdt.common.errors import UserError
from gdt.preprocess.datasets.listing import video_files


class Clock:
    """Seconds since it was made, or since it was last asked."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def lap(self) -> float:
        before, self._began = self._began, time.perf_counter()
        return self._began - before


def peak(who: int = resource.RUSAGE_SELF) -> float:
    """MiB that this process, or the largest of its children, has held at most."""
    return resource.getrusage(who).ru_maxrss / 1024


class Figures(dict[str, list[float]]):
    """By name, what every round has found."""

    def show(self, name: str, unit: str, *others: str) -> None:
        """Print `name: value unit (low–high), ratio (low–high) of other`: medians, and of the ratios within a round."""
        ratios = {other: [a / b for a, b in zip(self[name], self[other], strict=True)] for other in others}
        told = [f"{_spread(self[name], f' {unit}')}", *(f"{_spread(ratio)} of {of}" for of, ratio in ratios.items())]
        print(f"{name}: {', '.join(told)}", flush=True)


def in_turns(rounds: int, *measures: Callable[[], Mapping[str, float]]) -> Figures:
    """Take all measurements, round after round, so that what slows the machine slows all of them.

    Each is taken in a fork of this process, which has no threads and no memory of the others. Exits where one fails.
    """
    found = Figures()
    for _ in range(rounds):
        for measure in measures:
            for name, value in _apart(measure).items():
                found.setdefault(name, []).append(value)
    return found


def _apart(measure: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    read, write = os.pipe()
    if not (child := os.fork()):
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(dict(measure()), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
    found: dict[str, float] = pickle.loads(told)
    return found


def _spread(values: Sequence[float], unit: str = "") -> str:
    middle, low, high = (
        f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return middle + unit + f" ({low}–{high})" * (len(values) > 1)


def machine() -> str:
    """Processor and the number of cores this process may use."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return f"{(models or [platform.machine()])[0]}, {len(os.sched_getaffinity(0))} cores"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for what a benchmark writes, removed at its end."""
    return tempfile.TemporaryDirectory(prefix="gdt-benchmark-")


def videos(source: Path | None, folder: Path, count: int = 64) -> list[Path]:
    """Videos of `source`, or without one `count` made in `folder`: 10 s, 426x320, 25 fps, H.264 and AAC.

    The made ones hold moving noise and texture, so that their decoding and JPEGs cost about what real ones do.
    """
    if source is not None:
        found = [path for path in video_files(source.resolve()) if isinstance(path, Path)]
        if not found:
            raise UserError(f"there are no videos in {source}; set SOURCE to a folder of videos")
        return found
    folder.mkdir(exist_ok=True)
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
