"""Folders in object stores, named by URLs such as s3://bucket/shards.

fsspec talks with stores, and is imported where one is used. Credentials are the store's own business (fsspec, boto).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeVar

from gdt.common.errors import UserError, first_line
from gdt.common.files import TEMPORARY
from gdt.common.folders import Folder, State
from gdt.common.retries import persist

T = TypeVar("T")
_THREADS = 16
"""Objects that are copied at once."""
_TAGS = ("ETag", "etag", "LastModified", "last_modified", "mtime")
"""Names of tags, by store."""


class RemoteFolder(Folder):
    """A folder in an object store."""

    remote = True
    reads_at_once = 4 * _THREADS

    def __init__(self, url: str, opened: set[str] | None = None) -> None:
        self.opened = set() if opened is None else opened
        scheme, _, path = url.partition(":")
        root = "///" if scheme == "file" else "//"
        self.url = f"{scheme}:{root}{PurePath(path.strip('/'))}"
        self.name = self.url.rpartition("/")[2]

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[type[RemoteFolder], tuple[str]]:
        return RemoteFolder, (self.url,)

    def connect(self, name: PurePath | str = "") -> tuple[Any, str]:
        """The file system, for one use, since forks must not share it, and the name of an object or the folder."""
        scheme = self.url.partition(":")[0]
        try:
            import fsspec

            # s3fs would hold ten parts of 50 MB in memory, for each file
            sequential = {"max_concurrency": 1} if scheme in ("s3", "s3a") else {}
            store, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **sequential)
            # joined here: fsspec would read :: in a name as a chain of addresses
            return store, f"{root.rstrip('/')}/{name}" if str(name) else root
        except (ImportError, ValueError) as error:
            extra = "gdt-video[s3]" if scheme in ("s3", "s3a") else "the package of fsspec for it"
            raise UserError(f"cannot open {scheme}:// ({first_line(error)}); install {extra} with pip") from None

    def files(self, below: bool = False) -> dict[str, State]:
        store, root = self.connect()
        listing = persist(f"cannot list {self}", lambda: store.find(root, detail=True))
        entries = {name[len(root) :].lstrip("/"): entry for name, entry in sorted(listing.items())}
        # no name leads out of the folder
        inside = {name: entry for name, entry in entries.items() if not {"", ".", ".."} & {*name.split("/")}}
        return {
            name: State(int(entry["size"]), _tag_in(entry))
            for name, entry in inside.items()
            if below or "/" not in name
        }

    def snapshot(self) -> RemoteFolder:
        return _Snapshot(self.url)

    def exists(self, name: str) -> bool:
        return bool(self.tag(name))

    @property
    def parent(self) -> Folder | None:
        return None

    def kind(self, path: PurePath | str) -> str:
        return self.snapshot().kind(path)

    def state(self, path: PurePath | str) -> State:
        return self.snapshot().state(path)

    def glob(self, pattern: str) -> list[Path]:
        return self.snapshot().glob(pattern)

    def below(self, path: str) -> Folder:
        return RemoteFolder(self.address(path), self.opened)

    def open(self, path: PurePath | str) -> BinaryIO:
        with self.local(path) as copy:
            return copy.open("rb")  # which outlives the name of the copy

    def read(self, name: str, begin: int, end: int) -> bytes:
        store, object_name = self.connect(name)
        what = f"cannot read {self.address(name)}"
        return persist(what, lambda: store.cat_file(object_name, start=begin, end=end))

    @contextmanager
    def local(self, path: PurePath | str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
            copy = Path(folder) / PurePath(path).name
            self.fetch(path, copy)
            yield copy

    def bring(self, paths: Sequence[PurePath], to: Path) -> list[Path]:
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

    def fetch(self, name: PurePath | str, to: Path, check: Callable[[Path], object] = lambda _: None) -> None:
        """Copy an object to a file, again if `check` finds it Damaged. Raises UserError, or OSError: no space."""

        def copy() -> None:
            from fsspec.callbacks import Callback

            store, object_name = self.connect(name)
            told = Callback()
            store.get_file(object_name, str(to), callback=told)
            size = to.stat().st_size
            if told.size not in (None, size):
                raise ConnectionError(f"{size} of {told.size} bytes came")
            check(to)

        persist(f"cannot read {self.address(name)}", copy)

    def write(self, name: str, write: Callable[[Path], T], before: str | None = None) -> T:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
            file = Path(folder) / name
            result = write(file)
            store, object_name = self.connect(name)
            what = f"cannot write {self.address(name)}"
            if before is None:
                persist(what, lambda: store.put_file(str(file), object_name))
            else:
                persist(what, lambda: self._replace(name, file.read_bytes(), before))
        return result

    def _replace(self, name: str, data: bytes, before: str) -> None:
        """Write an object, unless it has another tag than `before`."""
        store, object_name = self.connect(name)
        tag = self.tag(name)
        if tag and store.cat_file(object_name) == data:
            return  # an earlier attempt, or the same run on another machine
        if tag != before:
            raise UserError(f"another run has written {self.address(name)} meanwhile; run the same command again")
        if "s3" not in str(store.protocol):
            store.pipe_file(object_name, data)
            return
        # in one request, which the store refuses if another was quicker
        condition = {"IfMatch": tag} if tag else {"mode": "create"}
        store.pipe_file(object_name, data, chunksize=1 << 32, **condition)

    def tag(self, name: str) -> str:
        def look() -> str:
            store, object_name = self.connect(name)
            with suppress(FileNotFoundError):
                entry = store.info(object_name)
                return _tag_in(entry) or str(entry["size"])
            return ""

        return persist(f"cannot read {self.address(name)}", look)

    def remove(self, name: str) -> None:
        store, object_name = self.connect(name)
        persist(f"cannot remove {self.address(name)}", lambda: store.rm_file(object_name))

    @property
    def scratch(self) -> Path:
        return Path(tempfile.gettempdir())

    def remove_scratch(self, pattern: str) -> None:
        pass

    def locked(self, alternative: str = "") -> AbstractContextManager[None]:
        return nullcontext()


class _Snapshot(RemoteFolder):
    """What is in the folder is from one listing; another process gets the folder as it is then."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._files = super().files(below=True)
        self._folders = {str(parent) for name in self._files for parent in PurePath(name).parents}

    def snapshot(self) -> RemoteFolder:
        return self

    def files(self, below: bool = False) -> dict[str, State]:
        return {name: state for name, state in self._files.items() if below or "/" not in name}

    def kind(self, path: PurePath | str) -> str:
        if str(path) in self._files:
            return ""
        return "a folder" if str(PurePath(path)) in self._folders else "missing"

    def state(self, path: PurePath | str) -> State:
        return self._files.get(str(path), State(-1, ""))

    def glob(self, pattern: str) -> list[Path]:
        names = [name for name in self._files if name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)]
        return sorted(map(Path, names))


def _tag_in(entry: Mapping[str, Any]) -> str:
    """What changes when an object is written anew; empty if the store does not tell."""
    return next((str(entry[name]) for name in _TAGS if entry.get(name)), "")
