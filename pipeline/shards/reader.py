"""Random access to the frames, log-mel rows and words of an index."""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from pathlib import Path

import h5py
import numpy as np

from pipeline.errors import UserError
from pipeline.shards.index import Index


class ShardReader:
    """Random access to the frames and log-mel rows of an index, safe to share between threads.

    Files are opened when first read, in the process that reads them, and the least recently used are closed.
    """

    def __init__(self, index: Index, open_files: int = 4096) -> None:
        self.index = index
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = open_files + 512
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
        self._limit = max(1, min(open_files, allowed - 512))
        self._lock = threading.Lock()
        self._files: OrderedDict[int, _OpenShard] = OrderedDict()
        self._pid = os.getpid()

    def frames(self, video: int, start: int, count: int, stride: int) -> list[np.ndarray]:
        """JPEG bytes of `count` frames of a video, every `stride`-th from `start`: uint8 arrays."""
        shard = self._shard(int(self.index.shard[video]))
        first = int(self.index.frame_start[video]) + start
        offset = shard.read(shard.offset_position + 8 * first, 8 * ((count - 1) * stride + 2), np.int64)
        data = shard.read(shard.jpeg_position + int(offset[0]), int(offset[-1] - offset[0]), np.uint8)
        bounds = offset - offset[0]
        return [data[bounds[k] : bounds[k + 1]] for k in range(0, len(bounds) - 1, stride)]

    def logmel(self, video: int, start: int, count: int) -> np.ndarray:
        """Log-mel rows of a video from row `start`: float32 [count, bands]."""
        shard = self._shard(int(self.index.shard[video]))
        bands = self.index.bands
        first = int(self.index.mel_start[video]) + start
        data = shard.read(shard.logmel_position + first * bands * 4, count * bands * 4, np.float32)
        return data.reshape(count, bands)

    def tokens(self, video: int, start: float, words: int = 16, seconds: float = 4.0) -> np.ndarray:
        """What is said from `start` (seconds): up to `words` consecutive tokens within `seconds` (section A.4): int32.

        A word counts if it begins and ends within that time.
        """
        shard = self._shard(int(self.index.shard[video]))
        first, count = int(self.index.text_start[video]), int(self.index.text_count[video])
        token, begin, end = (
            shard.read(position + 4 * first, 4 * count, dtype)
            for position, dtype in zip(shard.text_positions, (np.int32, np.float32, np.float32), strict=True)
        )
        first = int(np.searchsorted(begin, start))
        late = np.flatnonzero(end[first:] > start + seconds)
        return token[first:][: late[0] if len(late) else None][:words]

    def _shard(self, number: int) -> _OpenShard:
        with self._lock:
            if self._pid != os.getpid():  # a fork must not share file handles with its parent
                self._files, self._pid = OrderedDict(), os.getpid()
            if number in self._files:
                self._files.move_to_end(number)
                return self._files[number]
        opened = _OpenShard(self.index.folder / self.index.shard_names[number])  # slow on remote disks: not in the lock
        with self._lock:
            self._files[number] = opened
            if len(self._files) > self._limit:
                self._files.popitem(last=False)
        return opened


class _OpenShard:
    """Positions inside one shard file; bytes are read past HDF5, which takes one global lock for every read."""

    def __init__(self, path: Path) -> None:
        try:
            with h5py.File(path, "r") as file:
                self.offset_position = file["frames/offset"].id.get_offset() or 0
                self.jpeg_position = file["frames/jpeg"].id.get_offset() or 0
                self.logmel_position = file["audio/logmel"].id.get_offset() or 0
                self.text_positions = [file[f"text/{name}"].id.get_offset() or 0 for name in ("token", "start", "end")]
        except (OSError, KeyError) as error:
            raise UserError(f"shard {path} is damaged ({error}); run 'make preprocess' again to remake it") from error
        self.path = path
        self._file = os.open(path, os.O_RDONLY)

    def read(self, position: int, size: int, dtype: type) -> np.ndarray:
        data = os.pread(self._file, size, position)
        if len(data) < size:
            raise UserError(f"shard {self.path} ends early; run 'make preprocess' again to remake it")
        return np.frombuffer(data, dtype)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)
