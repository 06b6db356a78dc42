"""The local cache of shards in a store: whole files within a bound, fetched ahead of the plan, evicted by next use.

All processes of a machine share the folder; there is no state but its files, and locks that the kernel releases when a
process dies. A shard is one download for all: whoever holds the lock of `<name>.<size>.partial` fetches it, the others
wait for `<name>`, which appears when its checksum is right. Names hold the shard's checksum, so nothing is ever stale.
An evicted file stays readable for whoever has it open.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from gdt.common.errors import UserError, plural
from gdt.common.files import is_disk_full
from gdt.pipeline.shards import container, store
from gdt.pipeline.shards.container import Damaged, Head

if TYPE_CHECKING:
    from gdt.pipeline.shards.index import Index

_FETCHERS = 8
"""Shards that a process fetches at once."""
_POLL, _PATIENCE = 0.1, 50
"""Seconds between looks at what other processes do, and looks until a rank that is behind does not count."""
_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def size_of(text: str) -> int:
    """Bytes of a size such as 500GB; 0 for an empty one. Raises UserError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmgt]?)b?", text.strip().lower()) if text else None
    if text and not found:
        raise UserError(f"--cache is {text}; set it to a size, such as 500GB")
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0


class _File(NamedTuple):
    path: Path
    size: int
    partial: bool
    modified: float


class _Full(Exception):
    """Only shards that are needed earlier could make room for one."""


