"""What a data set module returns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import UserError

SUFFIXES = {
    ".3gp", ".asf", ".avi", ".divx", ".f4v", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts",
    ".ogv", ".qt", ".rm", ".ts", ".vob", ".webm", ".wmv",
}  # fmt: skip
SPLITS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "validate": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""Folder names that stand for a split."""


@dataclass(frozen=True)
class Video:
    """One video file of a data set."""

    id: str
    """Unique in the data set."""
    path: Path
    label: str = ""
    """Class name, empty where there is none."""
    split: str = "train"
    """train, val or test."""


@dataclass(frozen=True)
class Missing:
    """A video that the official lists name but that is not there."""

    id: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """Videos found, and videos listed but missing."""

    videos: list[Video]
    missing: list[Missing] = field(default_factory=list)


def video_files(root: Path) -> Iterator[Path]:
    """All video files below `root`, in a fixed order; links to folders are followed, each folder is read once.

    Raises UserError for a folder that cannot be read.
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
        for name in sorted(names):
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                yield Path(folder) / name
