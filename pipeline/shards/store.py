"""Object stores: the only module that knows them. fsspec does the talking, and is imported where a store is named.

What readers and writers call also takes local paths, and does the same for them. Faults of the network are tried again
with growing pauses; what remains, and any other error at once, is a UserError that names the object and the last cause.
Credentials are the store's own business (fsspec, boto).
"""

from __future__ import annotations

import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from gdt.common.errors import UserError, first_line
from gdt.common.files import is_disk_full
from gdt.common.urls import Url
from gdt.pipeline.shards.container import Damaged, Head
from gdt.pipeline.shards.layout import INDEX, PIECES

T = TypeVar("T")
PAUSES = [1.0, 2.0, 4.0, 8.0, 16.0]
"""Seconds between attempts, on average; within each, fsspec's packages try about five times."""
_PASSING = re.compile(
    "ConnectionError|TimeoutError|HTTPException|HTTPClientError|ResponseParserError|ClientPayloadError|ChecksumError|"
    r"Damaged|\((SlowDown|InternalError|ServiceUnavailable|PreconditionFailed|4(09|12|29)|50[0234])\)"
)
"""Errors that may pass: classes of Python, botocore and aiohttp, and codes of a busy server or a conflict."""
_THREADS = 16
"""Small objects that are copied at once."""
_TAGS = ("ETag", "etag", "LastModified", "last_modified", "mtime")
"""Names of tags, by store."""


def is_remote(path: Path) -> bool:
    """Whether a path is in a store."""
    return isinstance(path, Url)


def connect(url: Path) -> tuple[Any, str]:
    """The file system of a URL and the name of the object there; for one use, since forks must not share it."""
    scheme = str(url).partition(":")[0]
    try:
        import fsspec

        # s3fs would hold ten parts of 50 MB in memory, for each file
        sequential = {"max_concurrency": 1} if scheme in ("s3", "s3a") else {}
        files, name = fsspec.core.url_to_fs(str(url), use_listings_cache=False, **sequential)
        return files, name
    except (ImportError, ValueError) as error:
        extra = "gdt-video[s3]" if scheme in ("s3", "s3a") else "the package of fsspec for it"
        raise UserError(f"cannot open {scheme}:// ({first_line(error)}); install {extra} with pip") from None


def persist(what: str, action: Callable[[], T]) -> T:
    """The result of `action`, repeated after faults that may pass. Raises UserError: `what`, and the last cause."""
    before = ""
    for pause in (*PAUSES, 0.0):
        try:
            return action()
        except Exception as error:
            if isinstance(error, UserError) or is_disk_full(error):
                raise
            # the cause is botocore's, with the code of the answer, of which s3fs makes an OSError
            passing = _PASSING.search(f"{type(error).__mro__} {error.__cause__}")
            same = isinstance(error, Damaged) and str(error) == before  # not damaged on the way
            if not pause or same or not passing:
                raise UserError(f"{what}: {_masked(error)}; check the network, the credentials and the object, then "
                                "run the same command again, which resumes") from None  # fmt: skip
            before = str(error)
        time.sleep(pause * random.uniform(0.5, 1.5))
    raise AssertionError


def _masked(error: BaseException) -> str:
    """The first line of an error, without passwords and queries of URLs."""
    said = re.sub(r"//[^/\s]*@", "//…@", first_line(error))
    return re.sub(r"(://[^\s?]*)\?[^\s\"']*", r"\1?…", said)[:300]


def fetch(url: Path, to: Path, check: Callable[[Path], object] = lambda _: None) -> None:
    """Copy an object to a file, again if `check` finds it Damaged. Raises UserError, and OSError for a full disk."""

    def copy() -> None:
        from fsspec.callbacks import Callback

        files, name = connect(url)
        files.get_file(name, str(to), callback=(told := Callback()))
        if told.size not in (None, size := to.stat().st_size):
            raise ConnectionError(f"{size} of {told.size} bytes came")
        check(to)

    persist(f"cannot read {url}", copy)


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """A file as a local one: itself, or a temporary copy of an object. Raises UserError if there is none."""
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="gdt-") as folder:
        fetch(path, to := Path(folder) / path.name)
        yield to


def brought(paths: Sequence[Path], folder: Path) -> list[Path]:
    """The files on this machine: themselves, or copies of objects in `folder`; a copy is missing if its object is."""
    copies = {path: folder / f"copy-{k}{path.suffix}" for k, path in enumerate(paths) if is_remote(path)}

    def bring(path: Path) -> None:
        try:
            fetch(path, copies[path])
        except UserError:
            if exists(path):
                raise

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(bring, copies))
    return [copies.get(path, path) for path in paths]


def put(local: Path, url: Path) -> None:
    """Upload a file, which appears whole or not at all; nothing for a local path."""
    if not is_remote(url):
        return
    files, name = connect(url)
    persist(f"cannot write {url}", lambda: files.put_file(str(local), name))


def exists(path: Path) -> bool:
    """Whether there is a file or an object."""
    return bool(_tag(path)) if is_remote(path) else path.is_file()


def remove(path: Path) -> None:
    """Remove a file or an object."""
    if not is_remote(path):
        path.unlink()
        return
    files, name = connect(path)
    persist(f"cannot remove {path}", lambda: files.rm_file(name))


