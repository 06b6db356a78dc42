"""The files of a generated data set: encoded in groups, renamed when complete, marked when all are there."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from gdt.common.errors import UserError
from gdt.preprocess.synthetic.scene import SAMPLE_RATE, SPLITS, Video

GROUP = 25  # videos per ffmpeg process: its start costs more than encoding one video
UNFINISHED = ".partial"  # what a name ends in until the file is complete


class Task(NamedTuple):
    """One video to make, and where."""

    path: Path
    split: str
    action: str
    n: int


@dataclass(frozen=True)
class Recipe:
    """One generated data set: what its videos are, and how each is made."""

    name: str
    """Of the set; its marker is <name>.json."""
    format: int
    """Raised whenever the same settings give other files."""
    settings: Any
    """A frozen dataclass; of its fields, `train`, `val`, `test` (videos per class), `size` and `fps` are read here."""
    actions: tuple[str, ...]
    """Names of the classes."""
    render: Callable[[Any, str, str, int], Video]
    """The video of settings, split, action and number; a function of a module, since processes hand it on."""
    beside: Callable[[Any, Sequence[Task]], dict[str, str]]
    """Files beside the videos, by name, as text."""

    @property
    def marker(self) -> str:
        return f"{self.name}.json"


def tasks(destination: Path, recipe: Recipe) -> list[Task]:
    """Every video of the set; the file stem is its id, unique over splits and classes."""
    return [
        Task(destination / split / action / f"{split}_{action}_{n:04d}.mp4", split, action, n)
        for split in SPLITS
        for action in recipe.actions
        for n in range(getattr(recipe.settings, split))
    ]


def ffmpeg_command(settings: Any, raw: Sequence[tuple[Path, Path]], outputs: Iterable[Path]) -> list[str]:
    """One process that turns pairs of raw frames and samples into as many MP4 files, the same bytes every time."""
    side, exact = str(settings.size), "+bitexact"
    command = ["ffmpeg", "-nostdin", "-y", "-v", "error"]
    for frames, samples in raw:
        command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{side}x{side}", "-r", str(settings.fps)]
        command += ["-i", str(frames), "-f", "s16le", "-ar", str(SAMPLE_RATE), "-ac", "1", "-i", str(samples)]
    for k, output in enumerate(outputs):
        command += ["-map", f"{2 * k}:v", "-map", f"{2 * k + 1}:a", "-threads", "1", "-fflags", exact]
        command += ["-c:v", "libx264", "-preset", "superfast", "-crf", "20", "-g", "15", "-pix_fmt", "yuv420p"]
        # The default search of the AAC encoder costs as much as all the rest.
        command += ["-c:a", "aac", "-aac_coder", "fast", "-b:a", "64k", "-flags:v", exact, "-flags:a", exact]
        command += ["-movflags", "+faststart", "-f", "mp4", str(output)]
    return command


def make_group(recipe: Recipe, group: Sequence[Task]) -> int:
    """Render and encode a few videos with one ffmpeg process; returns how many. Raises `UserError` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        raw = [(Path(folder, f"{k}.rgb"), Path(folder, f"{k}.pcm")) for k in range(len(group))]
        for (frames, samples), task in zip(raw, group, strict=True):
            video = recipe.render(recipe.settings, task.split, task.action, task.n)
            video.frames.tofile(frames)
            np.round(video.waveform * 32767).astype("<i2").tofile(samples)
            task.path.parent.mkdir(parents=True, exist_ok=True)
        outputs = [task.path.with_name(task.path.name + UNFINISHED) for task in group]
        run_ffmpeg(ffmpeg_command(recipe.settings, raw, outputs))
    for task, output in zip(group, outputs, strict=True):
        output.rename(task.path)
    return len(group)


def run_ffmpeg(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        raise UserError("ffmpeg was not found; install it (it needs libx264) and make sure it is on PATH.") from None
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise UserError(f"ffmpeg could not encode the synthetic videos (exit status {done.returncode}):\n{last}")


def claim(destination: Path, recipe: Recipe) -> bool:
    """Whether the set is still to be made or completed, under a marker that says with which settings.

    Raises `UserError` if the folder holds a set with other settings, or something else.
    """
    described: dict[str, object] = {"format": recipe.format, **asdict(recipe.settings)}
    marker, unfinished = destination / recipe.marker, destination / (recipe.marker + UNFINISHED)
    found = next((path for path in (marker, unfinished) if path.exists()), None)
    if found is None:
        if taken := [name for name in (*SPLITS, *recipe.beside(recipe.settings, [])) if (destination / name).exists()]:
            raise UserError(
                f"{destination} holds {', '.join(taken)}, but no {recipe.marker}; it is not a {recipe.name} data set. "
                "Choose another destination."
            )
        destination.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(described, indent=2) + "\n")
        return True
    existing = json.loads(found.read_text())
    if differing := [key for key in described if existing.get(key) != described[key]]:
        what = ", ".join(f"{key} is {existing.get(key)} there, {described[key]} here" for key in differing)
        raise UserError(
            f"{destination} holds a {recipe.name} data set made with other settings: {what}. "
            "Use the same settings, delete the folder, or choose another destination."
        )
    return found == unfinished


def make_all(recipe: Recipe, missing: Sequence[Task], workers: int, progress: bool) -> None:
    groups = [missing[k : k + GROUP] for k in range(0, len(missing), GROUP)]
    with tqdm(total=len(missing), desc=f"{recipe.name} videos", unit="video", disable=not progress) as bar:
        if min(workers, len(groups)) <= 1:
            for group in groups:
                bar.update(make_group(recipe, group))
            return
        # Spawned, not forked: the caller may have started threads.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(workers, len(groups)), mp_context=context)
        try:
            for done in as_completed([pool.submit(make_group, recipe, group) for group in groups]):
                bar.update(done.result())
        finally:
            pool.shutdown(cancel_futures=True)


def make(destination: Path, recipe: Recipe, workers: int | None, progress: bool) -> None:
    """Make a data set: `<split>/<class>/<id>.mp4`, what lies beside and, once complete, the marker.

    A complete set with the same settings is left alone, a half-made one completed. `workers` processes render and
    encode, by default one per CPU core. Raises `UserError` if the destination is taken or ffmpeg fails.
    """
    if not claim(destination, recipe):
        return
    every = tasks(destination, recipe)
    missing = [task for task in every if not task.path.exists()]
    make_all(recipe, missing, workers or len(os.sched_getaffinity(0)), progress)
    for name, text in recipe.beside(recipe.settings, every).items():
        (destination / name).write_text(text)
    (destination / (recipe.marker + UNFINISHED)).rename(destination / recipe.marker)
