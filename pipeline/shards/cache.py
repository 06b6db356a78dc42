"""The local cache of shards in a store: whole files within a bound, fetched ahead of the plan, evicted by next use.

All processes of a machine share the folder; there is no state but its files, and locks that the kernel releases when a
process dies. A shard is one download for all: whoever holds the lock of `<name>.<size>.partial` fetches it, the others
wait for `<name>`, which appears when its checksum is right. Names hold the shard's checksum, so nothing is ever stale.
An evicted file stays readable for whoever has it open. On a disk without locks, some shards may be fetched twice.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import is_disk_full, lock
from gdt.common.folders import Folder
from gdt.common.wording import plural
from gdt.pipeline.shards import container
from gdt.pipeline.shards.cachefolder import CacheFolder, is_coming
from gdt.pipeline.shards.container import Head
from gdt.pipeline.shards.eviction import evicted, too_small
from gdt.pipeline.shards.index import Index

_FETCHERS = 8
"""Shards that a process fetches at once."""
_POLL = 0.1
"""Seconds between looks at what other processes do."""


class ShardState(Enum):
    """What a process knows of a shard. The files say it, as any process may change them; only failures are its own."""

    HERE = auto()
    """Its file is in the folder."""
    COMING = auto()
    """A process fetches it; all others wait."""
    ABSENT = auto()
    """A fetcher takes it ahead of its batch, or a reader when its batch is the next."""
    FAILED = auto()
    """A fetcher could not get it, and none tries again, also not for later batches: it is left to its reader."""
    REFUSED = auto()
    """Its reader could not get it either: all readers raise this error, and all fetching has ended."""

    @staticmethod
    def after(error: BaseException, reader: bool) -> ShardState:
        """The state that an error of a fetcher or a `reader` leads to, and so who tries again.

        After a full disk, anyone, in a smaller cache. After any other error, only the reader, once, since `fetch` has
        already repeated what may pass; another error than a UserError ends the reader that met it alone.
        """
        if isinstance(error, OSError) and is_disk_full(error):
            return ShardState.ABSENT
        return ShardState.REFUSED if reader and isinstance(error, UserError) else ShardState.FAILED


class Cache:
    """The shards of one data set for one reader, which may have threads.

    `expect` tells the shards of the batches to come, `done` that the next of them is consumed, `open` opens a shard.
    Ranks of a run step together: what one has consumed, all have loaded.
    """

    _active: set[Cache] = set()  # noqa: RUF012 - of this process: a probe must not evict what training needs next

    def __init__(self, folder: Folder, shards: Sequence[tuple[str, Head]], bound: int) -> None:
        """`bound`: bytes of the whole cache; 0: four fifths of what is free on its disk and in it."""
        self._folder = CacheFolder()
        self._source = folder
        self._shards = shards
        key = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        self._paths = [self._folder.path / f"{key}-{Path(name).stem}-{head.crc32}.h5" for name, head in shards]
        self.bound = self._folder.bound(bound)
        self._plan: dict[int, list[int]] = {}  # shards of the batches to come
        self._wanted: deque[tuple[int, int]] = deque()  # batch and shard, to be fetched in this order
        self._expected = 0  # batches
        self._done = 0
        self._failures: dict[int, ShardState] = {}
        self._end: BaseException | None = None  # why it fetches no more
        self._changed = threading.Condition()  # guards the plan, and tells waiting threads of any progress
        self._turn = threading.Lock()
        self.bytes = 0
        self.fetched = 0  # shards
        self.used = 0  # shards of the batches that are done

    def follow(self) -> None:
        """Fetch what `expect` tells, in the background."""
        Cache._active.add(self)
        for _ in range(_FETCHERS):
            threading.Thread(target=self._fetch_ahead, name="fetcher", daemon=True).start()

    def expect(self, shards: np.ndarray) -> None:
        """The shards of the batch after all those told so far."""
        with self._changed:
            self._plan[self._expected] = np.unique(shards).tolist()
            self._wanted.extend((self._expected, number) for number in self._plan[self._expected])
            self._expected += 1
            self._changed.notify_all()

    def done(self) -> None:
        """The next batch is consumed: its shards are needed only for later ones."""
        with self._changed:
            self.used += len(self._plan.pop(self._done))
            self._done += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._end = self._end or CancelledError()
            Cache._active.discard(self)
            self._changed.notify_all()

    def open(self, number: int) -> BinaryIO:
        """A shard, fetched if it is not there. Raises UserError if that fails."""
        while True:
            with suppress(FileNotFoundError):  # another process may evict it at any time
                return self._paths[number].open("rb", buffering=0)
            file = self._claimed(number)
            if file:
                self._download(number, file, reader=True)

    def forget(self, number: int) -> None:
        """Remove a shard that has changed on this disk."""
        self._paths[number].unlink(missing_ok=True)

    def _fetch_ahead(self) -> None:
        while not self._end:
            with suppress(UserError, OSError, CancelledError):  # the reader of the shard tries again, and says it
                # One fetcher at a time waits for room: else a later, smaller shard would take the room of an earlier
                # one. Downloads overlap, as each begins after the turn.
                with self._turn:
                    with self._changed:
                        self._changed.wait_for(lambda: self._wanted or self._end)
                        if not self._wanted:
                            return
                        batch, number = self._wanted.popleft()
                    file = self._claimed(number, batch)
                if file:
                    self._download(number, file)

    def _claimed(self, number: int, batch: int | None = None) -> BinaryIO | None:
        """The file to fetch a shard into, as soon as there is room; None once the shard is there.

        A fetcher names the `batch` that it fetches for, and leaves to others what they have begun, and to the reader
        what has failed. A reader fetches what the next batch needs, at once, and leaves the rest to fetchers, since it
        would evict what earlier batches need.
        """
        while True:
            state = self._state(number)
            if state is ShardState.HERE:
                return None
            if self._end:
                raise self._end
            if batch is not None and (state is not ShardState.ABSENT or batch < self._done):
                return None
            due = batch is not None or number in self._plan.get(self._done, [number])  # or no batch is told
            if due and state is not ShardState.COMING:
                file = self._claim(number, state)
                if file:
                    return file
            with self._changed:
                self._changed.wait(_POLL if batch is None else 10 * _POLL)

    def _download(self, number: int, file: BinaryIO, reader: bool = False) -> None:
        """Fetch a shard into the file that `_claimed` gave to a fetcher or a `reader`, and unlock it."""
        name, head = self._shards[number]

        def check(path: Path) -> None:
            if container.check_shard(path).line != head.line:
                advice = "is not the shard of the index; restore it, or run the same preprocessing command again"
                raise UserError(f"{self._source.address(name)} {advice}")

        try:
            self._source.fetch(name, self._partial(number), check)
            self._become(number, ShardState.HERE)
        except BaseException as error:
            state = ShardState.after(error, reader)
            self._become(number, state, error)
            if state is not ShardState.ABSENT:
                raise
            with self._folder.locked():  # something else has filled the disk: what is there now is what fits
                self.bound = min(self.bound, sum(self._folder.files().values()))
            if self.bound < head.size:
                raise UserError(
                    f"no space left on the disk of {self._folder}, the cache of shards; free some, or set "
                    "GDT_CACHE to a folder on another disk"
                ) from error
        finally:
            file.close()  # and so unlock it
            with self._changed:
                self._changed.notify_all()

    def _state(self, number: int) -> ShardState:
        # in this order: a shard that arrives between the two looks is seen by the second
        coming = is_coming(self._partial(number))
        if self._paths[number].exists():
            return ShardState.HERE
        if coming:
            return ShardState.COMING
        return self._failures.get(number, ShardState.ABSENT)

    def _become(self, number: int, state: ShardState, error: BaseException | None = None) -> None:
        """End COMING, which only `_claim` begins. No other place changes a state, but for removing a file."""
        partial = self._partial(number)
        if state is ShardState.HERE:
            with self._folder.locked():  # else whoever lists the folder at this moment may see neither name
                partial.rename(self._paths[number])
            with self._changed:
                self._failures.pop(number, None)
                self.fetched += 1
                self.bytes += self._shards[number][1].size
            return
        # before the file goes: whoever sees it gone knows of the failure, and does not fetch once more
        if state is ShardState.ABSENT:
            self._failures.pop(number, None)
        else:
            self._failures[number] = state
        if state is ShardState.REFUSED:
            self._end = error
            self.close()
        partial.unlink(missing_ok=True)

    def _claim(self, number: int, state: ShardState) -> BinaryIO | None:
        """The file to fetch a shard into, locked; None if it is no longer in this state, or there is no room yet.

        Raises UserError as `_make_room`.
        """
        with self._folder.locked():
            files = self._folder.files()  # first, as it removes what dead processes have begun
            if self._state(number) is not state or self._end:  # decided by another thread or process meanwhile
                return None
            if not self._make_room(number, files):
                return None
            with suppress(FileExistsError):  # without locks, another process may be quicker
                claimed = self._partial(number).open("xb")
                lock(claimed)
                return claimed
            return None

    def _make_room(self, number: int, files: dict[Path, int]) -> bool:
        """Evict what is needed last, but nothing needed before this shard; whether there is room for it now.

        `files` are those of the folder, which is locked. Raises UserError if there never will be room.
        """
        needed = self._needed()
        when = needed.get(number, 0)
        uses = self._next_uses()
        shards = {file: (uses.get(file, math.inf), files[file]) for file in reversed(files) if file.suffix == ".h5"}
        idle = {file: shard for file, shard in shards.items() if shard[0] > when}
        others = sum(files[file] for file in files.keys() - idle.keys())
        room = self.bound - self._shards[number][1].size - others
        if room >= 0:
            for victim in evicted(idle, room):
                victim.unlink(missing_ok=True)
            return True
        if not when and all(file.suffix == ".h5" for file in files):  # nothing to wait for
            batch = {number, *(other for other, batches in needed.items() if not batches)}
            raise too_small(self.bound, sum(self._shards[member][1].size for member in batch))
        return False

    def _needed(self) -> dict[int, int]:
        """Batches until each shard is needed, 0 for the next batch; without those not told."""
        with self._changed:
            plan = list(self._plan.items())
            done = self._done
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


def described(index: Index, videos: Iterable[np.ndarray]) -> str:
    """The shards and the cache in words. Raises UserError if it cannot hold the shards of one of these batches."""
    sizes = [head.size for head in index.heads]
    folder = CacheFolder()
    bound = folder.bound(index.cache_bytes)
    least = max((sum(sizes[number] for number in {*index.shard[batch]}) for batch in videos), default=0)
    if least > bound:
        raise too_small(bound, least)
    return f"{plural(len(sizes), 'shard')} of {sum(sizes) / 1e9:.3g} GB, cache of {bound / 1e9:.3g} GB in {folder}"
