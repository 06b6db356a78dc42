"""Folders of files, on this machine or in an object store such as s3://bucket/shards, with one interface.

fsspec talks with stores, and is imported where one is used. Credentials are the store's own business (fsspec, boto).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple, TypeVar

from gdt.common import files
from gdt.common.errors import UserError, first_line
from gdt.common.retries import persist

T = TypeVar("T")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/+")
_SECRET = re.compile(r":/+[^/]*:[^/]*@|\?")
_THREADS = 16
"""Objects that are copied at once."""
_TAGS = ("ETag", "etag", "LastModified", "last_modified", "mtime")
"""Names of tags, by store."""


class State(NamedTuple):
    """What tells whether a file has changed."""

    size: int
    """Bytes; -1 if there is no regular file."""
    time: str
    """When it last changed, or the tag of the object; empty if unknown."""


_NO_FILE = State(-1, "")


class Folder:
    """A folder of files on this machine or in a store, where there are no locks and reading is slow.

    Paths of files are below it.
    """

    def __init__(self, name: str | PurePath | Folder, opened: set[str] | None = None) -> None:
        """`name`: a path, in which ~ is expanded, or a URL, of which a Path may have been made.

        Raises UserError, without repeating it, for a URL with a password or a query.
        """
        text = str(name)
        scheme = _SCHEME.match(text)
        if scheme and _SECRET.search(text):
            raise UserError(
                "a URL has a password or a query, which would be stored with settings and results; leave it out, and "
                "give credentials as the store's own tools take them (environment, files, roles)"
            )
        self.remote = scheme is not None
        """Whether it is in a store."""
        if scheme:
            root = "///" if scheme[1] == "file" else "//"
            self._name = f"{scheme[1]}:{root}{PurePath(text[scheme.end() :])}"
        else:
            self._name = str(Path(os.path.expanduser(text)))  # noqa: PTH111 - pathlib's raises for an unknown user
        self.reads_at_once = 4 * _THREADS if self.remote else 1
        """Threads that read small parts of many files."""
        self.opened = set() if opened is None else opened
        """Addresses of the files that a `File` of it, or of a folder below, has opened."""
        self._listing: Mapping[str, State] | None = None
        """What is in it, if it is a snapshot."""

    def __str__(self) -> str:
        return self._name

    def __fspath__(self) -> str:
        return str(self.root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type[Folder], tuple[str]]:
        return Folder, (str(self),)  # tasks need neither what was opened nor the listing

    @property
    def root(self) -> Path:
        """Its path. Raises UserError if it is in a store."""
        if self.remote:
            raise UserError(f"{self} is in a store, which can hold only videos and shards; name a path on this machine")
        return Path(self._name)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePath(str(self.absolute())).name

    @property
    def parent(self) -> Folder:
        return Folder(self._name.rpartition("/")[0] if self.remote else self.root.parent)

    def absolute(self) -> Folder:
        """The folder for processes that run in another one."""
        return self if self.remote else Folder(self.root.absolute())

    def below(self, path: PurePath | str) -> Folder:
        return Folder(self.address(path), self.opened)

    def address(self, path: PurePath | str) -> str:
        """The full name of a file."""
        return f"{self}/{path}" if self.remote else str(self.root / path)

    def snapshot(self) -> Folder:
        """The folder for many questions about its files, whose answers in a store are those of one moment."""
        if not self.remote or self._listing is not None:
            return self

        def look() -> dict[str, State]:
            store, root = self._connect()
            found = {name[len(root) :].lstrip("/"): entry for name, entry in store.find(root, detail=True).items()}
            inside = (name for name in sorted(found) if not {"", ".", ".."} & {*name.split("/")})
            return {name: _state_in(found[name]) for name in inside}  # none leads out of the folder

        listing = persist(f"cannot list {self}", look)
        copy = Folder(self)
        copy._listing = {str(parent): _NO_FILE for name in listing for parent in PurePath(name).parents} | listing
        return copy

    def files(self, below: bool = False) -> dict[str, State]:
        """The files that are there now, by name; with `below`, in a store alone, those in subfolders, too, by path.

        A local folder also lists what is not a file, with size -1, so that messages can name it.
        """
        if not self.remote:
            return {path.name: state_of(path) for path in self.root.glob("*")}
        found = self.snapshot()._listing or {}
        return {name: state for name, state in found.items() if state.size >= 0 and (below or "/" not in name)}

    def exists(self, name: str) -> bool:
        """Whether there is a file now."""
        return self.state(name).size >= 0

    def state(self, path: PurePath | str) -> State:
        """Size and time of a file."""
        if not self.remote:
            return state_of(self.root / path)
        if self._listing is not None:
            return self._listing.get(str(path), _NO_FILE)

        def look(store: Any, name: str) -> State:
            with suppress(FileNotFoundError):
                entry = store.info(name)
                return _state_in(entry) if entry["type"] == "file" else _NO_FILE
            return _NO_FILE

        return self._ask("read", path, look)

    def kind(self, path: PurePath | str) -> str:
        """What is at a path: "" for a regular file, "a folder", "a special file", "inaccessible" or "missing"."""
        if not self.remote:
            return files.kind(self.root / path)
        state = (self.snapshot()._listing or {}).get(str(PurePath(path)))
        return "missing" if state is None else "a folder" * (state.size < 0)

    def glob(self, pattern: str) -> list[Path]:
        """Sorted paths of the files whose path has as many parts as the pattern and matches it."""
        if not self.remote:
            return sorted(path.relative_to(self.root) for path in self.root.glob(pattern))
        names = (name for name in self.files(below=True) if name.count("/") == pattern.count("/"))
        return sorted(Path(name) for name in names if fnmatchcase(name, pattern))

    def open(self, path: PurePath | str) -> BinaryIO:
        """A file, to read. Raises UserError if that fails."""
        with self.local(path) as file:
            return files.open_regular(file)  # which outlives the name of a copy

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Some bytes of a file; fewer if it ends before. Raises UserError or OSError."""
        if self.remote:
            return self._ask("read", name, lambda store, object_: store.cat_file(object_, start=begin, end=end))
        with (self.root / name).open("rb") as file:
            return os.pread(file.fileno(), end - begin, begin)

    @contextmanager
    def local(self, path: PurePath | str) -> Iterator[Path]:
        """A file on this machine: itself, or a temporary copy. Raises UserError if there is no object."""
        if not self.remote:
            yield self.root / path
            return
        with files.scratch() as folder:
            copy = folder / PurePath(path).name
            self.fetch(path, copy)
            yield copy

    def bring(self, paths: Sequence[PurePath], to: Path) -> list[Path]:
        """Files on this machine: themselves, or copies in a folder; a copy is missing if its object is."""
        if not self.remote:
            return [self.root / path for path in paths]
        copies = {path: to / f"copy-{number}{path.suffix}" for number, path in enumerate(paths)}

        def fetch(path: PurePath) -> None:
            try:
                self.fetch(path, copies[path])
            except UserError:
                if self.exists(str(path)):
                    raise

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fetch, copies))
        return [copies[path] for path in paths]

    def fetch(self, path: PurePath | str, to: Path, check: Callable[[Path], object] = lambda _: None) -> None:
        """Copy an object to a file, again if `check` finds it Damaged. Raises UserError, or OSError: no space."""

        def copy(store: Any, name: str) -> None:
            from fsspec.callbacks import Callback

            told = Callback()
            store.get_file(name, str(to), callback=told)
            size = to.stat().st_size
            if told.size not in (None, size):
                raise ConnectionError(f"{size} of {told.size} bytes came")
            check(to)

        self._ask("read", path, copy)

    def write(self, name: str, write: Callable[[Path], T], before: State | None = None) -> T:
        """Write a file with `write`, which gets its path on this machine, and must write it whole or not at all.

        With `before`, its state then, raises UserError if somebody else has written it in a store meanwhile.
        """
        if not self.remote:
            return write(self.root / name)
        with files.scratch() as folder:
            file = folder / name
            result = write(file)
            if before is None:
                self._ask("write", name, lambda store, object_: store.put_file(str(file), object_))
            else:
                self._ask("write", name, lambda *_: self._replace(name, file.read_bytes(), before))
        return result

    def _replace(self, name: str, data: bytes, before: State) -> None:
        """Write an object, unless it has changed since `before`."""
        store, object_name = self._connect(name)
        state = self.state(name)
        if state.size >= 0 and store.cat_file(object_name) == data:
            return  # an earlier attempt, or the same run on another machine
        if state != before:
            raise UserError(f"another run has written {self.address(name)} meanwhile; run the same command again")
        if "s3" not in str(store.protocol):
            store.pipe_file(object_name, data)
            return
        # in one request, which the store refuses if another was quicker
        condition = {"IfMatch": state.time} if state.time else {"mode": "create"}
        store.pipe_file(object_name, data, chunksize=1 << 32, **condition)

    def remove(self, name: str) -> None:
        if self.remote:
            self._ask("remove", name, lambda store, object_: store.rm_file(object_))
        else:
            (self.root / name).unlink()

    @property
    def scratch(self) -> Path:
        """A folder on this machine for temporary folders of what is written here."""
        return Path(tempfile.gettempdir()) if self.remote else self.root

    def remove_scratch(self, pattern: str) -> None:
        """Remove the temporary folders that killed processes left here."""
        for left in () if self.remote else self.root.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)

    def locked(self, alternative: str = "set --destination to another folder") -> AbstractContextManager[None]:
        """Hold off other runs that write here; a store has no locks, and `write` tells them apart.

        Raises UserError, ending in `alternative`, if another run does.
        """
        return nullcontext() if self.remote else files.locked(self.root, alternative)

    def _ask(self, verb: str, path: PurePath | str, action: Callable[[Any, str], T]) -> T:
        """What an action gives for the file system of the store and the name of an object, see `persist`."""
        return persist(f"cannot {verb} {self.address(path)}", lambda: action(*self._connect(path)))

    def _connect(self, path: PurePath | str = "") -> tuple[Any, str]:
        """The file system, for one use, since forks must not share it, and the name of an object or the folder."""
        scheme = self._name.partition(":")[0]
        is_s3 = scheme in ("s3", "s3a")
        try:
            import fsspec

            # s3fs would hold ten parts of 50 MB in memory, for each file
            sequential = {"max_concurrency": 1} if is_s3 else {}
            store, root = fsspec.core.url_to_fs(str(self), use_listings_cache=False, **sequential)
        except (ImportError, ValueError) as error:
            extra = "gdt-video[s3]" if is_s3 else "the package of fsspec for it"
            raise UserError(f"cannot open {scheme}:// ({first_line(error)}); install {extra} with pip") from None
        # joined here: fsspec would read :: in a name as a chain of addresses
        return store, f"{root.rstrip('/')}/{path}" if str(path) else root


