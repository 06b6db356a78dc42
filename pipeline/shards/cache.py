"""The local cache of shards in a store: whole files within a bound, fetched ahead of the plan, evicted by next use.

A group of processes, a run with its ranks on a machine or one loader, has a folder. One process, which holds the lock
of the folder, fetches and evicts in the order of the plan; the others wait for names to appear. A name appears when the
checksum is right, which is part of it, so nothing is ever stale. What a group leaves goes to the next that begins, and
what another one holds is linked. An evicted file stays readable for whoever has it open.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import itertools
import math
import os
import shutil
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import LOCK, is_disk_full, lock, locked, write_text
from gdt.common.wording import plural
from gdt.pipeline.shards import container
from gdt.pipeline.shards.eviction import evicted, too_small
from gdt.pipeline.shards.index import Index

_AT_ONCE = 8
"""Shards that are fetched at once."""
_POLL = 0.1
"""Seconds between looks at what the process that fetches has done."""
_GROUP = "shards-"
"""Begin of the names of the folders of groups."""
_FAILED = "failed"
"""File that says why the process that fetches has stopped."""

Demand = deque[list[int]]
"""The shards of the batches that one loader is to read, in order."""


class Cache:
    """The shards of one data set for a group of processes, whose threads may share it.

    Loaders tell the shards of the batches to come: `begin`, then `expect`, and `done` when a batch is consumed. Of
    several loaders in this process, the one that began last is served first, as a probe delays its run. Ranks of a run
    step together: what one has consumed, all have loaded.
    """

    def __init__(self, index: Index, group: str = "", leads: bool = True) -> None:
        """`group` is the same in all processes of a group; by default it is this object alone. One process `leads`,
        and has made its cache before the others read.

        Raises UserError if the folder cannot be written to, or another process leads this group.
        """
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdt"
        self.root = Path(os.environ.get("GDT_CACHE") or usual)
        self.folder = self.root / f"{_GROUP}{_digest(f'{socket.gethostname()} {group or (os.getpid(), id(self))}')}"
        self._source = index.folder
        self._shards = list(zip(index.shard_names, index.headers, strict=True))
        key = _digest(str(index.folder))
        self._paths = [self.folder / f"{key}-{Path(name).stem}-{header.crc32}.h5" for name, header in self._shards]
        self._leads = leads
        self._demands: list[Demand] = []
        self._held: dict[Path, int] = {}  # bytes of the files in the folder, the oldest first
        self._coming: set[int] = set()
        self._failed: set[int] = set()  # until their batch is the next
        self._missing = False  # whether a shard of the demand may be neither here nor coming
        self._end: Exception | None = None  # why nothing is fetched any more
        self._changed = threading.Condition()  # guards all of this, and tells waiting threads of any progress
        self.bytes = 0
        self.fetched = 0  # shards
        self.used = 0  # shards of the batches that are done
        self.bound = index.cache_bytes
        """Bytes that the folder may hold: as asked, or four fifths of what is free on its disk and in it."""
        self._spare = 0  # bytes that stay free, unless the next batch needs them
        if leads:
            with locked(self.root, "set GDT_CACHE to another folder", wait=True):
                self._lock = self._take_folder()
            if not self.bound:
                self._spare = (shutil.disk_usage(self.root).free + sum(self._held.values())) // 5
                self.bound = 4 * self._spare
            self._evict({path: (math.inf, size) for path, size in reversed(self._held.items())}, self.bound)

    def _take_folder(self) -> BinaryIO:
        """The lock of the folder, which gets what groups that have ended have left. The folder around is locked."""
        self.folder.mkdir(exist_ok=True)
        file = (self.folder / LOCK).open("ab")
        self._has_locks = lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if self._has_locks is False:
            raise UserError(
                f"another process fetches into {self.folder}; of ranks on one machine, only the first has LOCAL_RANK 0"
            )
        if not self._has_locks:
            _warn(self.root)
        for left in [*self.folder.glob("*.partial"), self.folder / _FAILED]:
            left.unlink(missing_ok=True)
        for other in self.root.glob(f"{_GROUP}*/{LOCK}"):
            with other.open("ab") as of_other:
                if lock(of_other, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    for path in other.parent.glob("*.h5"):
                        path.rename(self.folder / path.name)
                    shutil.rmtree(other.parent, ignore_errors=True)
        here = sorted(self.folder.glob("*.h5"), key=lambda path: path.stat().st_mtime)
        self._held = {path: path.stat().st_size for path in here}
        return file

    def begin(self) -> Demand:
        """The demand of a loader, for the other methods."""
        demand = Demand()
        with self._changed:
            self._demands.insert(0, demand)
        return demand

    def expect(self, demand: Demand, shards: np.ndarray) -> None:
        """The shards of the batch after all those told so far."""
        with self._changed:
            demand.append(np.unique(shards).tolist())
            blocked = self._missing and demand is self._demands[-1]  # by something before
            if not blocked and any(self._paths[number] not in self._held for number in demand[-1]):
                self._look()

    def done(self, demand: Demand) -> None:
        """The next batch is consumed: its shards are needed only for later ones."""
        with self._changed:
            self.used += len(demand.popleft())
            if self._missing:
                self._look()

    def end(self, demand: Demand) -> None:
        """Cancel what waits for shards of a demand, maybe once more."""
        with self._changed:
            self._demands = [other for other in self._demands if other is not demand]
            self._look()
            self._changed.notify_all()

    def close(self) -> None:
        """Leave the folder to the next group."""
        for demand in [*self._demands]:
            self.end(demand)
        if self._leads:
            if not self._has_locks:  # nobody could tell that it is left
                shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.close()

    def open(self, demand: Demand, number: int) -> BinaryIO:
        """A shard, as soon as it is there, also if its batch was not told. Raises UserError if that fails."""
        untold = [number]
        with self._changed:
            told = any(number in shards for shards in demand)
            if not told:
                demand.appendleft(untold)
                self._look()
        try:
            while True:
                with suppress(FileNotFoundError):
                    return self._paths[number].open("rb", buffering=0)
                self._wait(demand, number)
        finally:
            if not told:
                with self._changed:
                    demand.remove(untold)

    def forget(self, number: int) -> None:
        """Remove a shard that has changed on this disk."""
        with self._changed:
            self._held.pop(self._paths[number], None)
            self._paths[number].unlink(missing_ok=True)

    def _wait(self, demand: Demand, number: int) -> None:
        """Wait for any progress, unless a shard is here."""
        path = self._paths[number]
        with self._changed:
            if path.exists():
                return
            if self._end:
                raise self._end
            if all(demand is not other for other in self._demands):
                raise CancelledError
            if not self._leads:
                self._require_leader()
            elif self._held.pop(path, None):  # somebody has removed it
                self._look()
            self._changed.wait(None if self._leads else _POLL)

    def _require_leader(self) -> None:
        """Raise UserError if the process that fetches has failed or is gone."""
        with suppress(FileNotFoundError):
            raise UserError((self.folder / _FAILED).read_text())
        gone: bool | None = True
        with suppress(FileNotFoundError), (self.folder / LOCK).open("rb") as file:
            gone = lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if gone:
            raise UserError("the process that fetches shards has ended; run the same command again, which resumes")

    def _look(self) -> None:
        """Fetch what is missing, in the order of the plan, as long as there is room."""
        self._missing = True
        while self._leads and self._missing and len(self._coming) < _AT_ONCE and not self._end:
            needed: dict[int, int] = {}  # batches until each shard is needed, the first first
            for batches, shards in enumerate(itertools.chain.from_iterable(self._demands)):
                for number in shards:
                    needed.setdefault(number, batches)
            absent = [
                number for number in needed if number not in self._coming and self._paths[number] not in self._held
            ]
            self._missing = bool(absent)
            ready = [number for number in absent if number not in self._failed or not needed[number]]
            if not ready or not self._make_room(ready[0], needed):
                return
            self._coming.add(ready[0])
            arguments = ready[0], needed[ready[0]] == 0
            threading.Thread(target=self._fetch, args=arguments, name="fetcher", daemon=True).start()

    def _make_room(self, number: int, needed: dict[int, int]) -> bool:
        """Evict what is needed last, but nothing needed before this shard; whether there is room for it now."""
        when = needed[number]
        uses = {self._paths[other]: float(batches) for other, batches in needed.items()}
        held = {path: (uses.get(path, math.inf), size) for path, size in reversed(self._held.items())}
        idle = {path: of_path for path, of_path in held.items() if of_path[0] > when}
        kept = sum(size for path, (_, size) in held.items() if path not in idle)
        coming = sum(self._size(other) for other in {number, *self._coming})
        room = self.bound - kept - coming
        if when and self._spare:  # other runs may have filled the disk
            free = shutil.disk_usage(self.root).free + sum(size for _, size in idle.values())
            room = min(room, free - self._spare - coming)
        if room >= 0:
            self._evict(idle, room)
        elif not when and not self._coming:  # nothing to wait for
            batch = [other for other, batches in needed.items() if not batches]
            self._stop(too_small(self.bound, sum(map(self._size, batch))))
        return room >= 0

    def _evict(self, idle: dict[Path, tuple[float, int]], room: int) -> None:
        """Remove files, given when each is needed and its size, until they fit into some room."""
        for victim in evicted(idle, room):
            victim.unlink(missing_ok=True)
            del self._held[victim]

    def _fetch(self, number: int, due: bool) -> None:
        """Get a shard. `Folder.fetch` repeats what may pass; after an error, it is tried once more when it is `due`;
        then all ends. After a full disk, it is tried again in a smaller cache.
        """
        name, header = self._shards[number]
        path = self._paths[number]
        partial = path.with_suffix(f".{id(self)}.partial")  # this object may be closed while it fetches

        def check(file: Path) -> None:
            if container.check_shard(file).line != header.line:
                advice = "is not the shard of the index; restore it, or run the same preprocessing command again"
                raise UserError(f"{self._source.address(name)} {advice}")

        failure: Exception | None = None
        linked = False
        try:
            linked = self._link(path)
            if not linked:
                self._source.fetch(name, partial, check)
                partial.rename(path)
        except Exception as error:
            partial.unlink(missing_ok=True)
            failure = error
        with self._changed:
            self._coming.discard(number)
            if failure is None:
                self._held[path] = header.size
                self._failed.discard(number)
                if not linked:
                    self.fetched += 1
                    self.bytes += header.size
            elif is_disk_full(failure):  # something else has filled it: what is there now is what fits
                self.bound = min(self.bound, sum(self._held.values()) + sum(map(self._size, self._coming)))
                if self.bound < header.size:
                    text = f"no space left on the disk of {self.root}, the cache of shards; free some, or set GDT_CACHE"
                    self._stop(UserError(f"{text} to a folder on another disk"))
            elif due:
                self._stop(failure)
            else:
                self._failed.add(number)
            self._look()
            self._changed.notify_all()

    def _link(self, path: Path) -> bool:
        """Whether another group holds a shard, which is linked."""
        for other in self.root.glob(f"{_GROUP}*/{path.name}"):
            try:
                path.hardlink_to(other)
                return True
            except FileExistsError:  # it has come meanwhile, for this group before it was closed
                return True
            except FileNotFoundError:  # it was evicted
                pass
            except OSError:
                _warn(self.root)
        return False

    def _stop(self, error: Exception) -> None:
        """Fetch no more, and tell the readers of all processes why, when they miss a shard."""
        self._end = error
        with suppress(OSError):
            write_text(self.folder / _FAILED, str(error))
        self._changed.notify_all()

    def _size(self, number: int) -> int:
        return self._shards[number][1].size


def described(cache: Cache, index: Index, videos: Iterable[np.ndarray]) -> str:
    """The shards and the cache in words. Raises UserError if it cannot hold the shards of one of these batches."""
    sizes = [header.size for header in index.headers]
    least = max((sum(sizes[number] for number in {*index.shard[batch]}) for batch in videos), default=0)
    if least > cache.bound:
        raise too_small(cache.bound, least)
    shown = f"{sum(sizes) / 1e9:.3g} GB, cache of {cache.bound / 1e9:.3g} GB in {cache.folder}"
    return f"{plural(len(sizes), 'shard')} of {shown}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


@functools.cache
def _warn(root: Path) -> None:
    print(f"warning: {root} has no file locks or hard links, so every run fetches its shards anew", file=sys.stderr)
