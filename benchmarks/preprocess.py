"""Preprocessing: videos/s of the whole stage against other ways to decode the same files.

Bare ffmpeg has the same filters, encoders and number of processes, one video each, but no Python, log-mel or shards.
The usual way pipes raw frames that ffmpeg has shrunk into Python, encodes JPEGs there, and extracts the audio with a
second process.
"""

import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import ffmpeg
import tyro
from PIL import Image

from benchmarks.shared import Measurements, machine
from gdt.common.errors import exit_with_message
from gdt.preprocess.ffmpeg import Extraction, Target, decode_command
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import run
from gdt.preprocess.videos import SUFFIXES, ListedVideo

BARE, USUAL, STAGE = "bare ffmpeg", "usual way", "stage"


def generate(folder: Path, count: int) -> list[Path]:
    """`count` videos of 10 s, 426x320, 25 fps, H.264 and AAC.

    They show moving noise and texture, so decoding and JPEGs cost about as much as for real ones.
    """
    folder.mkdir()
    for number in range(count):
        picture = f"mandelbrot=s=426x320:r=25:start_scale={3 / (1 + number):.4f},noise=alls=12:allf=t"
        sound = f"anoisesrc=d=10:c=pink:seed={number}:a=0.3"
        subprocess.run(
            ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", sound, "-t", "10",
             "-c:v", "libx264", "-preset", "veryfast", "-crf", "28", "-pix_fmt", "yuv420p", "-c:a", "aac",
             str(folder / f"{number:03d}.mp4")],
            check=True,
        )  # fmt: skip
    return sorted(folder.glob("*.mp4"))


def bare(paths: Sequence[Path], workers: int, group: int, folder: Path) -> None:
    """`workers` ffmpeg processes in parallel, `group` videos each."""

    def run_one(first: int) -> None:
        targets = [
            Target(ListedVideo(path.name, path), path, folder / f"{number}.mjpeg", folder / f"{number}.pcm")
            for number, path in enumerate(paths[first : first + group], first)
        ]
        arguments = decode_command(targets, Extraction())
        subprocess.run(arguments, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run_one, range(0, len(paths), group)))


def usual(paths: Sequence[Path], workers: int, folder: Path) -> None:
    """`workers` Python processes in parallel, one video each, through raw frames."""
    outs = [folder / str(k) for k in range(len(paths))]
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(_usual, paths, outs))


def _usual(path: Path, out: Path) -> None:
    settings = Extraction()
    shown = ffmpeg.probe(str(path), select_streams="V:0")["streams"][0]
    shrink = min(1.0, settings.short_side / min(shown["width"], shown["height"]))
    width, height = (2 * round(shown[name] * shrink / 2) for name in ("width", "height"))
    frames = ffmpeg.output(
        ffmpeg.input(str(path), threads=1)["V:0"], "pipe:", vf=f"fps={settings.fps},scale={width}:{height}",
        format="rawvideo", pix_fmt="rgb24", filter_threads=1, loglevel="quiet",
    )  # fmt: skip
    with out.with_suffix(".mjpeg").open("wb") as file:
        process = frames.run_async(pipe_stdout=True)
        while len(frame := process.stdout.read(width * height * 3)) == width * height * 3:
            Image.frombytes("RGB", (width, height), frame).save(file, "JPEG", quality=90)  # as large as ffmpeg's -q:v 3
        process.wait()
    sound = ffmpeg.output(ffmpeg.input(str(path))["a:0"], str(out.with_suffix(".wav")), ar=24_000, ac=1)
    sound.global_args("-loglevel", "quiet").run(quiet=True)


def seconds(measured: Callable[[Path], object], folder: Path) -> tuple[float, float]:
    """Seconds of a measurement that writes to a folder, which is removed, and of processor time.

    That counts processes that have ended: not those of more than two workers of the stage.
    """
    folder.mkdir()
    start, used = time.perf_counter(), _processor_time()
    measured(folder)
    taken = time.perf_counter() - start, _processor_time() - used
    shutil.rmtree(folder)
    return taken


def _processor_time() -> float:
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def main(
    count: int = 32,
    rounds: int = 3,
    workers: int = len(os.sched_getaffinity(0)),
    videos: Path | None = None,
    group: int = 1,
) -> None:
    """Measure preprocessing.

    Args:
        count: Generated videos.
        rounds: Rounds of all measurements.
        workers: Parallel processes.
        videos: Folder of videos to take instead of generated ones.
        group: Videos of each process of bare ffmpeg.

    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if videos is None:
            print("generating videos", flush=True)
            paths = generate(folder / "videos", count)
            whole = Preprocess("folder", folder / "videos", folder / "out", videos_per_shard=4, workers=workers)
        else:
            paths = sorted(path for path in videos.rglob("*") if path.suffix in SUFFIXES)
            whole = Preprocess("folder", videos, folder / "out", workers=workers)
        ways: dict[str, Callable[[Path], object]] = {
            BARE: partial(bare, paths, workers, group),
            USUAL: partial(usual, paths, workers),
            STAGE: lambda _: run(whole),
        }
        print(f"{machine()}; {len(paths)} videos, {workers} processes", flush=True)
        rates, costs = Measurements(), Measurements()
        for _ in range(rounds):
            for way, measured in ways.items():
                taken, used = seconds(measured, folder / "out")
                rates.add(way, len(paths) / taken, "videos/s")
                costs.add(way, 1000 * used / len(paths), "ms of processor time per video")
    for measurements, unit in ((rates, "videos/s"), (costs, "ms of processor time per video")):
        measurements.show(BARE, unit)
        measurements.show(USUAL, unit)
        measurements.show(STAGE, unit, BARE, USUAL)


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.preprocess"))