@dataclass(frozen=True)
class File:
    folder: Folder
    path: PurePath

    def __str__(self) -> str:
        return self.folder.address(self.path)

    @property
    def present(self) -> bool:
        """Whether anything is there; what is no file, as a broken link, is refused when it is opened."""
        return self.folder.kind(self.path) != "missing" or Path(str(self)).is_symlink()

    def open(self) -> BinaryIO:
        """Raises UserError if that fails."""
        self.folder.opened.add(str(self))
        return self.folder.open(self.path)


def local_path(name: str | Path) -> Path:
    """The path of this name, with ~ expanded. Raises UserError for a URL."""
    return Folder(name).root


def state_of(path: Path) -> State:
    """Bytes of a regular file and when it last changed; -1 for anything else (a FIFO, a broken link) or inaccessible.

    Archives may give all their files one time of modification, so the time of the last change of status is there, too.
    """
    with suppress(OSError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return State(status.st_size, f"{status.st_mtime_ns} {status.st_ctime_ns}")
    return _NO_FILE


def _state_in(entry: Mapping[str, Any]) -> State:
    """The state of an object in the answer of a store, which may not tell what changes when it is written anew."""
    return State(int(entry["size"]), next((str(entry[name]) for name in _TAGS if entry.get(name)), ""))
