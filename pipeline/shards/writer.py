"""Write a shard from the decoded videos that it holds."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gdt.common.errors import LeftOut
from gdt.pipeline.shards.container import Files, text_array, write
from gdt.pipeline.shards.layout import BANDS, COLUMNS, ROWS, WORDS, table_checksum, words_checksum
from gdt.pipeline.shards.rejected import rejected_column


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
    path: Path,
    records: Sequence[VideoRecord],
    sums: Mapping[str, np.ndarray],
    scratch: Path,
    rejected: Sequence[LeftOut] = (),
    attributes: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Write a shard in the folder `scratch`, then move it to `path`; returns its checksum, `container.Header.crc32`.

    `sums` are those of the datasets sums/; `attributes` go into the first line of the file.
    """
    frames = Files([record.jpeg for record in records], np.uint8)
    banks = Files([record.logmel for record in records], np.float32, (BANDS,))
    words: list[list[np.ndarray]] = [list(map(np.asarray, record.words, WORDS.values())) for record in records]
    table: dict[str, np.ndarray] = {
        "video/frame": _bounds([len(record.sizes) for record in records]),
        "video/mel": _bounds([record.logmel.stat().st_size // (4 * BANDS) for record in records]),
        "video/text": _bounds([len(columns[0]) for columns in words]),
        **{f"sums/{name}": values for name, values in sums.items()},
        "rejected": rejected_column(rejected),
    }
    for name, column in COLUMNS.items():
        values = [record.columns.get(name, column.default) for record in records]
        table[f"video/{name}"] = text_array(values) if column.dtype is str else np.array(values, column.dtype)
    arrays: dict[str, np.ndarray | Files] = {
        "frames/jpeg": frames,
        "frames/offset": _bounds(np.concatenate([np.zeros(0, np.int64), *(record.sizes for record in records)])),
        "frames/crc32": np.array([value for record in records for value in _frame_checksums(record)], np.uint32),
        "audio/logmel": banks,
        "audio/crc32": np.array(_row_checksums(banks), np.uint32),
        "text/crc32": np.array([words_checksum(*columns) for columns in words], np.uint32),
    }
    for k, (name, dtype) in enumerate(WORDS.items()):
        arrays[f"text/{name}"] = np.concatenate([np.zeros(0, dtype), *(columns[k] for columns in words)])
    return write(path, arrays | table, {**attributes, "table": table_checksum(table)}, scratch)


def _bounds(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where each of some consecutive parts starts, and the end of the last: int64 [n + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _frame_checksums(record: VideoRecord) -> Iterator[int]:
    with record.jpeg.open("rb") as file:
        for size in record.sizes.tolist():
            yield zlib.crc32(file.read(size))


def _row_checksums(banks: Files) -> list[int]:
    """The checksum of every ROWS log-mel rows, across videos."""
    checksums: list[int] = []
    piece = ROWS * 4 * BANDS  # bytes
    rest = b""
    for block in banks.blocks():
        rest += block
        whole = len(rest) // piece * piece
        checksums += [zlib.crc32(rest[at : at + piece]) for at in range(0, whole, piece)]
        rest = rest[whole:]
    if rest:
        checksums.append(zlib.crc32(rest))
    return checksums
