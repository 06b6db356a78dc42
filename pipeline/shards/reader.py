"""Random access to frames, log-mel rows and words, with their checksums verified."""

from __future__ import annotations

import os
import resource
import zlib
from functools import lru_cache, partial

import numpy as np

from gdt.common.errors import UserError
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import ROWS, SHARD, WORDS, repair_hint, words_checksum
from gdt.pipeline.shards.seal import Damaged, Seal, read_seal


class DamagedVideo(UserError):
    """A checksum mismatch in the frames, the sound or the words of a video."""

    def __init__(self, video: int, message: str) -> None:
        super().__init__(message)
        self.video = video
        """Row of the index."""


class ShardReader:
    """Random access to the frames, log-mel rows and words of an index, safe to share between threads.

    Files are opened on first use; the least recently used are closed. Reading raises DamagedVideo for a checksum
    mismatch, and UserError if a shard cannot be read.
    """

    def __init__(self, index: Index, open_files: int = 4096) -> None:
        self.index = index
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = open_files + 512
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
        # pread shares no file position between threads or forks, and a reader keeps its file open after eviction
        self._opened = lru_cache(max(1, min(open_files, allowed - 512)))(partial(_OpenShard, index))

    def frames(self, video: int, positions: np.ndarray) -> list[np.ndarray]:
        """JPEG bytes of the frames of a video at `positions`, int64 [n] ascending: n uint8 arrays, the same object for
        a repeated position.
        """
        self._require_inside(video, "frames", positions[0], positions[-1], self.index.frame_count)
        shard = self._opened(int(self.index.shard[video]))
        wanted = np.asarray(positions) - positions[0]
        first, run = int(self.index.frame_start[video] + positions[0]), int(wanted[-1]) + 1
        offset = shard.read("frames/offset", first, run + 1)
        checksums = shard.read("frames/crc32", first, run)
        if offset[0] < 0 or (np.diff(offset) < 0).any() or offset[-1] > shard.size("frames/jpeg"):
            raise self._damaged(video, shard, f"the offsets of frames {positions[0]} to {positions[0] + run}")
        data = shard.read("frames/jpeg", int(offset[0]), int(offset[-1] - offset[0]))
        bounds = offset - offset[0]
        frames = {}
        for k in dict.fromkeys(wanted.tolist()):
            frame = frames[k] = data[bounds[k] : bounds[k + 1]]
            if zlib.crc32(frame.data) != checksums[k]:
                raise self._damaged(video, shard, f"frame {positions[0] + k}")
        return [frames[k] for k in wanted.tolist()]

    def logmel(self, video: int, start: int, count: int) -> np.ndarray:
        """Log-mel rows of a video from row `start`: float32 [count, bands]."""
        self._require_inside(video, "log-mel frames", start, start + count - 1, self.index.mel_count)
        shard = self._opened(int(self.index.shard[video]))
        bands = self.index.bands
        first = int(self.index.mel_start[video]) + start
        # read whole pieces, which have one checksum each
        begin, end = first // ROWS, -(-(first + count) // ROWS)
        checksums = shard.read("audio/crc32", begin, end - begin)
        rows = min(end * ROWS, shard.size("audio/logmel") // (4 * bands)) - begin * ROWS
        data = shard.read("audio/logmel", begin * ROWS * bands, rows * bands).reshape(rows, bands)
        for k, expected in enumerate(checksums):
            if zlib.crc32(data[k * ROWS : (k + 1) * ROWS].data) != expected:
                raise self._damaged(video, shard, f"the sound around {(start + k * ROWS) / 100:.0f} s")
        return data[first - begin * ROWS :][:count]

    def tokens(self, video: int, start: float, words: int = 16, seconds: float = 4.0) -> np.ndarray:
        """Up to `words` tokens in a row that begin and end within `seconds` from `start` on (section A.3.3): int32."""
        shard = self._opened(int(self.index.shard[video]))
        first, count = int(self.index.text_start[video]), int(self.index.text_count[video])
        token, begin, end = (shard.read(f"text/{name}", first, count) for name in WORDS)
        if words_checksum(token, begin, end) != shard.read("text/crc32", int(self.index.place[video]), 1)[0]:
            raise self._damaged(video, shard, "the words")
        # compare in float32, the precision of the stored times
        first = int(np.searchsorted(begin, np.float32(start)))
        late = np.flatnonzero(end[first:] > np.float32(start + seconds))
        return token[first:][: late[0] if len(late) else None][:words]

    def _require_inside(self, video: int, what: str, first: int, last: int, counts: np.ndarray) -> None:
        """Raise UserError if a clip would reach into the previous or next video."""
        if first < 0 or last >= counts[video]:
            raise UserError(
                f"a transformation takes {what} {first} to {last} of '{self.index.id[video]}', which has "
                f"{counts[video]}; make its reach() or starts_needed() cover them"
            )

    def _damaged(self, video: int, shard: _OpenShard, what: str) -> DamagedVideo:
        return DamagedVideo(
            video,
            f"shard {shard.path} is damaged: checksum mismatch in {what} of '{self.index.id[video]}'; "
            + repair_hint(self.index.folder),
        )


class _OpenShard:
    """One shard file, read without HDF5, which allows only one read at a time; the seal locates its datasets."""

    def __init__(self, index: Index, number: int) -> None:
        self.path = index.folder / index.shard_names[number]
        try:
            seal = read_seal(self.path)
            self._file = os.open(self.path, os.O_RDONLY)
        except Damaged as error:
            raise UserError(f"shard {self.path} is damaged: {error}; {repair_hint(self.path.parent)}") from error
        except OSError as error:
            raise self._unreadable(error) from error
        if seal.own != index.shard_seal[number] or not _fits(seal, index.shard_totals[number].tolist(), index.bands):
            raise UserError(
                f"shard {self.path} does not belong to the index; run the same preprocessing command again to "
                "rebuild the index"
            )
        self._spans = seal.spans

    def size(self, name: str) -> int:
        """Size of a dataset, bytes."""
        return self._spans[name][1]

    def read(self, name: str, first: int, count: int) -> np.ndarray:
        """Values first..first+count-1 of a dataset: [count]."""
        begin, size = self._spans[name]
        item = _item_size(name)
        if first < 0 or count < 0 or (first + count) * item > size:
            raise UserError(
                f"shard {self.path} has no values {first} to {first + count - 1} of {name}, unlike the index; run the "
                "same preprocessing command again to rebuild the index"
            )
        try:
            data = os.pread(self._file, count * item, begin + first * item)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(data) < count * item:
            raise UserError(f"shard {self.path} is truncated; {repair_hint(self.path.parent)}")
        return np.frombuffer(data, SHARD[name].dtype)

    def _unreadable(self, error: OSError) -> UserError:
        return UserError(
            f"shard {self.path} cannot be read: {error.strerror or error}; check its disk, then run the same command "
            "again"
        )

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


def _fits(seal: Seal, totals: list[int], bands: int) -> bool:
    """Whether the datasets of a shard have the lengths recorded in the index."""
    frames, rows, words = totals
    lengths = {
        "frames/offset": frames + 1, "frames/crc32": frames, "audio/logmel": bands * rows,
        "audio/crc32": -(-rows // ROWS), **{f"text/{name}": words for name in WORDS},
    }  # fmt: skip
    return all(seal.spans[name][1] == _item_size(name) * length for name, length in lengths.items())


def _item_size(name: str) -> int:
    """Size of one value of a dataset, bytes."""
    return np.dtype(SHARD[name].dtype).itemsize
