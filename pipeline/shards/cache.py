"""The local cache of shards in a store: whole files within a bound, fetched ahead of the plan, evicted by next use.

All processes of a machine share the folder; there is no state but its files, and locks that the kernel releases when a
process dies. A shard is one download for all: whoever holds the lock of `<name>.<size>.partial` fetches it, the others
wait for `<name>`, which appears when its checksum is right. Names hold the shard's checksum, so nothing is ever stale.
An evicted file stays readable for whoever has it open. On a disk without locks, some shards may be fetched twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gdt.common.errors import UserError, plural
from gdt.common.files import is_disk_full, lock, locked
from gdt.common.stores import RemoteFolder
from gdt.pipeline.shards import container
from gdt.pipeline.shards.container import Head
from gdt.pipeline.shards.index import Index

_FETCHERS = 8
"""Shards that a process fetches at once."""
_POLL = 0.1
"""Seconds between looks at what other processes do."""
_SILENT = 120.0
"""Seconds without a byte after which, on a disk without locks, whoever fetches a file counts as dead."""


class Cache:
    """The shards of one data set for one reader, which may have threads.

    `expect` tells the shards of the batches to come, `done` that the next of them is consumed, `open` opens a shard.
    Ranks of a run step together: what one has consumed, all have loaded.
    """

    _active: set[Cache] = set()  # noqa: RUF012 - of this process: a probe must not evict what training needs next

    def __init__(self, folder: RemoteFolder, shards: Sequence[tuple[str, Head]], bound: int) -> None:
        """`bound`: bytes of the whole cache; 0: four fifths of what is free on its disk and in it."""
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdt"
        self.root, self._source, self._shards = Path(os.environ.get("GDT_CACHE") or usual), folder, shards
        key = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        self._paths = [self.root / f"{key}-{Path(name).stem}-{head.crc32}.h5" for name, head in shards]
        with self._locked():
            kept = sum(self._files().values())
        self.bound = bound or (shutil.disk_usage(self.root).free + kept) * 4 // 5
        self._plan: dict[int, list[int]] = {}  # shards of the batches to come
        self._wanted: deque[tuple[int, int]] = deque()  # batch and shard, to be fetched in this order
        self._expected = self._done = 0
        self._error: UserError | None = None
        self._moved, self._turn, self._closed = threading.Condition(), threading.Lock(), False
        self.bytes = self.fetched = self.used = 0  # shards fetched, and shards of the batches that are done

    def follow(self) -> None:
        """Fetch what `expect` tells, in the background."""
        Cache._active.add(self)
        for _ in range(_FETCHERS):
            threading.Thread(target=self._fetch_ahead, name="fetcher", daemon=True).start()

    def expect(self, shards: np.ndarray) -> None:
        """The shards of the batch after all those told so far."""
        with self._moved:
            self._plan[self._expected] = np.unique(shards).tolist()
            self._wanted.extend((self._expected, number) for number in self._plan[self._expected])
            self._expected += 1
            self._moved.notify_all()

    def done(self) -> None:
        """The next batch is consumed: its shards are needed only for later ones."""
        with self._moved:
            self.used += len(self._plan.pop(self._done))
            self._done += 1
            self._moved.notify_all()

    def close(self) -> None:
        """Stop fetching."""
        with self._moved:
            self._closed = True
            Cache._active.discard(self)
            self._moved.notify_all()

    def open(self, number: int) -> BinaryIO:
        """A shard, fetched if it is not there. Raises UserError if that fails."""
        while True:
            with suppress(FileNotFoundError):  # another process may evict it at any time
                return self._paths[number].open("rb", buffering=0)
            if file := self._claimed(number):
                self._download(number, file, needed=True)

    def forget(self, number: int) -> None:
        """Remove a shard that has changed on this disk."""
        self._paths[number].unlink(missing_ok=True)

    def _fetch_ahead(self) -> None:
        while not self._closed:
            with suppress(UserError, OSError, CancelledError):  # who needs the shard, tries again and says it
                with self._turn:  # one fetcher waits for room, for what is needed first
                    with self._moved:
                        self._moved.wait_for(lambda: self._wanted or self._closed)
                        batch, number = self._wanted.popleft() if self._wanted else (-1, 0)
                    file = self._claimed(number, batch)
                if file:
                    self._download(number, file)

    def _claimed(self, number: int, batch: int | None = None) -> BinaryIO | None:
        """The file to fetch a shard into, as soon as there is room; None once the shard is there.

        A fetcher names the `batch` that it fetches for, and leaves to others what they have begun. A reader fetches
        what is needed at once, and leaves the rest to fetchers.
        """
        while not self._paths[number].exists():
            if self._closed:
                raise self._error or CancelledError
            coming = _is_coming(self._partial(number))
            if batch is not None and (coming or batch < self._done):
                break
            needed = batch is not None or number in self._plan.get(self._done, [number])
            if needed and not coming and (file := self._claim(number)):
                return file
            with self._moved:
                self._moved.wait(_POLL if batch is None else 10 * _POLL)
        return None

    def _download(self, number: int, file: BinaryIO, needed: bool = False) -> None:
        (name, head), partial = self._shards[number], self._partial(number)

        def check(path: Path) -> None:
            if container.check(path).line != head.line:
                other = "is not the shard of the index; restore it, or run the same preprocessing command again"
                raise UserError(f"{self._source.address(name)} {other}")

        try:
            self._source.fetch(name, partial, check)
            partial.rename(self._paths[number])
            with self._moved:
                self.fetched, self.bytes = self.fetched + 1, self.bytes + head.size
        except BaseException as error:
            partial.unlink(missing_ok=True)
            if needed and isinstance(error, UserError):  # for all threads that wait
                self._error = error
                self.close()
            if not (isinstance(error, OSError) and is_disk_full(error)):
                raise
            with self._locked():
                self.bound = min(self.bound, sum(self._files().values()))
            if self.bound < head.size:
                raise UserError(f"no space left on the disk of {self.root}, the cache of shards; free some, or set "
                                "GDT_CACHE to a folder on another disk") from error  # fmt: skip
        finally:
            file.close()  # and so unlock it
            with self._moved:
                self._moved.notify_all()

    def _claim(self, number: int) -> BinaryIO | None:
        """The file to fetch a shard into, locked, after evicting what is needed last, but nothing needed before this.

        None if another process has it, or there is no room yet. Raises UserError if there never will be.
        """
        path, partial, size = self._paths[number], self._partial(number), self._shards[number][1].size
        when = self._needed().get(number, 0)
        with self._locked():
            files, uses = self._files(), self._next_uses()
            if path in files or partial in files:
                return None
            shards = {file: (uses.get(file, math.inf), files[file]) for file in reversed(files) if file.suffix == ".h5"}
            idle = {file: (use, size) for file, (use, size) in shards.items() if use > when}
            room = self.bound - size - sum(files[file] for file in files.keys() - idle.keys())
            if room < 0:
                if not when and all(file.suffix == ".h5" for file in files):
                    batch = {number, *(n for n, batches in self._needed().items() if not batches)}
                    raise too_small(self.bound, sum(self._shards[n][1].size for n in batch))
                return None
            for victim in evicted(idle, room):
                victim.unlink(missing_ok=True)
            with suppress(FileExistsError):  # without locks, another process may be quicker
                claimed = partial.open("xb")
                lock(claimed)
                return claimed
            return None

    def _needed(self) -> dict[int, int]:
        """Batches until each shard is needed, 0 for the next batch; without those not told."""
        with self._moved:
            plan, done = list(self._plan.items()), self._done
        needed: dict[int, int] = {}
        for batch, numbers in plan:
            for number in numbers:
                needed.setdefault(number, batch - done)
        return needed

    def _next_uses(self) -> dict[Path, float]:
        """Batches until a reader of this process needs a file; without those that none needs.

        Other readers come half a batch after this one, which may so evict all that its next batch does not need.
        """
        uses: dict[Path, float] = {}
        for cache in [*Cache._active]:
            for number, batches in cache._needed().items():
                path = cache._paths[number]
                uses[path] = min(batches + (cache is not self) / 2, uses.get(path, math.inf))
        return uses

    def _partial(self, number: int) -> Path:
        return self._paths[number].with_suffix(f".h5.{self._shards[number][1].size}.partial")

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self.root, "set GDT_CACHE to another folder", wait=True)

    def _files(self) -> dict[Path, int]:
        """The shards of all data sets, the oldest first, and their sizes; a partial one counts as whole.

        Those of processes that are gone are removed. The folder must be locked, as a partial file appears unlocked.
        """
        for path in self.root.glob("*.partial"):
            if not _is_coming(path):
                path.unlink(missing_ok=True)
        found = []
        for path in self.root.glob("*.h5*"):
            with suppress(FileNotFoundError):
                status, told = path.stat(), path.name.split(".")[-2]
                found.append((status.st_mtime, path, int(told) if path.suffix == ".partial" else status.st_size))
        return {path: size for _, path, size in sorted(found)}


def _is_coming(partial: Path) -> bool:
    """Whether a process fetches into a file."""
    with suppress(FileNotFoundError), partial.open("rb") as file:
        free = lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return time.time() - os.fstat(file.fileno()).st_mtime < _SILENT if free is None else not free
    return False


def evicted(held: Mapping[Any, tuple[float, int]], room: int) -> list[Any]:
    """The shards that go, given when each is needed (inf: never) and its size: what is needed first stays if it fits,
    of those needed at once the largest, else the first. For one size, this fetches the least, else about 1 % more.
    """
    victims = []
    for shard, (_, size) in sorted(held.items(), key=lambda each: (each[1][0], -each[1][1] * (each[1][0] < math.inf))):
        if size > room:
            victims.append(shard)
        else:
            room -= size
    return victims


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
        old = {number: (uses[number][-1], sizes[number]) for number in held.difference(now)}
        held.difference_update(evicted(old, bound - sum(sizes[number] for number in now)))
    return fetched, max(sum(sizes[number] for number in now) for now in order)


def forecast(index: Index, videos: Sequence[np.ndarray]) -> str:
    """What these batches of videos fetch. Raises UserError if the cache cannot hold the shards of one of them."""
    if not isinstance(index.folder, RemoteFolder):
        raise TypeError(f"{index.folder} needs no cache")
    sizes, cache = [head.size for head in index.heads], Cache(index.folder, [], index.cache)
    fetched, least = simulate([index.shard[batch] for batch in videos], sizes, cache.bound)
    if least > cache.bound:
        raise too_small(cache.bound, least)
    total, coming = sum(sizes) / 1e9, sum(sizes[number] for number in fetched) / 1e9
    return (
        f"{plural(len(sizes), 'shard')} of {total:.3g} GB, cache of {cache.bound / 1e9:.3g} GB in {cache.root}; with "
        f"nothing in it, {plural(len(videos), 'step')} fetch {coming:.3g} GB in {plural(len(fetched), 'request')}"
    )
