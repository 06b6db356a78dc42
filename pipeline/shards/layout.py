"""The layout of shards: the table of datasets from which they are written, indexed and read.

A shard is an HDF5 file of contiguous datasets (see SHARD), so any clip is one slice of the file; container.py says how
such a file is checked and read. The same folder holds `index.h5` (one row per video of all shards, with label, split
and folds, which stand there alone; the only file opened at start) and `rejected.jsonl` (every rejected video with the
reason).

To add a column of the video table, add a line with a default to `VideoTable`, and fill it in the VideoRecord
(preprocess/worker.py). Existing shards and indexes get the default.
"""

import zlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

INDEX = "index.h5"
REJECTED = "rejected.jsonl"
SPLITS = ("train", "val", "test")
BANDS = 40
"""Bands of log-mel banks."""
MEL_RATE = 100
"""Their rows per second."""
MEL_FLOOR = float(np.log(np.finfo(np.float64).eps))
"""The log-mel value of zero energy, digital silence."""


class Stored(NamedTuple):
    """A dataset of a shard."""

    dtype: type
    """A NumPy type, or str."""
    description: str
    default: Any = MISSING
    """Default value of a column of the video table."""

    def filled(self, n: int) -> np.ndarray:
        """The column of n videos in a file that lacks it, as it would be stored."""
        if self.dtype is str:
            return np.full(n, self.default.encode(), "S")
        return np.full(n, self.default, self.dtype)


@dataclass(kw_only=True)
class VideoTable:
    """Columns of shards and index, one row per video, [n_videos] each; shards store them in this order."""

    height: Annotated[np.ndarray, Stored(np.int32, "of the stored frames, pixels")]
    width: Annotated[np.ndarray, Stored(np.int32, "of the stored frames, pixels")]
    silence: Annotated[np.ndarray, Stored(np.float32, "silent seconds of the sound", 0.0)]
    id: Annotated[np.ndarray, Stored(str, "name of the video; the index is sorted by it")]
    note: Annotated[np.ndarray, Stored(str, "decoder warnings, or empty", "")]
    hash: Annotated[np.ndarray, Stored(str, "BLAKE2b of the file, or empty", "")]
    segment: Annotated[np.ndarray, Stored(str, "seconds of the file that were cut out, or empty", "")]


COLUMNS: dict[str, Stored] = {
    name: kind.__metadata__[0] for name, kind in get_type_hints(VideoTable, include_extras=True).items()
}
SHARD: dict[str, Stored] = {
    "frames/jpeg": Stored(np.uint8, "[bytes]: all frames of all videos, baseline 4:2:0 JPEG, one after another"),
    "frames/offset": Stored(np.int64, "[n_frames + 1]: where each frame starts in frames/jpeg"),
    "frames/crc32": Stored(np.uint32, "[n_frames]: CRC-32 of each frame's bytes"),
    "audio/logmel": Stored(np.float32, "[n_mel, bands]: log-mel bank at 100 frames/s, not normalised"),
    "audio/crc32": Stored(np.uint32, "[n_mel / 100, rounded up]: CRC-32 of the bytes of rows 100 k to 100 k + 99"),
    "text/token": Stored(np.int32, "[n_words]: rows of the word2vec file; no words without captions"),
    "text/start": Stored(np.float32, "[n_words]: seconds from the start of the video"),
    "text/end": Stored(np.float32, "[n_words]: seconds from the start of the video"),
    "text/crc32": Stored(np.uint32, "[n_videos]: CRC-32 of each video's tokens, starts and ends, one after another"),
    "video/frame": Stored(np.int64, "[n_videos + 1]: where each video's frames start in frames/offset"),
    "video/mel": Stored(np.int64, "[n_videos + 1]: where each video's rows start in audio/logmel"),
    "video/text": Stored(np.int64, "[n_videos + 1]: where each video's words start in text/token"),
    **{f"video/{name}": stored for name, stored in COLUMNS.items()},
    "sums/pixels": Stored(np.int64, "[3, 3]: pixels, sum and sum of squares of each colour channel"),
    "sums/mels": Stored(np.int64, "[3]: log-mel values, sum and sum of squares in fixed point (statistics.py)"),
    "rejected": Stored(str, "[n_rejected]: JSON of each rejected video (rejected.py)"),
}
PARTS = ("frame", "mel", "text")
"""A video has a contiguous range of frames, log-mel rows and words; video/<part> holds its bounds."""
WORDS = {name: SHARD[f"text/{name}"].dtype for name in ("token", "start", "end")}
"""Columns of text/ with their types, in the order of their checksum."""
PIECES = ("frames/", "audio/", "text/")
"""Prefixes of the datasets that are read in pieces, each with its checksum."""
ROWS = 100
"""Rows of audio/logmel per checksum."""


def words_checksum(*columns: np.ndarray) -> int:
    """CRC-32 of the words of one video, given the columns WORDS."""
    return zlib.crc32(b"".join(column.tobytes() for column in columns))


def table_checksum(table: Mapping[str, np.ndarray]) -> str:
    """CRC-32 of the datasets that the index gathers, in hexadecimal."""
    return f"{zlib.crc32(b''.join(table[name].tobytes() for name in sorted(table))):08x}"


def video_table(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns of a shard or an index; those that it was written without have their defaults."""
    table = {}
    for name, column in COLUMNS.items():
        stored = arrays.get(f"video/{name}")
        table[name] = column.filled(len(arrays["video/id"])) if stored is None else stored
    return table
