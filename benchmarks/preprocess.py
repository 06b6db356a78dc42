"""Preprocessing: videos/s of the whole stage, beside other ways to decode the same files.

Bare ffmpeg has the same filters, encoders and number of processes, one video each, but no Python, no log-mel, no
shards. The usual way pipes raw frames into Python, shrinks them and makes the JPEGs there, and takes the sound with a
second process; the same with ffmpeg shrinking the frames is the best that can be said for it. All are timed in turn,
several times, and the medians compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ffmpeg
import tyro
from PIL import Image

from benchmarks.common import machine, scratch, videos
from gdt.common.errors import UserError, exit_with_message
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.ffmpeg import Extraction, Target, command
from gdt.preprocess.stage import Preprocess, run


@dataclass(frozen=True)
class Benchmark:
    """Measure preprocessing."""

    source: Path | None = None
    """Folder of videos; by default some are made."""
    repeats: int = 3
    """Runs of each kind, of which the median counts."""
    copies: int = 3
    """How often each video is taken, so that a run is long beside its last shards, when some workers have no more."""
    workers: int = len(os.sched_getaffinity(0))
    """Processes of each kind."""


def bare(paths: Sequence[Path], folder: Path, workers: int) -> None:
    """`workers` bare ffmpeg processes at a time, one video each."""
    names = [(path, folder / f"{k}.mjpeg", folder / f"{k}.pcm") for k, path in enumerate(paths)]
    targets = [Target(Video(path.name, path), jpeg, pcm) for path, jpeg, pcm in names]

    def one(target: Target) -> None:
        arguments = command([target], Extraction(), sound=True)
        subprocess.run(arguments, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, targets))


def usual(paths: Sequence[Path], folder: Path, workers: int, shrink_in_ffmpeg: bool) -> None:
    """`workers` Python processes, one video each, through raw frames."""
    outs = [folder / str(k) for k in range(len(paths))]
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(partial(_usual, shrink_in_ffmpeg=shrink_in_ffmpeg), paths, outs))


def _usual(path: Path, out: Path, shrink_in_ffmpeg: bool) -> None:
    settings = Extraction()
    shown = ffmpeg.probe(str(path), select_streams="V:0")["streams"][0]
    whole = (shown["width"], shown["height"])
    shrink = min(1.0, settings.short_side / min(whole))
    small = (2 * round(whole[0] * shrink / 2), 2 * round(whole[1] * shrink / 2))
    width, height = small if shrink_in_ffmpeg else whole
    frames = ffmpeg.output(
        ffmpeg.input(str(path), threads=1)["V:0"], "pipe:", vf=f"fps={settings.fps},scale={width}:{height}",
        format="rawvideo", pix_fmt="rgb24", filter_threads=1, loglevel="quiet",
    )  # fmt: skip
    with out.with_suffix(".mjpeg").open("wb") as file:
        process = frames.run_async(pipe_stdout=True)
        while len(frame := process.stdout.read(width * height * 3)) == width * height * 3:
            image = Image.frombytes("RGB", (width, height), frame)
            if (width, height) != small:
                image = image.resize(small, Image.Resampling.BICUBIC)
            image.save(file, "JPEG", quality=90)  # about as large as ffmpeg's -q:v 3
        process.wait()
    sound = ffmpeg.output(ffmpeg.input(str(path))["a:0?"], str(out.with_suffix(".wav")), ar=24_000, ac=1)
    sound.global_args("-loglevel", "quiet").run(quiet=True)


def stage(source: Path, folder: Path, workers: int, videos_per_shard: int = 8) -> None:
    """The whole stage, the start of its workers included."""
    run(Preprocess("folder", source, folder, videos_per_shard=videos_per_shard, workers=workers))


def main() -> None:
    settings = tyro.cli(Benchmark, prog="python -m benchmarks.preprocess")
    with scratch() as name:
        folder = Path(name)
        (folder / "videos").mkdir()
        made = videos(settings.source, folder / "videos")
        if len(made) <= settings.workers:
            raise UserError(f"{len(made)} videos are too few to measure with")
        workers = settings.workers
        source = folder / "source"
        source.mkdir()
        for number, path in enumerate(made * settings.copies):
            (source / f"{number:06d}{path.suffix}").symlink_to(path.absolute())
        paths = sorted(source.iterdir())
        for count in (1, workers):  # one video for each worker, so that all of them start
            (folder / f"first-{count}").mkdir(exist_ok=True)
            for path in paths[:count]:
                (folder / f"first-{count}" / path.name).symlink_to(path.resolve())
        kinds: dict[str, Callable[[Path], None]] = {
            "bare": lambda out: bare(paths, out, workers),
            "stage": lambda out: stage(source, out, workers),
            "start": lambda out: stage(folder / f"first-{workers}", out, workers, videos_per_shard=1),
            "one": lambda out: stage(source, out, 1),
            "start of one": lambda out: stage(folder / "first-1", out, 1),
            "usual": lambda out: usual(paths, out, workers, shrink_in_ffmpeg=False),
            "usual, small": lambda out: usual(paths, out, workers, shrink_in_ffmpeg=True),
        }
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for k in range(settings.repeats):
            for kind, measured in kinds.items():
                out = folder / f"{kind}-{k}"
                out.mkdir()
                began = time.perf_counter()
                measured(out)
                times[kind].append(time.perf_counter() - began)
        seconds = {kind: statistics.median(values) for kind, values in times.items()}
        n = len(paths)
        for whole, start, decoded in (("stage", "start", workers), ("one", "start of one", 1)):
            seconds[f"{whole}, steady"] = (seconds[whole] - seconds[start]) * n / (n - decoded)
        print(f"{machine()}; {n} videos, {workers} processes, median of {settings.repeats}")
        for kind, text in (
            ("bare", "bare ffmpeg"),
            ("usual", "usual way: frames shrunk in Python"),
            ("usual, small", "usual way: frames shrunk in ffmpeg"),
            ("stage", "stage, start included"),
            ("stage, steady", "stage, without start"),
            ("one, steady", "stage, one worker, without start"),
        ):
            own = seconds[kind]
            ratios = ", ".join(f"{seconds[other] / own:.2f}" for other in ("bare", "usual", "usual, small"))
            print(f"{text:36s}{n / own:6.2f} videos/s; times bare, usual, usual small: {ratios}")
        print(f"{workers} workers against one: {seconds['one, steady'] / seconds['stage, steady']:.2f}")
        print(f"start of the stage: {seconds['start']:.2f} s (workers, imports, one video each)")


if __name__ == "__main__":
    exit_with_message(main)
