"""Base class of synthetic data sets, and how their files are written.

Videos are encoded in groups and renamed when complete; a marker says that all are there.
"""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from tqdm import tqdm

from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.preprocess.synthetic.beat import Array
from gdt.preprocess.synthetic.drawing import SAMPLE_RATE, Frames

SPLITS = ("train", "val", "test")
GROUP = 25  # videos per ffmpeg process, whose start costs more than encoding one video
UNFINISHED = ".partial"  # suffix of incomplete files


class Video(NamedTuple):
    """One video before encoding: uint8 [T, H, W, 3], float32 [samples]."""

    frames: Frames
    waveform: Array


class Task(NamedTuple):
    """One video to generate."""

    path: Path
    split: str
    action: str
    n: int


@dataclass(frozen=True)
class GeneratedSet(ABC):
    """Settings of a synthetic data set, and how to render its videos."""

    name: ClassVar[str]
    """Name of the set; its marker is <name>.json."""
    format: ClassVar[int]
    """Version of the files; increase it when the same settings produce different files."""

    seed: int = 0
    """Random seed; every video has its own stream."""
    train: int = 200
    """Training videos per class."""
    val: int = 20
    """Validation videos per class."""
    test: int = 20
    """Test videos per class."""
    seconds: float = 4.0
    """Duration of every video in seconds."""
    fps: int = 15
    """Frames per second of the videos."""
    size: int = 64
    """Height and width in pixels; must be even."""

    def __post_init__(self) -> None:
        checks = {
            f"--size is {self.size}; it must be even and at least 16": self.size >= 16 and self.size % 2 == 0,
            f"--seconds is {self.seconds}; it must be above 0": self.seconds > 0,
            f"--fps is {self.fps}; it must be 1 or more": self.fps > 0,
        } | self.checks()
        for name in ("train", "val", "test", "seed"):
            checks[f"--{name} is {getattr(self, name)}; it must be 0 or more"] = getattr(self, name) >= 0
        if problems := [message for message, passed in checks.items() if not passed]:
            raise UserError(f"invalid settings of {self.name}: {'; '.join(problems)}")

    @property
    @abstractmethod
    def actions(self) -> tuple[str, ...]:
        """Names of the classes."""

    @abstractmethod
    def checks(self) -> dict[str, bool]:
        """Error message of each check of the settings, and whether it passes."""

    @abstractmethod
    def render(self, split: str, action: str, n: int) -> Video:
        """The n-th video of an action in a split."""

    @abstractmethod
    def metadata(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Text files of labels or captions, by name."""

    def folder(self, split: str, action: str) -> str:
        """Folder of the videos of an action, which names their class."""
        return f"{split}/{action}"

    @property
    def marker(self) -> str:
        return f"{self.name}.json"


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def tasks(destination: Path, settings: GeneratedSet) -> list[Task]:
    """Every video of the set; file stems are unique ids."""
    return [
        Task(destination / settings.folder(split, action) / f"{split}_{action}_{n:04d}.mp4", split, action, n)
        for split in SPLITS
        for action in settings.actions
        for n in range(getattr(settings, split))
    ]


def ffmpeg_command(settings: GeneratedSet, raw: Sequence[tuple[Path, Path]], outputs: Iterable[Path]) -> list[str]:
    """The ffmpeg command that encodes pairs of raw frames and samples as MP4 files, bit-exact."""
    side, exact = str(settings.size), "+bitexact"
    command = ["ffmpeg", "-nostdin", "-y", "-v", "error"]
    for frames, samples in raw:
        command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{side}x{side}", "-r", str(settings.fps)]
        command += ["-i", str(frames), "-f", "s16le", "-ar", str(SAMPLE_RATE), "-ac", "1", "-i", str(samples)]
    for k, output in enumerate(outputs):
        command += ["-map", f"{2 * k}:v", "-map", f"{2 * k + 1}:a", "-threads", "1", "-fflags", exact]
        command += ["-c:v", "libx264", "-preset", "superfast", "-crf", "20", "-g", "15", "-pix_fmt", "yuv420p"]
        # the default AAC coder takes as long as everything else
        command += ["-c:a", "aac", "-aac_coder", "fast", "-b:a", "64k", "-flags:v", exact, "-flags:a", exact]
        command += ["-movflags", "+faststart", "-f", "mp4", str(output)]
    return command


def make_group(settings: GeneratedSet, group: Sequence[Task]) -> int:
    """Render and encode videos with one ffmpeg process; returns their number. Raises UserError if ffmpeg fails."""
    with tempfile.TemporaryDirectory() as folder:
        raw = [(Path(folder, f"{k}.rgb"), Path(folder, f"{k}.pcm")) for k in range(len(group))]
        for (frames, samples), task in zip(raw, group, strict=True):
            video = settings.render(task.split, task.action, task.n)
            video.frames.tofile(frames)
            np.round(video.waveform * 32767).astype("<i2").tofile(samples)
            task.path.parent.mkdir(parents=True, exist_ok=True)
        outputs = [task.path.with_name(task.path.name + UNFINISHED) for task in group]
        run_ffmpeg(ffmpeg_command(settings, raw, outputs))
    for task, output in zip(group, outputs, strict=True):
        output.rename(task.path)
    return len(group)


def run_ffmpeg(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        raise UserError(
            "ffmpeg is not installed; install it with 'apt-get install ffmpeg' or 'conda install -c conda-forge ffmpeg'"
        ) from None
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise UserError(f"ffmpeg failed to encode synthetic videos (exit status {done.returncode}):\n{last}")


def claim(destination: Path, settings: GeneratedSet) -> bool:
    """Create the folder with a marker of an incomplete set, unless it is there; returns whether the set is incomplete.

    Raises UserError if the folder holds a set with different settings, or something else.
    """
    expected: dict[str, object] = {"format": settings.format, **asdict(settings)}
    marker, unfinished = destination / settings.marker, destination / (settings.marker + UNFINISHED)
    found = next((path for path in (marker, unfinished) if path.exists()), None)
    if found is None:
        there = sorted(path.name for path in destination.iterdir()) if destination.is_dir() else []
        if taken := [name for name in there if not name.startswith(".")]:
            more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
            raise UserError(
                f"{destination} holds {taken[0]}{more}, but no {settings.marker}, so it is not {settings.name}; move "
                "these files elsewhere, or generate the set in another folder with 'gdt generate'"
            )
        destination.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(expected, indent=2) + "\n")
        return True
    existing = json.loads(found.read_text())
    if differing := [key for key in expected if existing.get(key) != expected[key]]:
        what = ", ".join(f"{key} was {existing.get(key)}, now {expected[key]}" for key in differing)
        raise UserError(
            f"{destination} holds a {settings.name} data set with different settings ({what}); use the same settings, "
            "delete the folder, or set --destination to another"
        )
    return found == unfinished


def make_missing(settings: GeneratedSet, missing: Sequence[Task], workers: int, progress: bool) -> None:
    groups = [missing[k : k + GROUP] for k in range(0, len(missing), GROUP)]
    workers = min(workers, len(groups))
    with tqdm(total=len(missing), desc=f"{settings.name} videos", unit="video", disable=not progress) as bar:
        if workers <= 1:
            for group in groups:
                bar.update(make_group(settings, group))
            return
        # spawned, not forked: the caller may have started threads
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
        try:
            for done in as_completed([pool.submit(make_group, settings, group) for group in groups]):
                bar.update(done.result())
        finally:
            pool.shutdown(cancel_futures=True)


def generate(destination: Path, settings: GeneratedSet, workers: int = 0, progress: bool = True) -> None:
    """Write a data set: `<split>/<class>/<id>.mp4`, labels or captions and, once complete, the marker.

    Leaves a complete set with the same settings alone, and completes an incomplete one. `workers` processes render and
    encode; 0: one per core. Raises UserError if the destination holds something else or ffmpeg fails.
    """
    if not claim(destination, settings):
        return
    all_tasks = tasks(destination, settings)
    missing = [task for task in all_tasks if not task.path.exists()]
    make_missing(settings, missing, workers or len(os.sched_getaffinity(0)), progress)
    for name, text in settings.metadata(all_tasks).items():
        write_text(destination / name, text)
    (destination / (settings.marker + UNFINISHED)).rename(destination / settings.marker)
