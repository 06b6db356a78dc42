"""What data sets with class folders and three official folds share (UCF-101 and HMDB-51)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gdt.common.errors import UserError
from gdt.common.files import kind, open_regular
from gdt.preprocess.datasets.listing import Missing, Video, video_files

FOLDS = (1, 2, 3)


class Line(NamedTuple):
    """One line of an official list."""

    class_name: str
    file: str
    fold: int
    split: str
    """train, test or unused"""


def find_lists(source: Path, name: str, tree: str) -> Path:
    """The folder of the official lists, in `source` or next to it. Raises UserError where there is none."""
    for parent in (source, source.absolute().parent):
        if (parent / name).is_dir():
            return parent / name
    raise UserError(f"there is no folder {name} with the official splits in {source} or next to it; expected:\n{tree}")


def texts(path: Path, tree: str) -> Iterator[str]:
    """The lines of an official list, without empty ones. Raises UserError where there is no such file."""
    if kind(path) == "missing":
        raise UserError(f"of the official splits, {path} is missing; expected:\n{tree}")
    with open_regular(path) as file:
        try:
            text = file.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text: {error.reason}; copy or download it again") from error
    return (line for line in text.splitlines() if line.strip())


@dataclass
class _Listed:
    """What the lists say of one video."""

    stem: str
    class_name: str
    folds: list[str] = field(default_factory=lambda: ["unused" for _ in FOLDS])
    found: bool = False


def listing(root: Path, lines: Iterable[Line], tree: str) -> Iterator[Video | Missing]:
    """The videos below `root`, whose label is the folder they are in, then those that are listed but not there.

    Names are compared without regard to case and suffix: the lists are not always of the case of the files, and people
    re-encode. Raises UserError for a video that is not in the folder of its class, which would give it a wrong label.
    """
    listed: dict[str, _Listed] = {}
    for line in lines:
        stem = PurePosixPath(line.file).stem
        listed.setdefault(stem.lower(), _Listed(stem, line.class_name)).folds[line.fold - 1] = line.split
    for path in video_files(root):
        if isinstance(path, Missing):
            yield path
            continue
        label = path.parent.name
        entry = listed.get(path.stem.lower()) or _Listed(path.stem, label)
        if path.parent == root or label.lower() != entry.class_name.lower():
            raise UserError(f"{path} is not in a folder of its class; expected:\n{tree}")
        entry.found = True
        yield Video(path.stem, path, label, entry.folds[0], tuple(entry.folds))
    for entry in listed.values():
        if not entry.found:
            yield Missing(entry.stem, "listed in the official splits, but there is no such file")
