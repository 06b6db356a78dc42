"""The files of the synthetic data set, and `gdt generate`.

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
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tyro
from tqdm import tqdm

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.preprocess.synthetic.drawing import SAMPLE_RATE
from gdt.preprocess.synthetic.moments import FPS, SIZE, SPLITS, Synthetic, captions, draw_scene

GROUP = 25  # videos per ffmpeg process, whose start costs more than encoding one video
MARKER = "synthetic.json"
UNFINISHED = ".partial"  # suffix of incomplete files
FORMAT = 2
"""Version of the files; increase it when the same settings produce different files."""
BINS = 10
"""Values of the label `identity`, as many as there are actions."""


@dataclass(frozen=True)
class Generate:
    """Generate a synthetic data set. Run the same command again to complete an incomplete one."""

    destination: Path = Path("data/videos/synthetic")
    """Folder of the videos."""
    workers: int = 0
    """Processes that render and encode; 0: one per core."""
    videos: Annotated[Synthetic, tyro.conf.arg(name="")] = field(default_factory=Synthetic)


def command(settings: Generate) -> str:
    """Generate; returns where the videos are, and the command that follows."""
    folder = settings.destination
    generate(folder, settings.videos, settings.workers)
    following = gdt_command("preprocess", "--dataset", folder.name, "--layout", "synthetic", "--source", folder)
    return f"the videos are in {folder}; next:\n  {following}"


class Task(NamedTuple):
    """One video to generate."""

    path: Path
    split: str
    action: str
    n: int


def tasks(destination: Path, settings: Synthetic) -> list[Task]:
    """Every video of the set; file stems are unique ids. Videos of several actions are in no class's folder."""
    return [
        Task(folder / f"{split}_{action}_{n:04d}.mp4", split, action, n)
        for split in SPLITS
        for action in settings.actions
        for folder in [destination / split / (action if settings.count(split) == 1 else "")]
        for n in range(getattr(settings, split))
    ]


def ffmpeg_command(raw: Sequence[tuple[Path, Path]], outputs: Iterable[Path]) -> list[str]:
    """The ffmpeg command that encodes pairs of raw frames and samples as MP4 files, bit-exact."""
    exact = "+bitexact"
    command = ["ffmpeg", "-nostdin", "-y", "-v", "error"]
    for frames, samples in raw:
        command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{SIZE}x{SIZE}", "-r", str(FPS), "-i", str(frames)]
        command += ["-f", "s16le", "-ar", str(SAMPLE_RATE), "-ac", "1", "-i", str(samples)]
    for k, output in enumerate(outputs):
        command += ["-map", f"{2 * k}:v", "-map", f"{2 * k + 1}:a", "-threads", "1", "-fflags", exact]
        command += ["-c:v", "libx264", "-preset", "superfast", "-crf", "20", "-g", "15", "-pix_fmt", "yuv420p"]
        # the default AAC coder takes as long as everything else
        command += ["-c:a", "aac", "-aac_coder", "fast", "-b:a", "64k", "-flags:v", exact, "-flags:a", exact]
        command += ["-movflags", "+faststart", "-f", "mp4", str(output)]
    return command


def make_group(settings: Synthetic, group: Sequence[Task]) -> int:
    """Render and encode videos with one ffmpeg process; returns their number. Raises UserError if ffmpeg fails."""
    with tempfile.TemporaryDirectory() as folder:
        raw = [(Path(folder, f"{k}.rgb"), Path(folder, f"{k}.pcm")) for k in range(len(group))]
        for (frames, samples), task in zip(raw, group, strict=True):
            video = settings.render(task.split, task.action, task.n)
            video.frames.tofile(frames)
            np.round(video.waveform * 32767).astype("<i2").tofile(samples)
            task.path.parent.mkdir(parents=True, exist_ok=True)
        outputs = [task.path.with_name(task.path.name + UNFINISHED) for task in group]
        run_ffmpeg(ffmpeg_command(raw, outputs))
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


def claim(destination: Path, settings: Synthetic) -> bool:
    """Create the folder with a marker of an incomplete set, unless it is there; returns whether the set is incomplete.

    Raises UserError if the folder holds a set with different settings, or something else.
    """
    expected: dict[str, object] = {"format": FORMAT, **asdict(settings)}
    marker, unfinished = destination / MARKER, destination / (MARKER + UNFINISHED)
    found = next((path for path in (marker, unfinished) if path.exists()), None)
    if found is None:
        if destination.is_dir() and any(not path.name.startswith(".") for path in destination.iterdir()):
            raise UserError(
                f"{destination} holds files, but no {MARKER}, so it is not synthetic; set --destination to another "
                "folder"
            )
        destination.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(expected, indent=2) + "\n")
        return True
    existing = json.loads(found.read_text())
    if differing := [key for key in expected if existing.get(key) != expected[key]]:
        what = ", ".join(f"{key} was {existing.get(key)}, now {expected[key]}" for key in differing)
        raise UserError(
            f"{destination} holds a synthetic data set with different settings ({what}); use the same settings, "
            "delete the folder, or set --destination to another"
        )
    return found == unfinished


def generate(destination: Path, settings: Synthetic, workers: int = 0, progress: bool = True) -> None:
    """Write a data set: `<split>/<class>/<id>.mp4`, captions.json, labels.csv and, once complete, the marker.

    Leaves a complete set with the same settings alone, and completes an incomplete one. `workers` processes render and
    encode; 0: one per core. Raises UserError if the destination holds something else or ffmpeg fails.
    """
    if not claim(destination, settings):
        return
    every = tasks(destination, settings)
    missing = [task for task in every if not task.path.exists()]
    groups = [missing[k : k + GROUP] for k in range(0, len(missing), GROUP)]
    # spawned, not forked: the caller may have started threads
    pool = ProcessPoolExecutor(workers or len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn"))
    with tqdm(total=len(missing), desc="synthetic videos", unit="video", disable=not progress) as bar:
        try:
            for done in as_completed([pool.submit(make_group, settings, group) for group in groups]):
                bar.update(done.result())
        finally:
            pool.shutdown(cancel_futures=True)
    _describe(destination, settings, every)
    (destination / (MARKER + UNFINISHED)).rename(destination / MARKER)


def _describe(destination: Path, settings: Synthetic, every: Sequence[Task]) -> None:
    """Write captions.json and, for what the folders do not say, labels.csv."""
    said, rows = {}, []
    for task in every:
        scene = draw_scene(settings, task.split, task.action, task.n)
        said[task.path.stem] = captions(scene, settings.seconds)
        actions = " ".join(action for action, _ in scene.actions)
        rows.append([task.path.relative_to(destination), actions, int(BINS * scene.identity[0])])
    write_text(destination / "captions.json", json.dumps(said) + "\n")
    if settings.identity or settings.actions_per_video > 1:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([["path", "actions", "identity"], *rows])
        write_text(destination / "labels.csv", text.getvalue())
