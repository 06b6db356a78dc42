"""What a data set module yields: videos, and videos that should be there but are not."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import is_regular

SUFFIXES = {
    ".3g2", ".3gp", ".asf", ".avi", ".divx", ".f4v", ".flv", ".h264", ".ivf", ".m2ts", ".m2v", ".m4v", ".mkv", ".mov",
    ".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".nut", ".ogg", ".ogv", ".qt", ".rm", ".ts", ".vob", ".webm", ".wmv",
}  # fmt: skip
SPLITS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "validate": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""Folder names, and words in official lists, that stand for a split."""


@dataclass(frozen=True, slots=True)
class Words:
    """Timed tokens of one video, in the order they are spoken; three lists of one length."""

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
    """Class name, empty where there is none."""
    split: str = ""
    """train, val or test; unused where the official lists use the video in other folds only; empty where the source
    does not say, and the run decides."""
    folds: tuple[str, ...] = ()
    """The split in each official fold (train, test or unused); empty for data sets without folds."""
    segment: tuple[float, float] | None = None
    """Start and end, in seconds of the original video, of the part that is meant. It is cut out where the file is the
    original, and the whole file is taken where it is the part already."""
    stretches: tuple[tuple[float, float], ...] = ()
    """Start and end, in seconds, of the parts to keep frames of, in order and apart; empty for the whole video."""
    words: Words | None = None
    """What is said, where there are captions and a vocabulary."""
    columns: tuple[tuple[str, str], ...] = ()
    """What else people say of the video: name and value of each further column."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A video that the official lists name but that is not there, or that is there but cannot be used."""

    id: str
    reason: str
    path: Path | None = None
    """Where there is something."""


@dataclass(frozen=True)
class DataSet:
    """A data set: where its videos, labels and splits are."""

    listing: Callable[[Path], Iterator[Video | Missing]]
    """Videos below a folder, in a fixed order, one at a time: a list of a million is never held in memory."""
    tree: str
    """The files and folders that are expected, as text to show."""
    needs_captions: bool = False
    """Only what is captioned is kept: videos without captions are left out, and stretches without any are cut out."""
    generate: Callable[[Path], None] | None = None
    """Generates the videos, and captions of them, where there are none."""


def key_of(name: str) -> int:
    """64 bits that stand for an id or a path; two names of millions have the same by a chance of one in a million."""
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest(), "little")


def find_key(keys: np.ndarray, name: str) -> int | None:
    """Where in sorted keys (uint64) that of a name is first, None where it is not."""
    key = np.uint64(key_of(name))
    at = int(np.searchsorted(keys, key))
    return at if at < len(keys) and keys[at] == key else None


def size_of(path: Path) -> int:
    """Bytes of a regular file, -1 of anything else (a FIFO, a broken link) and of what cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return -1
    return status.st_size if is_regular(status) else -1


def walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """The folders below `root` in a fixed order: path, names of subfolders and names of files, both sorted.

    Links to folders are followed, each folder is read once. Raises UserError for a folder that cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read the folder {error.filename}: {error.strerror}")

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
    """All that is named like a video below `root`, in the order of `walk`, whatever kind of file it is.

    Hidden files, and folders that are named like a video, come as missing, with their path below `root` as their id.
    """
    for folder, subfolders, names in walk(root):
        # a folder whose disk is not mounted, for all that can be told
        for name in (name for name in names if "." not in name and _leads_nowhere(Path(folder, name))):
            yield _unused(Path(folder, name), root, "it is a link that leads nowhere")
        for name in filter(_is_named_like_a_video, subfolders):
            yield _unused(Path(folder, name), root, "it is a folder, not a file")
        for name in filter(_is_named_like_a_video, names):
            if name.startswith("."):
                yield _unused(Path(folder, name), root, "it is hidden: its name begins with a dot")
            else:
                yield Path(folder, name)


def _is_named_like_a_video(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES or name.lower() in SUFFIXES


def _leads_nowhere(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _unused(path: Path, root: Path, reason: str) -> Missing:
    return Missing(str(path.relative_to(root)), reason, path)
