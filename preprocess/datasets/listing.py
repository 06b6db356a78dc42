"""What a data set yields: videos, and videos that are missing or cannot be used."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import is_regular, kind

SUFFIXES = {
    ".3g2", ".3gp", ".asf", ".avi", ".divx", ".f4v", ".flv", ".h264", ".ivf", ".m2ts", ".m2v", ".m4v", ".mkv", ".mov",
    ".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".nut", ".ogg", ".ogv", ".qt", ".rm", ".ts", ".vob", ".webm", ".wmv",
}  # fmt: skip
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
    """Yields the videos below a folder in a fixed order; a list of millions would not fit in memory."""
    tree: str
    """The expected files and folders, for messages."""
    needs_captions: bool = False
    """Whether videos and stretches without captions are skipped."""
    generate: Callable[[Path, bool], None] | None = None
    """Generates missing videos into a folder; the second argument is whether the user chose the folder."""


def incomplete(what: str, tree: str) -> UserError:
    """A UserError about an incomplete source folder, with the expected tree."""
    return UserError(f"{what}; expected:\n{tree}")


def is_missing(path: Path) -> bool:
    """Whether there is nothing at a path; other non-regular files are rejected when they are opened."""
    return kind(path) == "missing"


def key_of(name: str) -> int:
    """A 64-bit hash of an id or a path; the probability of a collision among millions is one in a million."""
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest(), "little")


def find_key(keys: np.ndarray, name: str) -> int | None:
    """Index of the key of a name in sorted keys (uint64); None if absent."""
    key = np.uint64(key_of(name))
    index = int(np.searchsorted(keys, key))
    return index if index < len(keys) and keys[index] == key else None


def size_of(path: Path) -> int:
    """Bytes of a regular file; -1 for anything else (a FIFO, a broken link) and for inaccessible files."""
    try:
        status = path.stat()
    except OSError:
        return -1
    return status.st_size if is_regular(status) else -1


def walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """The folders below `root` in a fixed order: path, sorted names of subfolders, sorted names of files.

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
        yield folder, subfolders, sorted(names)


def video_files(root: Path) -> Iterator[Path | Missing]:
    """Yield the paths below `root` with the suffix of a video, whatever kind of file they are, in the order of `walk`.

    Yields Missing, with the path below `root` as id, for hidden files and folders with such a suffix.
    """
    for folder, subfolders, names in walk(root):
        # its target may be a folder on a disk that is not mounted
        for name in (name for name in names if "." not in name and _is_broken_link(Path(folder, name))):
            yield _unused(Path(folder, name), root, "it is a broken link")
        for name in filter(_has_video_suffix, subfolders):
            yield _unused(Path(folder, name), root, "it is a folder, not a file")
        for name in filter(_has_video_suffix, names):
            if name.startswith("."):
                yield _unused(Path(folder, name), root, "it is hidden: its name begins with a dot")
            else:
                yield Path(folder, name)


def _has_video_suffix(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES or name.lower() in SUFFIXES


def _is_broken_link(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _unused(path: Path, root: Path, reason: str) -> Missing:
    return Missing(str(path.relative_to(root)), reason, path)
