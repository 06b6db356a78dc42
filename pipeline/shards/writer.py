"""Shard writer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gdt.pipeline.shards.layout import COLUMNS, PIECES, ROWS, SHARD, WORDS, words_checksum
from gdt.pipeline.shards.seal import SCHEMA, write_strings, writing_sealed

_BLOCK = 1 << 24


@dataclass(frozen=True)
class VideoRecord:
    """One video to write into a shard; its frames and log-mel rows are in files, not in memory.

    Raises TypeError for unknown columns, and for missing ones without a default.
    """

    columns: Mapping[str, Any]
    """Its row of VideoTable, by name."""
    jpeg: Path
    """File of the concatenated JPEG frames; deleted once it is in the shard."""
    sizes: np.ndarray
    """Bytes of each frame, int64 [n_frames]."""
    logmel: Path
    """File of float32 [n_mel, bands], empty without sound; deleted once it is in the shard."""
    words: Sequence[Sequence[float]] = ((),) * len(WORDS)
    """The columns WORDS, [n_words] each."""

    def __post_init__(self) -> None:
        row = {name: column.default for name, column in COLUMNS.items()} | dict(self.columns)
        wrong = [name for name, value in row.items() if value is MISSING or name not in COLUMNS]
        if wrong:
            raise TypeError(f"unknown or missing columns of the video table: {', '.join(wrong)}")
        object.__setattr__(self, "columns", row)


def write_shard(
    path: Path, records: Sequence[VideoRecord], rejected: Sequence[Mapping[str, str]], attributes: Mapping[str, Any],
    content: str, bands: int, scratch: Path,
) -> None:  # fmt: skip
    """Write a shard in the folder `scratch`, then move it to `path`."""
    with writing_sealed(path, PIECES, scratch, content=content) as file:

        def write(name: str, values: Any) -> None:
            if SHARD[name].dtype is str:
                write_strings(file, name, values)
            else:
                file.create_dataset(name, data=np.asarray(values, SHARD[name].dtype))

        sizes = np.concatenate([np.zeros(0, np.int64), *(record.sizes for record in records)])
        rows = [record.logmel.stat().st_size // (4 * bands) for record in records]
        jpeg = file.create_dataset("frames/jpeg", (int(sizes.sum()),), np.uint8)
        logmel = file.create_dataset("audio/logmel", (sum(rows), bands), np.float32)
        write("frames/crc32", _fill_frames(jpeg, records))
        write("audio/crc32", _fill_rows(logmel, records))
        write("frames/offset", np.cumsum(np.insert(sizes, 0, 0)))
        write("video/frame", np.cumsum([0, *(len(record.sizes) for record in records)]))
        write("video/mel", np.cumsum([0, *rows]))
        write("video/text", np.cumsum([0, *(len(record.words[0]) for record in records)]))
        types = [SHARD[f"text/{name}"].dtype for name in WORDS]
        words: list[list[np.ndarray]] = [list(map(np.asarray, record.words, types)) for record in records]
        for name, *columns in zip(WORDS, *words, strict=True):
            write(f"text/{name}", np.concatenate([[], *columns]))
        write("text/crc32", [words_checksum(*columns) for columns in words])
        for name in COLUMNS:
            write(f"video/{name}", [record.columns[name] for record in records])
        write("rejected", [json.dumps(dict(row), ensure_ascii=False) for row in rejected])
        file.attrs.update({"schema": SCHEMA, **attributes})


def _fill_frames(dataset: h5py.Dataset, records: Sequence[VideoRecord]) -> list[int]:
    """Move the JPEG files of the records into a dataset; return the checksum of every frame."""
    checksums: list[int] = []
    position = 0
    for record in records:
        ends = np.cumsum(record.sizes)
        with record.jpeg.open("rb") as file:
            first = 0
            while first < len(ends):
                begin = int(ends[first] - record.sizes[first])
                last = max(first + 1, int(np.searchsorted(ends, begin + _BLOCK, side="right")))
                block = memoryview(file.read(int(ends[last - 1]) - begin))
                bounds = [0, *(ends[first:last] - begin).tolist()]
                checksums += [zlib.crc32(block[a:b]) for a, b in pairwise(bounds)]
                dataset[position : position + len(block)] = np.frombuffer(block, np.uint8)
                position += len(block)
                first = last
        record.jpeg.unlink()
    _require_full(dataset, position)
    return checksums


def _fill_rows(dataset: h5py.Dataset, records: Sequence[VideoRecord]) -> list[int]:
    """Move the log-mel files of the records into a dataset; return the checksum of every ROWS rows."""
    checksums: list[int] = []
    row = 4 * dataset.shape[1]
    position = value = 0
    for record in records:
        with record.logmel.open("rb") as file:
            # pieces end at multiples of ROWS of the shard, across videos
            while block := file.read((ROWS - position % ROWS) * row):
                values = np.frombuffer(block, np.float32).reshape(-1, dataset.shape[1])
                dataset[position : position + len(values)] = values
                position += len(values)
                value = zlib.crc32(block, value)
                if position % ROWS == 0:
                    checksums.append(value)
                    value = 0
        record.logmel.unlink()
    if position % ROWS:
        checksums.append(value)
    _require_full(dataset, position)
    return checksums


def _require_full(dataset: h5py.Dataset, position: int) -> None:
    if position != len(dataset):
        raise RuntimeError(f"{dataset.name}: {position} rows written, {len(dataset)} expected")