class Cache:
    """The shards of one data set for one reader, which may have threads.

    `expect` tells the shards of the batches to come, `done` that the next of them is loaded, and `open` opens a shard.
    """

    _active: list[Cache] = []  # noqa: RUF012 - of this process: a probe must not evict what training needs next

    def __init__(self, folder: Path, shards: Sequence[tuple[str, Head]], bound: int) -> None:
        """`bound`: bytes of the whole cache; 0: four fifths of what is free on its disk and in it."""
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdt"
        self.root, self._source, self._shards = Path(os.environ.get("GDT_CACHE") or usual), folder, shards
        self.root.mkdir(parents=True, exist_ok=True)
        key = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        self._paths = [self.root / f"{key}-{Path(name).stem}-{head.crc32}.h5" for name, head in shards]
        self._numbers = {path.name: number for number, path in enumerate(self._paths)}
        kept = sum(file.size for file in self._files())
        self.bound = bound or (shutil.disk_usage(self.root).free + kept) * 4 // 5
        self._uses: dict[int, deque[int]] = {}
        self._wanted: deque[tuple[int, int]] = deque()
        self._counts: deque[int] = deque()
        self._expected = self._done = self._lag = 0
        self._moved = threading.Condition(threading.RLock())
        self._turn, self._stop = threading.Lock(), threading.Event()
        self.bytes = self.fetched = self.used = 0  # shards fetched, and shards of the batches that are done

    def follow(self, lag: int) -> None:
        """Fetch what `expect` tells, in the background; other ranks of the run may be `lag` batches behind."""
        self._lag = lag
        Cache._active.append(self)
        for _ in range(_FETCHERS):
            threading.Thread(target=self._fetch_ahead, name="fetcher", daemon=True).start()

    def expect(self, shards: np.ndarray) -> None:
        """The shards of the batch after all those told so far."""
        with self._moved:
            for number in (numbers := np.unique(shards).tolist()):
                self._uses.setdefault(number, deque()).append(self._expected)
                self._wanted.append((self._expected, number))
            self._expected += 1
            self._counts.append(len(numbers))
            self._moved.notify_all()

    def done(self) -> None:
        """The next batch is loaded: its shards are needed only for later ones."""
        with self._moved:
            self._done += 1
            self.used += self._counts.popleft()
            self._moved.notify_all()

    def close(self) -> None:
        """Stop fetching."""
        self._stop.set()
        with self._moved, suppress(ValueError):
            Cache._active.remove(self)
            self._moved.notify_all()

    def open(self, number: int) -> BinaryIO:
        """A shard, fetched if it is not there. Raises UserError if that fails."""
        while True:
            with suppress(FileNotFoundError):  # another process may evict it at any time
                return self._paths[number].open("rb", buffering=0)
            if file := self._claimed(number):
                self._download(number, file)

    def forget(self, number: int) -> None:
        """Remove a shard that has changed on this disk."""
        self._paths[number].unlink(missing_ok=True)

    def _fetch_ahead(self) -> None:
        while not self._stop.is_set():
            with suppress(UserError, OSError, store.Stopped):  # who needs the shard, tries again and says it
                with self._turn:  # one fetcher waits for room, for what is needed first
                    with self._moved:
                        self._moved.wait_for(lambda: self._wanted or self._stop.is_set())
                        batch, number = self._wanted.popleft() if self._wanted else (-1, 0)
                    file = self._claimed(number, batch)
                if file:
                    self._download(number, file)

    def _claimed(self, number: int, batch: int | None = None) -> BinaryIO | None:
        """The file to fetch a shard into, as soon as there is room; None once the shard is there.

        A fetcher names the `batch` that it fetches for, and leaves to others what they have begun. A reader fetches
        what is needed at once, and leaves the rest to fetchers.
        """
        waited = 0
        while not self._paths[number].exists() and (batch is None or batch >= self._done):
            if self._stop.is_set():
                raise store.Stopped
            try:
                if batch is not None or self._distance(number, 0) in (0, math.inf):
                    file = self._claim(number, waited > _PATIENCE)
                    if file or batch is not None:
                        return file
            except _Full:
                waited += 1
            with self._moved:
                self._moved.wait(_POLL if batch is None else 10 * _POLL)
        return None

    def _download(self, number: int, file: BinaryIO) -> None:
        name, head = self._shards[number]

        def check(path: Path) -> None:
            if container.check(path).line != head.line:
                raise Damaged("it is not the shard that the index was made from")

        def count(size: int) -> None:
            self.bytes += size

        partial = Path(file.name)
        try:
            store.fetch(self._source / name, partial, check, self._stop, count)
            partial.rename(self._paths[number])
            self.fetched += 1
        except BaseException as error:
            partial.unlink(missing_ok=True)
            if not (isinstance(error, OSError) and is_disk_full(error)):
                raise
            self.bound = min(self.bound, sum(file.size for file in self._files()))
            if self.bound < head.size:
                raise UserError(f"no space left on the disk of {self.root}, the cache of shards; free some, or set "
                                "GDT_CACHE to a folder on another disk") from error  # fmt: skip
        finally:
            file.close()  # and so unlock it
            with self._moved:
                self._moved.notify_all()

    def _claim(self, number: int, impatient: bool) -> BinaryIO | None:
        """The file to fetch a shard into, locked, after making room; None if another process has it. Raises _Full."""
        path, size = self._paths[number], self._shards[number][1].size
        partial = path.with_name(f"{path.name}.{size}.partial")
        with (self.root / ".lock").open("a") as lock, ExitStack() as undo:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = undo.enter_context(partial.open("ab"))
            if not _try_lock(file):
                return None
            undo.callback(partial.unlink, missing_ok=True)
            if path.exists():
                return None
            self._make_room(number, size, partial, impatient)
            undo.pop_all()
            return file

    def _make_room(self, number: int, size: int, own: Path, impatient: bool) -> None:
        """Evict what is needed last, but nothing that is needed before this shard.

        Raises _Full if that is not enough, and UserError if it never will be.
        """
        files = [file for file in self._files() if file.path != own and not (file.partial and _is_abandoned(file.path))]
        whole = [file for file in files if not file.partial]
        here = {file.path.name.partition(".h5")[0] for file in files}
        with self._moved:
            when = self._distance(number, 0)
            when = 0 if math.isinf(when) else when  # of a batch that was not told
            # the room of shards that are needed earlier is theirs, although this one's thread came first
            size += sum(self._shards[n][1].size for n in self._uses
                        if self._distance(n, 0) < when and self._paths[n].stem not in here)  # fmt: skip
            batch = {n for n in self._uses if self._distance(n, 0) == 0} | {number}
        for lag in (self._lag, 0) if when == 0 and impatient else (self._lag,):
            excess, victims = sum(file.size for file in files) + size - self.bound, []
            for rank, _, file in sorted((-self._rank(file, lag), file.modified, file) for file in whole):
                if excess > 0 and -rank > when:
                    victims.append(file.path)
                    excess -= file.size
            if excess <= 0:
                for path in victims:
                    path.unlink()
                return
        if when == 0 and (impatient or not self._lag) and len(whole) == len(files):
            raise too_small(self.bound, sum(self._shards[n][1].size for n in batch))
        raise _Full

    def _rank(self, file: _File, lag: int) -> float:
        """Batches until a reader of this process needs a file; infinite for other data sets."""
        name = file.path.name
        readers = [(cache, cache._numbers[name]) for cache in Cache._active if name in cache._numbers]
        return min((cache._distance(number, lag) for cache, number in readers), default=math.inf)

    def _distance(self, number: int, lag: int) -> float:
        """Batches until a shard is needed, 0 for the next batch and `lag` before it; infinite if that is not known."""
        with self._moved:
            uses = self._uses.get(number, deque())
            while uses and uses[0] < self._done - self._lag:
                uses.popleft()
            return next((max(batch - self._done, 0) for batch in uses if batch >= self._done - lag), math.inf)

    def _files(self) -> list[_File]:
        """The shards of all data sets; a partial one counts as whole."""
        files = []
        for path in self.root.glob("*.h5*"):
            with suppress(FileNotFoundError):
                status, partial = path.stat(), path.suffix == ".partial"
                size = int(path.name.split(".")[-2]) if partial else status.st_size
                files.append(_File(path, size, partial, status.st_mtime))
        return files


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _is_abandoned(path: Path) -> bool:
    """Remove a partial file if the process that wrote it is gone."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        if not _try_lock(file):
            return False
        path.unlink()
    return True


def too_small(bound: int, least: int) -> UserError:
    """The error about a cache that cannot hold the shards of one batch."""
    return UserError(
        f"a cache of {bound / 1e6:,.1f} MB cannot hold the shards of one batch; set --cache to "
        f"{math.ceil(least / 1e6)}MB or more, or --shuffle-shards so that a batch takes its videos from fewer shards"
    )


def simulate(batches: Sequence[np.ndarray], sizes: Sequence[int], bound: int) -> tuple[list[int], int]:
    """The shards that batches of shard numbers fetch into an empty cache with eviction by next use, in order.

    And the smallest bound that would do, which is the size of the shards of the largest batch.
    """
    order = [sorted({*batch.tolist()}) for batch in batches]
    uses: dict[int, list[int]] = {}
    for at in reversed(range(len(order))):
        for number in order[at]:
            uses.setdefault(number, [len(order)]).append(at)
    held: set[int] = set()
    fetched: list[int] = []
    for now in order:
        fetched += [number for number in now if number not in held]
        held.update(now)
        for number in now:
            uses[number].pop()
        excess = sum(sizes[number] for number in held) - bound
        while excess > 0 and (old := held.difference(now)):
            held.remove(last := max(old, key=lambda number: uses[number][-1]))
            excess -= sizes[last]
    return fetched, max(sum(sizes[number] for number in now) for now in order)


def forecast(index: Index, videos: Sequence[np.ndarray]) -> str:
    """What these batches of videos fetch. Raises UserError if the cache cannot hold the shards of one of them."""
    sizes, cache = [head.size for head in index.heads], Cache(index.folder, [], index.cache)
    fetched, least = simulate([index.shard[batch] for batch in videos], sizes, cache.bound)
    if least > cache.bound:
        raise too_small(cache.bound, least)
    total, coming = sum(sizes) / 1e9, sum(sizes[number] for number in fetched) / 1e9
    return (
        f"{plural(len(sizes), 'shard')} of {total:.3g} GB, cache of {cache.bound / 1e9:.3g} GB in {cache.root}; with "
        f"nothing in it, {plural(len(videos), 'step')} fetch {coming:.3g} GB in {plural(len(fetched), 'request')}"
    )
