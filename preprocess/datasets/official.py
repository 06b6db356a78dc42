"""List data sets with class folders and three official folds (UCF-101 and HMDB-51)."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gdt.common.errors import LeftOut, UserError
from gdt.common.folders import File, Folder
from gdt.preprocess.datasets.listing import Item, SourceFiles, incomplete, matched
from gdt.preprocess.textfiles import composed, open_text
from gdt.preprocess.videos import ListedVideo

FOLDS = (1, 2, 3)


class Line(NamedTuple):
    class_name: str
    file: str
    fold: int
    split: str
    """train, test or unused."""


def find_lists(source: SourceFiles, name: str, tree: str) -> Folder:
    """The folder of the official lists, in `source` or, on this machine, next to it. Raises UserError without one."""
    beside = [] if source.folder.remote else [source.folder.parent]
    for parent in (source.folder, *beside):
        if parent.kind(name) == "a folder":
            return parent.below(name)
    raise incomplete(f"the folder {name} of the official splits is missing, in {source.folder} or next to it", tree)


def read_lines(list_file: File) -> list[str]:
    """The non-empty lines of an official list. Raises UserError if the file is missing or empty."""
    with open_text(list_file, errors="replace") as file:
        lines = [line for line in composed(file.read()).splitlines() if line.strip()]
    if not lines:
        raise UserError(f"{list_file} is empty; copy or download it again")
    return lines


class _Entry(NamedTuple):
    stem: str
    class_name: str
    folds: dict[int, str]
    """Split in each fold whose lists name the video."""


def listing(source: SourceFiles, name: str, lines: Iterable[Line], tree: str) -> Iterator[Item]:
    """Yield the videos, labelled by their folder, then the listed ones without a file.

    Videos in no list are left out, as are those outside of the folder `name` if there is one. Case and suffix of names
    are ignored: lists and files differ in case, and people re-encode. Raises UserError for contradicting or incomplete
    lists, and for a video outside the folder of its class, since its label would be wrong.
    """
    entries = _entries(lines)
    root = Path(name) if source.folder.kind(name) == "a folder" else Path()

    def found() -> Iterator[tuple[str, Item]]:
        outside: list[tuple[str, Item]] = []
        for stem, path in source.named(first=root):
            key = stem.lower()
            if key in entries and root not in path.parents:
                outside.append((key, LeftOut(stem, f"not in the folder of the data set; {name}", str(path))))
            else:
                folds = tuple(entries[key].folds[fold] for fold in FOLDS) if key in entries else ("",)
                label = composed(path.parent.name)
                yield key, ListedVideo(stem, path, label, folds[0], folds, official=True)
        yield from outside

    for item in matched("the official splits", entries, found(), lambda key: entries[key].stem):
        if isinstance(item, ListedVideo):
            class_name = entries[item.id.lower()].class_name
            if item.path.parent == root or item.label.lower() != class_name.lower():
                raise incomplete(f"{source.folder.address(item.path)} is not in the folder of its class", tree)
        yield item


def _entries(lines: Iterable[Line]) -> dict[str, _Entry]:
    """The listed videos by their stems in lower case. Raises UserError unless every fold names each of them once."""
    entries: dict[str, _Entry] = {}
    contradicting: dict[str, str] = {}
    for line in lines:
        stem = PurePosixPath(line.file).stem
        entry = entries.setdefault(stem.lower(), _Entry(stem, line.class_name, {}))
        before = entry.folds.setdefault(line.fold, line.split)
        if before != line.split:
            contradicting[stem] = f"'{stem}' is {before} and {line.split} in fold {line.fold}"
    if contradicting:
        raise UserError(
            f"the official lists contradict each other for {len(contradicting)} videos: "
            f"{next(iter(contradicting.values()))}; download the lists again"
        )
    for fold in FOLDS:
        lacking = [entry.stem for entry in entries.values() if fold not in entry.folds]
        if lacking:
            raise UserError(
                f"the official lists of fold {fold} are incomplete: they name {len(entries) - len(lacking)} of "
                f"{len(entries)} videos, and not '{lacking[0]}'; download the lists again"
            )
    return entries
