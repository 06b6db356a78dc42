"""Preprocessing: videos/s of the whole stage, beside other ways to decode the same files.

Bare ffmpeg has the same filters, encoders and number of processes, one video each, but no Python, no log-mel, no
shards. The usual way pipes raw frames into Python, shrinks them and makes the JPEGs there, and takes the sound with a
second process; the same with ffmpeg shrinking the frames is the best that can be said for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import ffmpeg
import tyro
from PIL import Image

from benchmarks.timing import Clock, Figures, in_turns, machine, scratch, videos
from gdt.common.errors import UserError, exit_with_message
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.ffmpeg import Extraction, Target, command
from gdt.preprocess.stage import Preprocess, run

BARE, USUAL, SMALL = "bare ffmpeg", "usual way, frames shrunk in Python", "usual way, frames shrunk in ffmpeg"
STAGE, START, ONE, START_OF_ONE = "stage", "start of the stage", "stage, one worker", "start of one worker"


def bare(paths: Sequence[Path], workers: int, folder: Path) -> None:
    """`workers` bare ffmpeg processes at a time, one video each."""

    def one(number: int) -> None:
        target = Target(Video(paths[number].name, paths[number]), folder / f"{number}.mjpeg", folder / f"{number}.pcm")
        arguments = command([target], Extraction(), sound=True)
        subprocess.run(arguments, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, range(len(paths))))


def usual(paths: Sequence[Path], workers: int, shrink_in_ffmpeg: bool, folder: Path) -> None:
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


def stage(source: Path, workers: int, videos_per_shard: int, folder: Path) -> None:
    """The whole stage, the start of its workers included."""
    run(Preprocess("folder", source, folder, videos_per_shard=videos_per_shard, workers=workers))


def seconds(name: str, measured: Callable[[Path], None], scratch: Path) -> dict[str, float]:
    """That it takes, into a folder that is removed."""
    folder = scratch / "out"
    folder.mkdir()
    clock = Clock()
    measured(folder)
    taken = clock.lap()
    shutil.rmtree(folder)
    return {name: taken}


def main(
    source: Path | None = None, made: int = 64, copies: int = 3, rounds: int = 3,
    workers: int = len(os.sched_getaffinity(0)),
) -> None:  # fmt: skip
    """Metric preprocessing.

    Args:
        source: Folder of videos; by default some are made.
        made: How many.
        copies: How often each is taken, so that a run is long beside its last shards, when some workers have no more.
        rounds: Runs of each kind, in turns.
        workers: Processes of each kind.

    """
    with scratch() as name:
        folder = Path(name)
        found = videos(source, folder / "videos", made)
        if len(found) <= workers:
            raise UserError(f"{len(found)} videos are too few to measure with")

        def linked(name: str, count: int) -> Path:
            """A folder of so many videos."""
            (folder / name).mkdir()
            for number, path in enumerate((found * copies)[:count]):
                (folder / name / f"{number:06d}{path.suffix}").symlink_to(path.absolute())
            return folder / name

        n = len(found) * copies
        all_of_them = linked("all", n)
        paths = sorted(all_of_them.iterdir())
        kinds: dict[str, Callable[[Path], None]] = {
            BARE: partial(bare, paths, workers),
            STAGE: partial(stage, all_of_them, workers, 8),
            START: partial(
                stage, linked("first", workers), workers, 1
            ),  # one video for each, so that all of them start
            ONE: partial(stage, all_of_them, 1, 8),
            START_OF_ONE: partial(stage, linked("first of one", 1), 1, 8),
            USUAL: partial(usual, paths, workers, False),
            SMALL: partial(usual, paths, workers, True),
        }
        measures = [partial(seconds, name, measured, folder) for name, measured in kinds.items()]
        taken = in_turns(rounds, *measures)
    rates = Figures({name: [n / one for one in taken[name]] for name in (BARE, USUAL, SMALL)})
    rates[f"{STAGE}, start included"] = [n / one for one in taken[STAGE]]
    for whole, start, decoded in ((STAGE, START, workers), (ONE, START_OF_ONE, 1)):
        steady = [a - b for a, b in zip(taken[whole], taken[start], strict=True)]
        rates[f"{whole}, without start"] = [(n - decoded) / one for one in steady]
    print(f"{machine()}; {n} videos, {workers} processes, {rounds} rounds")
    for name in (BARE, USUAL, SMALL):
        rates.show(name, "videos/s")
    for name in list(rates)[3:]:
        rates.show(name, "videos/s", BARE, USUAL, SMALL)
    rates.show(f"{STAGE}, without start", "videos/s", f"{ONE}, without start")
    taken.show(START, "s")


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.preprocess"))
