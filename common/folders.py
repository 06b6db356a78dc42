"""Folders of files: one interface for those on this machine, which are here, and in stores, which are in stores.py."""

from __future__ import annotations

import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple, TypeVar

from gdt.common import files

T = TypeVar("T")


class State(NamedTuple):
    """What tells whether a file has changed."""

    size: int
    """Bytes; -1 if there is no regular file."""
    time: str
    """When it last changed, or the tag of the object; empty if unknown."""


class Folder(ABC):
    """A folder of files. Paths of files are below it."""

    name: str
    """The last part of its path."""
    remote: bool
    """Whether it is in a store, where there are no locks and no temporary folders, and reading is slow."""
    reads_at_once: int
    """Threads that read small parts of many files."""
    opened: set[str]
    """Addresses of the files that a `File` of it, or of a folder below, has opened."""

    @abstractmethod
    def __str__(self) -> str: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self.remote == other.remote and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def absolute(self) -> Folder:
        """The folder for processes that run in another one."""
        return self

    def snapshot(self) -> Folder:
        """The folder for many questions about its files, whose answers in a store are those of one moment."""
        return self

    def resolve(self) -> Folder:
        """The folder without links, to compare it with others."""
        return self

    def address(self, path: PurePath | str) -> str:
        """The full name of a file."""
        return f"{self}/{path}"

    @abstractmethod
    def files(self, below: bool = False) -> dict[str, State]:
        """The files that are there now, by name; with `below`, also those in subfolders, by path.

        A local folder also lists what is not a file, with size -1, so that messages can name it.
        """

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file now."""

    @property
    @abstractmethod
    def parent(self) -> Folder | None:
        """The folder around it; None in a store, of which only what is named is looked at."""

    def has(self, path: PurePath | str) -> bool:
        """Whether anything is at a path, be it a broken link."""
        return self.kind(path) != "missing"

    @abstractmethod
    def kind(self, path: PurePath | str) -> str:
        """What is at a path: "" for a regular file, "a folder", "a special file", "inaccessible" or "missing"."""

    @abstractmethod
    def state(self, path: PurePath | str) -> State:
        """Size and time of a file."""

    @abstractmethod
    def glob(self, pattern: str) -> list[Path]:
        """Sorted paths of the files whose path has as many parts as the pattern and matches it."""

    @abstractmethod
    def below(self, path: str) -> Folder: ...

    @abstractmethod
    def open(self, path: PurePath | str) -> BinaryIO:
        """A file, to read. Raises UserError if that fails."""

    @abstractmethod
    def read(self, name: str, begin: int, end: int) -> bytes:
        """Some bytes of a file; fewer if it ends before. Raises UserError or OSError."""

    @abstractmethod
    def local(self, path: PurePath | str) -> AbstractContextManager[Path]:
        """A file on this machine: itself, or a temporary copy. Raises UserError if there is no object."""

    @abstractmethod
    def bring(self, paths: Sequence[PurePath], to: Path) -> list[Path]:
        """Files on this machine: themselves, or copies in a folder; a copy is missing if its object is."""

    @abstractmethod
    def write(self, name: str, write: Callable[[Path], T], before: str | None = None) -> T:
        """Write a file with `write`, which gets its path on this machine, and must write it whole or not at all.

        With `before`, the `tag` that it had, raises UserError if somebody else has written it in a store meanwhile.
        """

    @abstractmethod
    def tag(self, name: str) -> str:
        """What changes when an object is written anew; empty if there is none, and on this machine."""

    @abstractmethod
    def remove(self, name: str) -> None: ...

    @property
    @abstractmethod
    def scratch(self) -> Path:
        """A folder on this machine for temporary folders of what is written here."""

    @abstractmethod
    def remove_scratch(self, pattern: str) -> None:
        """Remove the temporary folders that killed processes left here."""

    @abstractmethod
    def locked(self, alternative: str = "set --destination to another folder") -> AbstractContextManager[None]:
        """Hold off other runs that write here; a store has no locks, and `write` tells them apart.

        Raises UserError, ending in `alternative`, if another run does.
        """


class LocalFolder(Folder):
    remote = False
    reads_at_once = 1

    def __init__(self, path: Path, opened: set[str] | None = None) -> None:
        self.root = path
        self.name = path.absolute().name
        self.opened = set() if opened is None else opened

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalFolder, (self.root,)  # tasks do not need the files that were opened

    def __str__(self) -> str:
        return str(self.root)

    def __fspath__(self) -> str:
        return str(self.root)

    def absolute(self) -> Folder:
        return LocalFolder(self.root.absolute())

    def resolve(self) -> Folder:
        return LocalFolder(self.root.resolve())

    def address(self, path: PurePath | str) -> str:
        return str(self.root / path)

    def files(self, below: bool = False) -> dict[str, State]:
        return {str(path.relative_to(self.root)): state_of(path) for path in self.root.glob("**/*" if below else "*")}

    def exists(self, name: str) -> bool:
        return (self.root / name).is_file()

    @property
    def parent(self) -> Folder | None:
        return LocalFolder(self.root.absolute().parent)

    def has(self, path: PurePath | str) -> bool:
        return os.path.lexists(self.root / path)

    def kind(self, path: PurePath | str) -> str:
        return files.kind(self.root / path)

    def state(self, path: PurePath | str) -> State:
        return state_of(self.root / path)

    def glob(self, pattern: str) -> list[Path]:
        return sorted(path.relative_to(self.root) for path in self.root.glob(pattern))

    def below(self, path: str) -> Folder:
        return LocalFolder(self.root / path, self.opened)

    def open(self, path: PurePath | str) -> BinaryIO:
        return files.open_regular(self.root / path)

    def read(self, name: str, begin: int, end: int) -> bytes:
        with (self.root / name).open("rb") as file:
            return os.pread(file.fileno(), end - begin, begin)

    def local(self, path: PurePath | str) -> AbstractContextManager[Path]:
        return nullcontext(self.root / path)

    def bring(self, paths: Sequence[PurePath], to: Path) -> list[Path]:
        return [self.root / path for path in paths]

    def write(self, name: str, write: Callable[[Path], T], before: str | None = None) -> T:
        return write(self.root / name)

    def tag(self, name: str) -> str:
        return ""

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    @property
    def scratch(self) -> Path:
        return self.root

    def remove_scratch(self, pattern: str) -> None:
        for left in self.root.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)

    def locked(self, alternative: str = "set --destination to another folder") -> AbstractContextManager[None]:
        return files.locked(self.root, alternative)


@dataclass(frozen=True)
class File:
    folder: Folder
    path: PurePath

    def __str__(self) -> str:
        return self.folder.address(self.path)

    @property
    def present(self) -> bool:
        """Whether anything is there; what is no file, as a broken link, is refused when it is opened."""
        return self.folder.has(self.path)

    def open(self) -> BinaryIO:
        """Raises UserError if that fails."""
        self.folder.opened.add(str(self))
        return self.folder.open(self.path)


def state_of(path: Path) -> State:
    """Bytes of a regular file and when it last changed; -1 for anything else (a FIFO, a broken link) or inaccessible.

    Archives may give all their files one time of modification, so the time of the last change of status is there, too.
    """
    with suppress(OSError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return State(status.st_size, f"{status.st_mtime_ns} {status.st_ctime_ns}")
    return State(-1, "")
