"""The files of the synthetic data set, and `gdt generate`."""

import itertools
import json
import multiprocessing
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError
from gdt.common.files import LOCK, locked, scratch, write_lines, write_text
from gdt.common.machine import cores
from gdt.preprocess.process import Limits
from gdt.preprocess.settings import Generate
from gdt.preprocess.synthetic.moments import FPS, SIZE, SPLITS, Scene, Synthetic
from gdt.preprocess.synthetic.scenes import SOUND_RATE
from gdt.preprocess.tools import require_tools

GROUP = 25  # videos per ffmpeg process, whose start costs more than encoding one video
MARKER = "synthetic.json"
"""File of the settings."""
SET_FORMAT = 2
"""Version of the files; increase it when the same settings produce different files."""
ENCODER = (
    *("-threads", "1", "-fflags", "+bitexact", "-flags:v", "+bitexact", "-flags:a", "+bitexact"),
    *("-c:v", "libx264", "-preset", "superfast", "-crf", "20", "-g", "15", "-pix_fmt", "yuv420p"),
    *("-c:a", "aac", "-aac_coder", "fast", "-b:a", "64k"),  # the default coder takes as long as everything else
    *("-movflags", "+faststart", "-f", "mp4"),
)
BINS = 10
"""Values of the label `identity`, as many as there are actions."""


def command(settings: Generate) -> str:
    """Generate; returns where the videos are, and the command that follows."""
    folder = settings.destination
    generate(folder, settings.videos, settings.workers)
    following = gdt_command("preprocess", "--dataset", folder.name, "--layout", "synthetic", "--source", folder)
    return f"the videos are in {folder}\nnext: {following}"


Video = tuple[Path, tuple[str, str, int]]
"""A file and what its scene is drawn from: the split, the action at the beginning, and a number."""


def files(destination: Path, settings: Synthetic) -> list[Video]:
    """Every video of the set; file stems are unique ids. Videos of several actions are in no class's folder."""
    videos: list[Video] = []
    for split in SPLITS:
        for action in settings.actions:
            folder = destination / split / (action if settings.count(split) == 1 else "")
            for n in range(getattr(settings, split)):
                videos.append((folder / f"{split}_{action}_{n:04d}.mp4", (split, action, n)))
    return videos


def generate(destination: Path, settings: Synthetic, workers: int = 0) -> None:
    """Write a data set, whole or not at all: settings, `<split>/<class>/<id>.mp4`, labels.csv and captions.json.

    Leaves one with the same settings alone. `workers` processes render and encode; 0: one per core. Raises UserError if
    the destination holds something else or ffmpeg fails.
    """
    with scratch() as folder:
        require_tools(Limits(), folder)
    destination = destination.resolve()
    if destination.exists() and not destination.is_dir():
        raise UserError(f"{destination} is a file; set --destination to a new folder")
    asked = {"format": SET_FORMAT, **asdict(settings)}
    if destination.is_dir() and any(destination.iterdir()):
        _require_same(destination, asked)
        return
    partial = destination.with_name(f"{destination.name}.partial")
    with locked(partial):
        for path in partial.iterdir():  # of a killed run
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
        _make(partial, settings, workers)
        write_text(partial / MARKER, json.dumps(asked, indent=2) + "\n")
        (partial / LOCK).unlink()
        partial.rename(destination)


def _make(partial: Path, settings: Synthetic, workers: int) -> None:
    """Write the videos, their labels and captions."""
    videos = files(partial, settings)
    groups = [videos[k : k + GROUP] for k in range(0, len(videos), GROUP)]
    with (
        # spawned, not forked: the caller may have started threads
        ProcessPoolExecutor(workers or cores(), multiprocessing.get_context("spawn")) as pool,
        tqdm(total=len(videos), desc="synthetic videos", unit="video") as bar,
    ):
        for done in pool.map(_make_group, itertools.repeat(settings), groups):
            bar.update(done)
    _describe(partial, settings, videos)


def _require_same(destination: Path, asked: dict[str, object]) -> None:
    """Raise UserError unless the folder holds a set with these settings."""
    marker = destination / MARKER
    if not marker.is_file():
        raise UserError(
            f"{destination} holds files, but no {MARKER}, so it is not synthetic; set --destination to another folder"
        )
    before = json.loads(marker.read_text())
    differing = [
        f"{key} was {before.get(key)}, now {value}" for key, value in asked.items() if before.get(key) != value
    ]
    if differing:
        raise UserError(
            f"{destination} holds a synthetic data set with different settings ({', '.join(differing)}); use the same "
            "settings, delete the folder, or set --destination to another"
        )


def _make_group(settings: Synthetic, group: Sequence[Video]) -> int:
    """Render and encode videos with one ffmpeg process; returns their number. Raises UserError if ffmpeg fails."""
    with scratch() as folder:
        inputs: list[object] = []
        outputs: list[object] = []
        for k, (path, key) in enumerate(group):
            scene = Scene(settings, *key)
            frames = Path(folder, f"{k}.rgb")
            samples = Path(folder, f"{k}.pcm")
            scene.picture().tofile(frames)
            np.round(scene.sound() * 32767).astype("<i2").tofile(samples)
            inputs += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{SIZE}x{SIZE}", "-r", FPS, "-i", frames]
            inputs += ["-f", "s16le", "-ar", SOUND_RATE, "-ac", 1, "-i", samples]
            path.parent.mkdir(parents=True, exist_ok=True)
            outputs += ["-map", f"{2 * k}:v", "-map", f"{2 * k + 1}:a", *ENCODER, path]
        command = ["ffmpeg", "-nostdin", "-y", "-v", "error", *map(str, inputs + outputs)]
        process = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if process.returncode != 0:
        last = "\n".join(process.stderr.strip().splitlines()[-5:])
        raise UserError(f"ffmpeg failed to encode synthetic videos (exit status {process.returncode}):\n{last}")
    return len(group)


def _describe(folder: Path, settings: Synthetic, videos: Sequence[Video]) -> None:
    """Write labels.csv, for what the folders do not say, and captions.json."""
    captions = {}
    rows = ["path,actions,identity\n"]
    for path, key in videos:
        scene = Scene(settings, *key)
        captions[path.stem] = scene.captions()
        actions = " ".join(action for action, _ in scene.actions)
        rows.append(f"{path.relative_to(folder)},{actions},{int(BINS * scene.identity[0])}\n")
    if settings.identity or settings.actions_per_video > 1:
        write_lines(folder / "labels.csv", rows)
    write_text(folder / "captions.json", json.dumps(captions) + "\n")