def names(folder: Path) -> dict[str, tuple[int, str]]:
    """What is below a folder in a store, or in a local one, with sizes and tags; no name leads out of the folder."""
    if not is_remote(folder):
        return {path.name: (path.lstat().st_size, "") for path in folder.glob("*")}
    files, root = connect(folder)
    found = persist(f"cannot list {folder}", lambda: files.find(root, detail=True))
    entries = {name[len(root) :].lstrip("/"): entry for name, entry in sorted(found.items())}
    below = {name: entry for name, entry in entries.items() if not {"", ".", ".."} & {*name.split("/")}}
    return {name: (int(entry["size"]), _tag_in(entry)) for name, entry in below.items()}


def _tag_in(entry: Mapping[str, Any]) -> str:
    """What changes when an object is written anew; empty if the store does not tell."""
    return next((str(entry[name]) for name in _TAGS if entry.get(name)), "")


def download(source: Path, to: Path, suffixes: Collection[str]) -> None:
    """Copy what has one of these suffixes from a folder in a store to a local one, or a single object of that name."""
    if source.suffix.lower() in suffixes:
        fetch(source, to.with_suffix(source.suffix))
        return

    def get(name: str) -> None:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        fetch(source / name, to / name)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(get, [name for name in names(source) if Path(name).suffix.lower() in suffixes]))


def _tag(url: Path) -> str:
    """What changes when an object is written anew; empty if there is none."""

    def look() -> str:
        files, name = connect(url)
        with suppress(FileNotFoundError):
            entry = files.info(name)
            return _tag_in(entry) or str(entry["size"])
        return ""

    return persist(f"cannot read {url}", look)


class Image:
    """A local folder, or one that stands for a folder in a store, with its names and sizes.

    There, only the files that `opened` chooses from all names have content, and shards have first lines and tables:
    what is made from names, sizes, lists or tables can be made here.
    """

    def __init__(self, folder: Path, url: Path, opened: Callable[[Iterable[str]], Collection[str]]) -> None:
        self.folder, self.url, self._opened = folder, url, opened
        self.tags: dict[Path, str] = {}
        self._tag = _tag(url / INDEX) if is_remote(url) else ""
        self.pull()

    def pull(self, made: Collection[str] = ()) -> None:
        """Get the files that were `made`, by default all."""
        if is_remote(self.url):
            found = names(self.url)
            self.tags = {self.folder / name: tag for name, (_, tag) in found.items()}
            opened = set(self._opened(found))
            items = [(name, size, name in opened) for name, (size, _) in found.items() if not made or name in made]
            with ThreadPoolExecutor(4 * _THREADS) as pool:
                list(pool.map(lambda item: self._get(*item), items))

    def _get(self, name: str, size: int, opened: bool) -> None:
        url, to = self.url / name, self.folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if size and fnmatch(name, "shard-*.h5"):
            persist(f"cannot read {url}", lambda: _copy_tables(url, to, size))
        elif opened:
            fetch(url, to)
        else:
            to.touch()
            os.truncate(to, size)

    def put(self, name: str) -> None:
        """Upload a file that was written here."""
        put(self.folder / name, self.url / name)

    def publish(self) -> None:
        """Upload the index, unless somebody else has done so since the start, then remove shards that are not here."""
        if not is_remote(self.url):
            return
        url, data = self.url / INDEX, (self.folder / INDEX).read_bytes()

        def upload() -> None:
            files, name = connect(url)
            if (tag := _tag(url)) and files.cat_file(name) == data:
                return  # an earlier attempt, or the same run on another machine
            if tag != self._tag:
                raise UserError(f"another run has written {url} meanwhile; run the same command again")
            if "s3" in str(files.protocol):  # in one request, which the store refuses if another was quicker
                files.pipe_file(name, data, chunksize=1 << 32, **({"IfMatch": tag} if tag else {"mode": "create"}))
            else:
                files.pipe_file(name, data)

        persist(f"cannot write {url}", upload)
        for old in names(self.url).keys() - names(self.folder).keys():
            if old.startswith("shard-"):
                remove(self.url / old)


def _copy_tables(url: Path, to: Path, size: int) -> None:
    """Copy first line and tables of a shard to a file of its length; a damaged one stays so, and is made again."""
    files, name = connect(url)
    with to.open("wb") as file, suppress(Damaged, ValueError):
        file.truncate(size)
        file.write(start := files.cat_file(name, start=0, end=min(1 << 16, size)))
        head = Head.parse(start[: start.index(b"\n") + 1])
        tables = [at for key, at in head.arrays.items() if at.nbytes and not key.startswith(PIECES)]
        begin, end = min(at.begin for at in tables), max(at.begin + at.nbytes for at in tables)
        file.seek(begin)
        file.write(files.cat_file(name, start=begin, end=end))


@contextmanager
def image(path: Path, opened: Callable[[Iterable[str]], Collection[str]]) -> Iterator[Image]:
    """The image of a folder while it is needed; messages name the folder."""
    if not is_remote(path):
        yield Image(path, path, opened)
        return
    with tempfile.TemporaryDirectory(prefix="gdt-") as folder:
        try:
            yield Image(Path(folder), path, opened)
        except UserError as error:
            raise UserError(str(error).replace(folder, str(path))) from error
