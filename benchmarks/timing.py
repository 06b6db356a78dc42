"""Timing for all benchmarks: measurements in turns, each in its own process; medians, ranges and ratios of one run."""

from __future__ import annotations

import os
import pickle
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gdt.common.errors import UserError
from gdt.preprocess.datasets.listing import video_files


class Clock:
    """Seconds since its creation, or since its last lap."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def lap(self) -> float:
        before, self._start = self._start, time.perf_counter()
        return self._start - before


def peak(who: int = resource.RUSAGE_SELF) -> float:
    """Peak memory of this process, or of the largest of its children, in MiB."""
    return resource.getrusage(who).ru_maxrss / 1024


class Measurements(dict[str, list[float]]):
    """A value per round, by name."""

    def show(self, name: str, unit: str, *others: str) -> None:
        """Print `name: value unit (low–high), ratio (low–high) of other`: medians, ratios taken within a round."""
        ratios = {other: [a / b for a, b in zip(self[name], self[other], strict=True)] for other in others}
        parts = [_spread(self[name], f" {unit}"), *(f"{_spread(ratio)} of {of}" for of, ratio in ratios.items())]
        line = f"{name}: {', '.join(parts)}"
        print(textwrap.fill(line, 100, subsequent_indent="    "), flush=True)


def in_turns(rounds: int, *measures: Callable[[], Mapping[str, float]]) -> Measurements:
    """Take all measurements, round after round, so that whatever slows the machine slows all of them.

    Each runs in a fork of this process, without threads or memory of the others. Exits when one fails.
    """
    found = Measurements()
    for _ in range(rounds):
        for measure in measures:
            for name, value in _in_fork(measure).items():
                found.setdefault(name, []).append(value)
    return found


def _in_fork(measure: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    read, write = os.pipe()
    if not (child := os.fork()):
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(dict(measure()), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        pickled = pipe.read()
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
    return pickle.loads(pickled)


def _spread(values: Sequence[float], unit: str = "") -> str:
    middle, low, high = (
        f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return middle + unit + f" ({low}–{high})" * (len(values) > 1)


def machine() -> str:
    """CPU model, and number of cores of this process."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return f"{(models or [platform.machine()])[0]}, {len(os.sched_getaffinity(0))} cores"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder."""
    return tempfile.TemporaryDirectory(prefix="gdt-benchmark-")


def videos(source: Path | None, folder: Path, count: int = 64) -> list[Path]:
    """Videos of `source`, or `count` generated in `folder`: 10 s, 426x320, 25 fps, H.264 and AAC.

    Generated ones show moving noise and texture, so decoding and JPEGs cost about as much as for real ones.
    """
    if source is not None:
        found = [path for path in video_files(source.resolve()) if isinstance(path, Path)]
        if not found:
            raise UserError(f"there are no videos in {source}; set --source to a folder of videos")
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
