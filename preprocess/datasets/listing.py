"""What a data set yields: videos, and videos that are missing or cannot be used."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gdt.common.errors import UserError
from gdt.common.files import kind

SUFFIXES = {
    ".3g2", ".3gp", ".asf", ".avi", ".divx", ".f4v", ".flv", ".h264", ".ivf", ".m2ts", ".m2v", ".m4v", ".mkv", ".mov",
    ".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".nut", ".ogg", ".ogv", ".qt", ".rm", ".ts", ".vob", ".webm", ".wmv",
}  # fmt: skip
SOUNDS = {".flac", ".m4a", ".mp3", ".wav"}
"""Suffixes of files of sound alone; .ogg may be either."""
SPLITS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "validate": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""The split that a folder name or a word in an official list stands for."""


@dataclass(frozen=True, slots=True)
class Words:
    """Timed tokens of one video in the order they are spoken; three lists of the same length."""

    token: list[int]
    """Row of the word in the word2vec file."""
    start: list[float]
    """Seconds from the start of the video."""
    end: list[float]


@dataclass(frozen=True, slots=True)
class Video:
    """One video file of a data set, or a part of one."""

    id: str
    """Unique in the data set."""
    path: Path
    label: str = ""
    """Class name; empty if unknown."""
    split: str = ""
    """train, val or test; unused if only other official folds use the video; empty if --val and --test decide."""
    folds: tuple[str, ...] = ()
    """The split in each official fold (train, test or unused); empty for data sets without folds."""
    segment: tuple[float, float] | None = None
    """Start and end, in seconds of the file, of the part to cut out; None for the whole file."""
    stretches: tuple[tuple[float, float], ...] = ()
    """Start and end, in seconds, of the parts to keep, in order and disjoint; empty for the whole video."""
    words: Words | None = None
    """Words of the captions; None without captions or vocabulary."""
    columns: tuple[tuple[str, str], ...] = ()
    """Name and value of further columns of labels."""
    size: int = -1
    """Bytes of the file when it was listed; -1 if there was none."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A video that is listed but has no file, or a file that cannot be used."""

    id: str
    reason: str
    path: Path | None = None
    """The file, if there is one."""


def unlisted(path: Path) -> Missing:
    """A file that the official list of its data set does not name: it has no class or split that can be trusted."""
    return Missing(path.stem, "not named in the official list, so it is left out", path)


@dataclass(frozen=True)
class DataSet:
    """Where the videos, labels and splits of a data set are."""

    listing: Callable[[Path], Iterator[Video | Missing]]
    """Yields the videos below a folder in a fixed order."""
    tree: str
    """The expected files and folders, for messages."""
    needs_captions: bool = False
    """Whether videos and stretches without captions are skipped."""


def incomplete(what: str, tree: str) -> UserError:
    """A UserError about an incomplete source folder, with the expected tree."""
    return UserError(f"{what}; expected:\n{tree}")


def is_missing(path: Path) -> bool:
    """Whether there is nothing at a path; other non-regular files are rejected when they are opened."""
    return kind(path) == "missing"


def size_of(path: Path) -> int:
    """Bytes of a regular file; -1 for anything else (a FIFO, a broken link) and for inaccessible files."""
    try:
        status = path.stat()
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """The folders below `root` in a fixed order, each with the sorted names of its files.

    Links are followed, and each folder is read once. Raises UserError for a folder that cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read the folder {error.filename}: {error.strerror}; check its disk and permissions")

    seen: set[str] = set()
    for folder, subfolders, names in os.walk(root, followlinks=True, onerror=refuse):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders.sort()
        yield folder, sorted(names)


def video_files(root: Path) -> Iterator[Path]:
    """Yield the paths below `root` with the suffix of a video, whatever kind of file they are, in the order of `walk`.

    Hidden files are none, such as those that macOS adds for each file.
    """
    for folder, names in walk(root):
        for name in names:
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                yield Path(folder, name)


def sound_files(root: Path) -> Iterator[Path]:
    """Like `video_files`, for files of sound."""
    for folder, names in walk(root):
        for name in names:
            if not name.startswith(".") and Path(name).suffix.lower() in SOUNDS | {".ogg"}:
                yield Path(folder, name)


def media_files(root: Path) -> Iterator[Path]:
    """`video_files`, and sounds other than those next to a video of the same name, whose sound they are."""
    for folder, names in walk(root):
        shown = [Path(name) for name in names if not name.startswith(".")]
        videos = {path.stem for path in shown if path.suffix.lower() in SUFFIXES}
        for path in shown:
            suffix = path.suffix.lower()
            if suffix in SUFFIXES or (suffix in SOUNDS and path.stem not in videos):
                yield Path(folder, path)
