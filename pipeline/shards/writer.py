"""Shard writer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gdt.pipeline.shards.container import Values, text_array, write
from gdt.pipeline.shards.layout import BANDS, COLUMNS, ROWS, WORDS, table_checksum, words_checksum


@dataclass(frozen=True)
class VideoRecord:
    """One video to write into a shard; its frames and log-mel rows are in files, not in memory."""

    columns: Mapping[str, Any]
    """Its row of VideoTable, by name."""
    jpeg: Path
    """File of the concatenated JPEG frames."""
    sizes: np.ndarray
    """Bytes of each frame, int64 [n_frames]."""
    logmel: Path
    """File of float32 [n_mel, BANDS], empty without sound."""
    words: Sequence[Sequence[float]] = ((),) * len(WORDS)
    """The columns WORDS, [n_words] each."""


def write_shard(
    path: Path, records: Sequence[VideoRecord], sums: Mapping[str, np.ndarray], scratch: Path,
    rejected: Sequence[Mapping[str, str]] = (), notes: Mapping[str, str] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write a shard in the folder `scratch`, then move it to `path`.

    `sums` are those of the datasets sums/; `notes` go into the first line of the file. Raises TypeError for columns
    that the video table does not have, or that are missing and have no default.
    """
    if unknown := {name for record in records for name in record.columns} - COLUMNS.keys():
        raise TypeError(f"unknown columns of the video table: {', '.join(sorted(unknown))}")
    frames = [_content(record.jpeg, np.uint8) for record in records]
    banks = [_content(record.logmel, np.float32).reshape(-1, BANDS) for record in records]
    words: list[list[np.ndarray]] = [list(map(np.asarray, record.words, WORDS.values())) for record in records]
    table: dict[str, np.ndarray] = {
        "video/frame": _bounds([len(record.sizes) for record in records]),
        "video/mel": _bounds([len(bank) for bank in banks]),
        "video/text": _bounds([len(columns[0]) for columns in words]),
        **{f"sums/{name}": values for name, values in sums.items()},
        "rejected": text_array([json.dumps(dict(row), ensure_ascii=False) for row in rejected]),
    }
    for name, column in COLUMNS.items():
        values = [record.columns.get(name, column.default) for record in records]
        table[f"video/{name}"] = text_array(values) if column.dtype is str else np.array(values, column.dtype)
    arrays: dict[str, Values] = {
        "frames/jpeg": [np.zeros(0, np.uint8), *frames],
        "frames/offset": _bounds(np.concatenate([np.zeros(0, np.int64), *(record.sizes for record in records)])),
        "frames/crc32": np.array(_frame_checksums(frames, [record.sizes for record in records]), np.uint32),
        "audio/logmel": [np.zeros((0, BANDS), np.float32), *banks],
        "audio/crc32": np.array(_row_checksums(banks), np.uint32),
        "text/crc32": np.array([words_checksum(*columns) for columns in words], np.uint32),
    }
    for k, (name, dtype) in enumerate(WORDS.items()):
        arrays[f"text/{name}"] = [np.zeros(0, dtype), *(columns[k] for columns in words)]
    write(path, arrays | table, {**notes, "table": table_checksum(table)}, scratch)


def _content(path: Path, dtype: type) -> np.ndarray:
    """A file as an array that is read when used."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)


def _bounds(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where each of some consecutive parts starts, and the end of the last: int64 [n + 1]."""
    return np.cumsum([0, *counts], dtype=np.int64)


def _frame_checksums(frames: Sequence[np.ndarray], sizes: Sequence[np.ndarray]) -> list[int]:
    """The checksum of every frame of the videos."""
    return [
        zlib.crc32(video[begin:end].data) for video, each in zip(frames, sizes, strict=True)
        for begin, end in pairwise(_bounds(each))
    ]  # fmt: skip


def _row_checksums(banks: Sequence[np.ndarray]) -> list[int]:
    """The checksum of every ROWS log-mel rows, across videos."""
    checksums: list[int] = []
    row = 0
    for bank in banks:
        first = 0
        while first < len(bank):
            count = min(ROWS - row % ROWS, len(bank) - first)
            unfinished = checksums[row // ROWS :]
            checksums[row // ROWS :] = [zlib.crc32(bank[first : first + count].data, *unfinished)]
            first, row = first + count, row + count
    return checksums
