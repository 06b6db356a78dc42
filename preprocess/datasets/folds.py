"""List data sets with class folders and three official folds (UCF-101 and HMDB-51)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gdt.common.errors import UserError
from gdt.common.files import open_regular
from gdt.preprocess.datasets.listing import Missing, Video, incomplete, unlisted, video_files

FOLDS = (1, 2, 3)


class Line(NamedTuple):
    """One line of an official list."""

    class_name: str
    file: str
    fold: int
    split: str
    """train, test or unused"""


def find_lists(source: Path, name: str, tree: str) -> Path:
    """The folder of the official lists, in `source` or next to it. Raises UserError if there is none."""
    for parent in (source, source.absolute().parent):
        if (parent / name).is_dir():
            return parent / name
    raise incomplete(f"the folder {name} of the official splits is missing, in {source} or next to it", tree)


def read_lines(path: Path) -> list[str]:
    """The non-empty lines of an official list. Raises UserError if the file is missing or empty."""
    with open_regular(path) as file:
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    if not lines:
        raise UserError(f"{path} is empty; copy or download it again")
    return lines


@dataclass
class _Entry:
    """Entry of one video in the official lists."""

    stem: str
    class_name: str
    folds: list[str] = field(default_factory=lambda: [""] * len(FOLDS))
    """Split in each fold; empty if no list of the fold names the video."""
    has_file: bool = False


def listing(root: Path, lines: Iterable[Line], tree: str) -> Iterator[Video | Missing]:
    """Yield the videos below `root`, labelled by their folder, then the listed ones without a file.

    Files in no list are left out. Case and suffix of names are ignored: lists and files differ in case, and people
    re-encode. Raises UserError for contradicting or incomplete lists, and for a video outside the folder of its class,
    since its label would be wrong.
    """
    entries = _entries(lines)
    for path in video_files(root):
        if (entry := entries.get(path.stem.lower())) is None:
            yield unlisted(path)
            continue
        label = path.parent.name
        if path.parent == root or label.lower() != entry.class_name.lower():
            raise incomplete(f"{path} is not in the folder of its class", tree)
        entry.has_file = True
        yield Video(path.stem, path, label, entry.folds[0], tuple(entry.folds))
    for entry in entries.values():
        if not entry.has_file:
            yield Missing(entry.stem, "listed in the official splits, but there is no such file")


def _entries(lines: Iterable[Line]) -> dict[str, _Entry]:
    """The listed videos by their stems in lower case. Raises UserError unless every fold names each of them once."""
    entries: dict[str, _Entry] = {}
    contradicting: dict[str, str] = {}
    for line in lines:
        stem, fold = PurePosixPath(line.file).stem, line.fold
        entry = entries.setdefault(stem.lower(), _Entry(stem, line.class_name))
        if (before := entry.folds[fold - 1] or line.split) != line.split:
            contradicting[stem] = f"'{stem}' is {before} and {line.split} in fold {fold}"
        entry.folds[fold - 1] = line.split
    if contradicting:
        raise UserError(
            f"the official lists contradict each other for {len(contradicting)} videos: "
            f"{next(iter(contradicting.values()))}; download the lists again"
        )
    for fold in FOLDS:
        if lacking := [entry.stem for entry in entries.values() if not entry.folds[fold - 1]]:
            raise UserError(
                f"the official lists of fold {fold} are incomplete: they name {len(entries) - len(lacking)} of "
                f"{len(entries)} videos, and not '{lacking[0]}'; download the lists again"
            )
    return entries
