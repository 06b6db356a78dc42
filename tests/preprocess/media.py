"""Files made by ffmpeg, and what is shown and heard in what was taken from them."""

import hashlib
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from gdt.common.folders import Folder
from gdt.preprocess.decode import Extracted, extract_group
from gdt.preprocess.ffmpeg import Extraction, Target
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.process import Rejected
from gdt.preprocess.videos import ListedVideo
from gdt.preprocess.worker import make_shard
from tests.conftest import ROOT
from tests.preprocess.intact import problems

Fake = Callable[[str], Path]
"""Installs a script in the place of ffmpeg, see the fixture `fake`."""
ENCODED = ROOT / ".pytest_cache" / "d" / "encoded"
"""Files that were made, by all that they depend on; `pytest --cache-clear` removes them."""


@cache
def _version() -> bytes:
    return subprocess.run(["ffmpeg", "-version"], capture_output=True, check=True).stdout


def encode(path: Path, *arguments: object) -> Path:
    """Run ffmpeg with these arguments, or copy what it made of them and of the content of their files before."""
    parts = [hashlib.sha256(each.read_bytes()).digest() if isinstance(each, Path) else str(each) for each in arguments]
    made = ENCODED / f"{hashlib.sha256(repr((_version(), parts)).encode()).hexdigest()}{path.suffix}"
    if not made.is_file():
        part = ENCODED / f"{os.getpid()}{path.suffix}"
        part.parent.mkdir(parents=True, exist_ok=True)
        command = ["ffmpeg", "-v", "error", "-y", *map(str, arguments), part]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        part.rename(made)
    shutil.copyfile(made, path)  # tests may change it
    return path


def made(path: Path, picture: str = "", sound: str = "", *options: object) -> Path:
    """A file of video and sound from these sources of ffmpeg."""
    return encode(path, *_inputs(filter(None, (picture, sound))), *options)


def several(path: Path, sources: Sequence[str], *options: object) -> Path:
    """A file with a stream for each of these sources of ffmpeg."""
    maps = [part for k in range(len(sources)) for part in ("-map", k)]
    return encode(path, *_inputs(sources), *maps, *options)


def _inputs(sources: Iterable[str]) -> list[str]:
    return [part for source in sources for part in ("-f", "lavfi", "-i", source)]


def clock(seconds: float, rate: int = 30, size: str = "64x64") -> str:
    """A video whose brightness encodes the time: see `shown_times`."""
    return f"color=black:s={size}:r={rate}:d={seconds},format=yuv420p,geq=lum='20+50*T':cb=128:cr=128"


def tone(seconds: float = 2, hertz: int = 440) -> str:
    return f"sine={hertz}:d={seconds}:r=48000"


def grey(luma: int, pixels: str = "yuv420p", seconds: float = 1.2) -> str:
    middle = 512 if "10le" in pixels else 128
    return f"color=black:s=64x64:r=30:d={seconds},format={pixels},geq=lum={luma}:cb={middle}:cr={middle}"


def extract(source: Path | ListedVideo, folder: Path, settings: Extraction = Extraction()) -> Extracted | Rejected:
    video = source if isinstance(source, ListedVideo) else ListedVideo(source.name, source)
    return extract_group([Target.within(Path(tempfile.mkdtemp(dir=folder)) / "out", video, video.path)], settings)[0]


def kept(source: Path | ListedVideo, folder: Path, settings: Extraction = Extraction()) -> Extracted:
    taken = extract(source, folder, settings)
    assert isinstance(taken, Extracted), taken
    return taken


def reason(source: Path | ListedVideo, folder: Path, settings: Extraction = Extraction()) -> str:
    taken = extract(source, folder, settings)
    assert isinstance(taken, Rejected), taken
    return str(taken)


def frames(taken: Extracted) -> np.ndarray:
    """All frames, uint8 [n, height, width, 3]; checks their size."""
    data, ends = taken.jpeg.read_bytes(), np.cumsum(taken.sizes)
    starts = ends - taken.sizes
    images = np.stack([np.asarray(Image.open(io.BytesIO(data[a:b]))) for a, b in zip(starts, ends, strict=True)])
    assert images.shape == (len(taken.sizes), taken.height, taken.width, 3)
    return images


def seconds(taken: Extracted) -> float:
    return len(taken.waveform) / 24_000


def shown_times(taken: Extracted) -> np.ndarray:
    """The time that each frame of a `clock` shows."""
    return ((16 + frames(taken).mean((1, 2, 3)) * 219 / 255) - 20) / 50


FRAME = 1 / 30 + 1e-6


def events(taken: Extracted) -> tuple[np.ndarray, np.ndarray]:
    """Times of white frames and of clicks, seconds."""
    bright = frames(taken).mean((1, 2, 3)) > 128
    loud = np.abs(taken.waveform[:].astype(float)) > 6000
    onsets = np.flatnonzero(loud & ~np.roll(np.convolve(loud, np.ones(2400), "full")[: len(loud)] > 0, 1))
    return np.flatnonzero(bright) / 30, onsets / 24_000


def assert_events(taken: Extracted, flashes: Sequence[float], clicks: Sequence[float] | None = None) -> None:
    """Flashes and clicks come at these times; clicks, by default, with the flashes."""
    flash, click = events(taken)
    expected = flash if clicks is None else clicks
    assert len(flash) == len(flashes) and np.abs(flash - flashes).max() < FRAME
    assert len(click) == len(expected) and np.abs(click - expected).max() < FRAME


def shard(folder: Path, videos: list[ListedVideo], settings: Extraction) -> h5py.File:
    path = folder / "shard-000000.h5"
    make_shard(ShardTask(Folder(path.parent), path.name, Folder(path.parent), videos, settings, {}))
    assert problems(path) == []
    return h5py.File(path, "r")


def target(folder: Path, path: Path) -> Target:
    return Target.within(folder / path.stem, ListedVideo(path.name, path), path)


def group(folder: Path, *paths: Path) -> list[Extracted | Rejected]:
    """The outputs of files that are decoded as a group."""
    return extract_group([target(folder, path) for path in paths], Extraction())


def pair(folder: Path, first: Path, second: Path) -> list[Extracted]:
    """The outputs of two files that are decoded as a group."""
    return [one for one in group(folder, first, second) if isinstance(one, Extracted)]


def assert_gone(pid_file: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
