"""Random access to frames, log-mel rows and words, with their checksums verified."""

import os
import resource
import zlib
from functools import lru_cache, partial
from math import prod
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError
from gdt.pipeline.shards.cache import Cache, Demand
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import MEL_RATE, ROWS, WORDS, words_checksum
from gdt.pipeline.shards.naming import verify_hint

_OPEN_FILES = 4096


class ShardReader:
    """Random access to the frames, log-mel rows and words of an index, safe to share between threads.

    Files are opened on first use, without HDF5, which allows only one read at a time; the least recently used are
    closed. Reading raises UserError for a checksum mismatch, and if a shard cannot be read.
    """

    def __init__(self, index: Index, cache: Cache | None = None) -> None:
        """Shards in a store come through a cache, by default one of its own."""
        self.index = index
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        # pread shares no file position between threads or forks, and a reader keeps its file open after eviction
        self._own = Cache(index) if index.folder.remote and cache is None else None
        self.cache = cache or self._own
        self._demand = self.cache.begin() if self.cache else Demand()
        self._opened = lru_cache(min(_OPEN_FILES, hard // 2))(partial(_OpenShard, index, self.cache, self._demand))

    def expect(self, shards: np.ndarray) -> None:
        """The shards of the batch after all those told so far, for a cache."""
        if self.cache:
            self.cache.expect(self._demand, shards)

    def done(self) -> None:
        """A batch is consumed; close the shards in a cache, which may evict them."""
        if self.cache:
            self.cache.done(self._demand)
            self._opened.cache_clear()

    def close(self) -> None:
        """Cancel the reads that wait for a cache; safe to call more than once."""
        if self.cache:
            self.cache.end(self._demand)
        if self._own:
            self._own.close()

    def frames(self, video: int, positions: np.ndarray) -> list[np.ndarray]:
        """JPEG bytes of the frames of a video at `positions`, int64 [n] ascending: n uint8 arrays, the same object for
        a repeated position.
        """
        self._require_inside(video, "frames", positions[0], positions[-1], self.index.frame_count)
        shard = self._opened(int(self.index.shard[video]))
        wanted = np.asarray(positions) - positions[0]
        first = int(self.index.frame_start[video] + positions[0])
        length = int(wanted[-1]) + 1
        offset = shard.read("frames/offset", first, length + 1)
        checksums = shard.read("frames/crc32", first, length)
        if (np.diff(offset, prepend=0, append=shard.length("frames/jpeg")) < 0).any():
            raise self._damaged(video, f"the offsets of frames {positions[0]} to {positions[0] + length}")
        data = shard.read("frames/jpeg", int(offset[0]), int(offset[-1] - offset[0]))
        bounds = offset - offset[0]
        frames = {}
        for k in dict.fromkeys(wanted.tolist()):
            frames[k] = data[bounds[k] : bounds[k + 1]]
            if zlib.crc32(frames[k].data) != checksums[k]:
                raise self._damaged(video, f"frame {positions[0] + k}")
        return [frames[k] for k in wanted.tolist()]

    def logmel(self, video: int, start: int, count: int) -> np.ndarray:
        """Log-mel rows of a video from row `start`: float32 [count, bands]."""
        self._require_inside(video, "log-mel frames", start, start + count - 1, self.index.mel_count)
        shard = self._opened(int(self.index.shard[video]))
        first = int(self.index.mel_start[video]) + start
        # read whole pieces, which have one checksum each
        begin = first // ROWS
        end = -(-(first + count) // ROWS)
        checksums = shard.read("audio/crc32", begin, end - begin)
        data = shard.read("audio/logmel", begin * ROWS, min(end * ROWS, shard.length("audio/logmel")) - begin * ROWS)
        for k, expected in enumerate(checksums):
            if zlib.crc32(data[k * ROWS : (k + 1) * ROWS].data) != expected:
                raise self._damaged(video, f"the sound around {(start + k * ROWS) / MEL_RATE:.0f} s")
        return data[first - begin * ROWS :][:count]

    def tokens(self, video: int, start: float, words: int = 16, seconds: float = 4.0) -> np.ndarray:
        """Up to `words` tokens in a row that begin and end within `seconds` from `start` on (section A.3.3): int32."""
        shard = self._opened(int(self.index.shard[video]))
        first = int(self.index.text_start[video])
        count = int(self.index.text_count[video])
        token, begin, end = (shard.read(f"text/{name}", first, count) for name in WORDS)
        if words_checksum(token, begin, end) != shard.read("text/crc32", int(self.index.place[video]), 1)[0]:
            raise self._damaged(video, "the words")
        # compare in float32, the precision of the stored times
        spoken = int(np.searchsorted(begin, np.float32(start)))
        late = np.flatnonzero(end[spoken:] > np.float32(start + seconds))
        return token[spoken:][: late[0] if len(late) else None][:words]

    def _require_inside(self, video: int, what: str, first: int, last: int, counts: np.ndarray) -> None:
        """Raise UserError if a clip would reach into the previous or next video."""
        if first < 0 or last >= counts[video]:
            has = f"'{self.index.id[video]}', which has {counts[video]}"
            raise UserError(f"there are no {what} {first} to {last} of {has}")

    def _damaged(self, video: int, what: str) -> UserError:
        hint = verify_hint(self.index.folder)
        number = int(self.index.shard[video])
        if self.cache:  # which fetched it intact
            self.cache.forget(number)
            hint = "its copy in the cache is removed; check the disk, then run the same command again"
        shard = self.index.folder.address(self.index.shard_names[number])
        return UserError(f"shard {shard} is damaged: checksum mismatch in {what} of '{self.index.id[video]}'; {hint}")


class _OpenShard:
    """One shard file; the index knows where its datasets lie."""

    def __init__(self, index: Index, cache: Cache | None, demand: Demand, number: int) -> None:
        name = index.shard_names[number]
        self.path = index.folder.address(name)
        self._folder = index.folder
        self._header = index.headers[number]
        try:
            self._file = cache.open(demand, number) if cache else Path(self.path).open("rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._unreadable(error) from error
        if self._pread(len(self._header.line), 0) != self._header.line:
            raise UserError(
                f"shard {self.path} is not the one that the index was made from, or damaged; "
                + verify_hint(index.folder)
            )

    def length(self, name: str) -> int:
        return self._header.arrays[name].shape[0]

    def read(self, name: str, first: int, count: int) -> np.ndarray:
        begin, dtype, (_, *shape) = self._header.arrays[name]
        row = np.dtype(dtype).itemsize * prod(shape)
        return np.frombuffer(self._pread(count * row, begin + first * row), dtype).reshape(count, *shape)

    def _pread(self, count: int, begin: int) -> bytes:
        try:
            data = os.pread(self._file.fileno(), count, begin)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(data) < count:
            raise UserError(f"shard {self.path} is truncated; {verify_hint(self._folder)}")
        return data

    def _unreadable(self, error: OSError) -> UserError:
        return UserError(f"shard {self.path} cannot be read: {error.strerror}; check its disk, then run again")
