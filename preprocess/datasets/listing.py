"""What a data set yields: videos, and those that are missing or cannot be used."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TypeVar

from gdt.common.errors import LeftOut, UserError
from gdt.common.folders import File, Folder
from gdt.preprocess.textfiles import composed
from gdt.preprocess.videos import MEDIA, SOUNDS, SUFFIXES, ListedVideo

_NOT_SHOWN = (
    {"#recycle", "#snapshot", "$recycle.bin", "@eadir", "@recently-snapshot", "@recycle", "@tmp"}
    | {"__macosx", "__pycache__", "lost+found", "network trash folder", "recycler"}
    | {"system volume information", "~snapshot"}
)
"""Names, in lower case, of what systems leave in folders; names that begin with a dot are hidden anyway."""
_ADDED = re.compile(rf"(?:\.f\d+(?:-\w+)?|{'|'.join(map(re.escape, sorted(SUFFIXES)))})+$", re.I | re.ASCII)
"""What downloaders and converters put between name and suffix: another suffix, or the number of a format."""
_SOUND = re.compile(r"\.f(?:139|14[01]|17[12]|249|25[01])(?:-\w+)?$", re.ASCII)
"""Numbers of YouTube's formats of sound alone, which may lie in a .webm beside the picture's."""
_TITLED = re.compile(r".*\[([A-Za-z0-9_-]{11})\]", re.ASCII | re.S)
_SHOWN = 8
"""Suffixes to print."""
HIDDEN = "hidden or trash"
BESIDE = "sound beside a video of the same name"
LISTED = "link to a folder that is listed already"
EMPTY = "empty folder"
BROKEN = "broken link"
CAPTIONS = "captions of no video"
NO_CAPTIONS = "in the folder of captions, but no captions"
_NO_FILE = "but there is no file of this name with the suffix of a video"
SPLIT_NAMES = {"train": "train", "training": "train"}
SPLIT_NAMES |= dict.fromkeys(("val", "valid", "validation", "validate"), "val")
SPLIT_NAMES |= {"test": "test", "testing": "test"}
"""The split that a folder name or a word in an official list stands for."""


Item = ListedVideo | LeftOut
"""What a listing yields."""


K = TypeVar("K")


def matched(
    name: str, entries: Collection[K], found: Iterable[tuple[K | None, Item]], id: Callable[[K], str] = str
) -> Iterator[Item]:
    """Give each entry of the official list `name` its file, the first that is found; then yield entries without one.

    Videos without an entry are left out: they have no class or split that can be trusted. `id` is that of the video of
    an entry.
    """
    files: dict[K, PurePath] = {}
    for entry, item in found:
        path = PurePath(item.path)
        if entry is None or entry not in entries:
            yield LeftOut(item.id, "not named in the official list, so it is left out", str(path))
        elif files.setdefault(entry, path) != path and isinstance(item, ListedVideo):
            yield LeftOut(item.id, f"its entry has another file; {files[entry]} is kept", str(path), fault=True)
        else:
            yield item
    for entry in entries:
        if entry not in files:
            yield LeftOut(id(entry), f"listed in {name}, {_NO_FILE}")


@dataclass(frozen=True)
class DataSet:
    """Where the videos, labels and splits of a data set are."""

    listing: Callable[[SourceFiles], Iterator[Item]]
    """Yields the videos of a source in a fixed order."""
    tree: str
    """The expected files and folders, for messages."""
    needs_captions: bool = False
    """Whether videos and stretches without captions are skipped."""


def incomplete(what: str, tree: str) -> UserError:
    """A UserError about an incomplete source folder, with the expected tree."""
    return UserError(f"{what}; expected:\n{tree}")


def walk(folder: Folder, first: Path = Path()) -> Iterator[tuple[str, list[str], Counter[str]]]:
    """A folder and those below in a fixed order: path in it, sorted names of the files, and how much is left out.

    Starts with its folder `first`. Leaves out hidden files and folders, trash and the like. Raises UserError for a
    folder that cannot be read.
    """
    return _walk_names(folder, first.parts) if folder.remote else _walk_links(folder.root, first)


def _walk_names(folder: Folder, first: tuple[str, ...]) -> Iterator[tuple[str, list[str], Counter[str]]]:
    """`walk` in a store, which has names alone: neither links nor empty folders."""
    shown: dict[tuple[str, ...], list[str]] = {}
    hidden: set[tuple[str, ...]] = set()
    for name in folder.files(below=True):
        parts = tuple(name.split("/"))
        hidden_levels = [k for k, part in enumerate(parts) if not is_shown(part)]
        if hidden_levels:
            hidden.add(parts[: hidden_levels[0] + 1])
        else:
            shown.setdefault(parts[:-1], []).append(parts[-1])
    for parts in sorted(shown, key=lambda parts: (parts[: len(first)] != first, parts)):
        yield "/".join(parts), sorted(shown[parts]), Counter()
    yield "", [], Counter({HIDDEN: len(hidden)})


def _walk_links(root: Path, first: Path) -> Iterator[tuple[str, list[str], Counter[str]]]:
    """`walk` on this machine: links to folders are followed at the end, and each folder is read once."""

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read the folder {error.filename}: {error.strerror}; check its disk and permissions")

    seen: set[str] = set()
    roots = dict.fromkeys([str(root / first), str(root)])
    waiting = deque(roots)
    while waiting:
        start = waiting.popleft()
        for folder, subfolders, names in os.walk(start, onerror=refuse):
            real = os.path.realpath(folder)
            below = str(PurePath(folder).relative_to(root))
            is_root = folder in roots
            if real in seen:
                subfolders.clear()
                yield below, [], Counter({LISTED: int(not is_root)})
                continue
            seen.add(real)
            total = len(subfolders) + len(names)
            subfolders[:] = sorted(filter(is_shown, subfolders))
            shown = sorted(filter(is_shown, names))
            links = [path for path in map(Path(folder).joinpath, subfolders) if path.is_symlink()]
            waiting += map(str, links)  # which os.walk does not enter
            hidden = total - len(subfolders) - len(shown)
            yield below, shown, Counter({HIDDEN: hidden, EMPTY: int(not total and not is_root)})


def is_shown(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in _NOT_SHOWN


@dataclass
class SourceFiles:
    """Reads the files of a source."""

    folder: Folder
    readings: list[str] = field(default_factory=list, init=False)
    """How folders and labels are read, a line each."""
    _left_out: Counter[str] = field(default_factory=Counter, init=False)
    _others: list[PurePath] = field(default_factory=list, init=False)
    """Files that are no videos by their suffix."""

    @property
    def ignored(self) -> Counter[str]:
        """How many files and folders it has left out so far: by suffix, without those that were read, or in words."""
        others = (path for path in self._others if self.folder.address(path) not in self.folder.opened)
        return self._left_out + Counter(path.suffix.lower() for path in others)

    def ignore(self, what: str, names: Sequence[str]) -> None:
        """Count what is ignored; `what` says what it is, in words."""
        if names:
            self._left_out[f"{what} (first: '{names[0]}')"] += len(names)

    def file(self, name: str) -> File:
        return File(self.folder, PurePath(name))

    def files(self, first: Path = Path()) -> Iterator[Path]:
        """Yield the paths in it with the suffix of a video or sound, whatever kind of file, in the order of `walk`.

        Starts with the folder `first`. A sound next to a video of the same name is left out.
        """
        for parent, names, ignored in walk(self.folder, first):
            self._left_out.update(ignored)
            parts = [(path.stem, path.suffix.lower()) for path in map(PurePath, names)]
            videos = {stem for stem, suffix in parts if suffix in SUFFIXES}
            for name, (stem, suffix) in zip(names, parts, strict=True):
                if suffix in SOUNDS and stem in videos:
                    self._left_out[BESIDE] += 1
                elif suffix in MEDIA:
                    yield Path(parent, name)
                elif not suffix and self.folder.kind(Path(parent, name)) == "missing":
                    self._left_out[BROKEN] += 1
                else:
                    self._others.append(PurePath(parent, name))

    def named(self, first: Path = Path()) -> Iterator[tuple[str, Path]]:
        """Yield the names and paths of `files`: names without suffix and what downloaders and converters add to it.

        Files with such an addition come last, so that a.mp4 goes before a.f137.mp4; sound alone is at the end.
        """
        added: list[tuple[str, Path]] = []
        for path in self.files(first):
            name = _ADDED.sub("", path.stem)
            if name == path.stem:
                yield composed(name), path
            else:
                added.append((composed(name), path))
        yield from sorted(added, key=lambda row: _SOUND.search(row[1].stem) is not None)


def titled_id(name: str) -> str:
    """The YouTube id of `<title> [<id>]`, as yt-dlp names files by default; empty for other names."""
    match = _TITLED.fullmatch(name)
    return match[1] if match else ""


def ignored_in_words(ignored: Mapping[str, int]) -> list[str]:
    """A line that says what is ignored; none if nothing is."""
    suffixes = [name for name in ignored if not name or name.startswith(".")]
    suffixes.sort(key=lambda suffix: (-ignored[suffix], suffix))
    counts = [f"{suffix.removeprefix('.') or 'no suffix'} {ignored[suffix]}" for suffix in suffixes[:_SHOWN]]
    if len(suffixes) > _SHOWN:
        counts.append(f"others {sum(ignored[suffix] for suffix in suffixes[_SHOWN:])}")
    parts: list[str] = []
    if suffixes:
        total = sum(ignored[suffix] for suffix in suffixes)
        parts.append(f"{total} not a video by its suffix ({', '.join(counts)})")
    words = [name for name in (HIDDEN, BESIDE, LISTED, EMPTY, BROKEN) if name in ignored]
    words += [name for name in ignored if name.startswith((CAPTIONS, NO_CAPTIONS))]
    parts += [f"{ignored[name]} {name}" for name in words]
    return [f"ignored: {'; '.join(parts)}"] if parts else []
