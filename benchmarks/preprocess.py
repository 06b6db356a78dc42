"""Preprocessing: videos/s of the whole stage against other ways to decode the same files.

Bare ffmpeg has the same filters, encoders and number of processes, one video each, but no Python, log-mel or shards.
The usual way pipes raw frames into Python, shrinks them and encodes JPEGs there, and extracts the audio with a second
process; it is fastest if ffmpeg shrinks the frames.
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

from benchmarks.timing import Clock, Measurements, in_turns, machine, scratch, videos
from gdt.common.errors import UserError, exit_with_message
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.ffmpeg import Extraction, Target, command
from gdt.preprocess.stage import Preprocess, run

BARE, USUAL, SMALL = "bare ffmpeg", "usual way, frames shrunk in Python", "usual way, frames shrunk in ffmpeg"
STAGE, START, ONE, START_OF_ONE = "stage", "start of the stage", "stage, one worker", "start of one worker"


def has_audio(path: Path) -> bool:
    try:
        return bool(ffmpeg.probe(str(path), select_streams="a")["streams"])
    except ffmpeg.Error as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"{path} cannot be read: {''.join(reason)}; remove it from the source") from None


def bare(paths: Sequence[Path], audio: Sequence[bool], workers: int, folder: Path) -> None:
    """`workers` ffmpeg processes in parallel, one video each."""

    def run_one(number: int) -> None:
        target = Target(Video(paths[number].name, paths[number]), folder / f"{number}.mjpeg", folder / f"{number}.pcm")
        arguments = command([target], Extraction(), sound=audio[number])
        subprocess.run(arguments, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run_one, range(len(paths))))


def usual(paths: Sequence[Path], audio: Sequence[bool], workers: int, shrink_in_ffmpeg: bool, folder: Path) -> None:
    """`workers` Python processes in parallel, one video each, through raw frames."""
    outs = [folder / str(k) for k in range(len(paths))]
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(partial(_usual, shrink_in_ffmpeg), paths, audio, outs))


def _usual(shrink_in_ffmpeg: bool, path: Path, audio: bool, out: Path) -> None:
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
    if audio:
        sound = ffmpeg.output(ffmpeg.input(str(path))["a:0"], str(out.with_suffix(".wav")), ar=24_000, ac=1)
        sound.global_args("-loglevel", "quiet").run(quiet=True)


def stage(source: Path, workers: int, videos_per_shard: int, folder: Path) -> None:
    """The whole stage, including the start of its workers."""
    run(Preprocess("folder", source, folder, videos_per_shard=videos_per_shard, workers=workers))


def seconds(name: str, measured: Callable[[Path], None], scratch: Path) -> dict[str, float]:
    """Seconds of a measurement that writes to a temporary folder."""
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
    """Measure preprocessing.

    Args:
        source: Folder of videos; by default some are generated.
        made: Number of generated videos.
        copies: How often each video is used; more copies give less weight to workers that idle at the end.
        rounds: Rounds of all measurements.
        workers: Parallel processes.

    """
    with scratch() as name:
        folder = Path(name)
        found = videos(source, folder / "videos", made)
        if len(found) <= workers:
            raise UserError(f"{len(found)} videos are too few to measure {workers} processes; lower --workers")

        def linked(name: str, count: int) -> Path:
            """A folder of links to `count` videos."""
            (folder / name).mkdir()
            for number, path in enumerate((found * copies)[:count]):
                (folder / name / f"{number:06d}{path.suffix}").symlink_to(path.absolute())
            return folder / name

        n = len(found) * copies
        everything = linked("all", n)
        paths = sorted(everything.iterdir())
        file_has_audio = {path.resolve(): has_audio(path) for path in found}
        audio = [file_has_audio[path.resolve()] for path in paths]
        kinds: dict[str, Callable[[Path], None]] = {
            BARE: partial(bare, paths, audio, workers),
            STAGE: partial(stage, everything, workers, 8),
            START: partial(stage, linked("first", workers), workers, 1),  # one video per worker, so that all start
            ONE: partial(stage, everything, 1, 8),
            START_OF_ONE: partial(stage, linked("first of one", 1), 1, 8),
            USUAL: partial(usual, paths, audio, workers, False),
            SMALL: partial(usual, paths, audio, workers, True),
        }
        measures = [partial(seconds, name, measured, folder) for name, measured in kinds.items()]
        taken = in_turns(rounds, *measures)
    rates = Measurements({name: [n / one for one in taken[name]] for name in (BARE, USUAL, SMALL)})
    rates[f"{STAGE}, start included"] = [n / one for one in taken[STAGE]]
    for whole, start, decoded in ((STAGE, START, workers), (ONE, START_OF_ONE, 1)):
        steady = [a - b for a, b in zip(taken[whole], taken[start], strict=True)]
        rates[f"{whole}, without start"] = [(n - decoded) / one for one in steady]
    print(f"{machine()}; {n} videos ({sum(audio)} with audio), {workers} processes, {rounds} rounds")
    for name in (BARE, USUAL, SMALL):
        rates.show(name, "videos/s")
    for name in list(rates)[3:]:
        rates.show(name, "videos/s", BARE, USUAL, SMALL)
    rates.show(f"{STAGE}, without start", "videos/s", f"{ONE}, without start")
    taken.show(START, "s")


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.preprocess"))
