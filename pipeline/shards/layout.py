"""The shard layout, schema 1: write, open, check.

A shard is one plain HDF5 file of contiguous datasets (see SHARD), so that any clip is one slice of the file. Beside
the shards lie `index.h5` (one row per video of all shards, classes, statistics; the one file opened at start) and
`rejected.jsonl` (every video left out, and why).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pipeline.files import publish

SCHEMA = 1
INDEX = "index.h5"
REJECTED = "rejected.jsonl"
MEL_FLOOR = float(np.log(np.finfo(np.float64).eps))
"""The log-mel value of an energy of exactly zero, as in digital silence."""

SHARD = {
    "frames/jpeg": "uint8 [bytes]: all frames of all videos, baseline 4:2:0 JPEG, one after another",
    "frames/offset": "int64 [n_frames + 1]: where each frame starts in frames/jpeg",
    "audio/logmel": "float32 [n_mel, bands]: log-mel bank at 100 frames/s, not normalised",
    "video/frame": "int64 [n_videos + 1]: where each video's frames start in frames/offset",
    "video/mel": "int64 [n_videos + 1]: where each video's rows start in audio/logmel",
    "video/id": "str [n_videos]",
    "video/label": "str [n_videos]: class name, empty where there is none",
    "video/split": "str [n_videos]: train, val or test",
    "video/folds": "str [n_videos]: the split in each official fold, as in train,test,unused; empty without folds",
    "video/height": "int32 [n_videos]: of the stored frames, pixels",
    "video/width": "int32 [n_videos]",
    "video/silence": "float32 [n_videos]: seconds of the sound that are silent",
    "video/note": "str [n_videos]: what the decoder complained about, empty where it did not",
    "video/text": "int64 [n_videos + 1]: where each video's words start in text/token",
    "text/token": "int32 [n_words]: rows of the word2vec file; no words where there are no captions",
    "text/start": "float32 [n_words]: seconds from the start of the video",
    "text/end": "float32 [n_words]",
    "rejected": "str [n_rejected]: JSON of id, path and reason of the videos that were left out",
}
"""Every dataset carries its checksum as the attribute `crc32`."""
_TEXT = h5py.string_dtype()
_BLOCK = 1 << 24


def shard_folder(dataset: str) -> Path:
    """Where the shards of a data set lie unless another folder is named."""
    return Path("data/shards") / dataset


@dataclass(frozen=True)
class VideoRecord:
    """One video on its way into a shard; frames and log-mel rows lie in files, not in memory."""

    id: str
    label: str
    split: str
    folds: str
    height: int
    width: int
    silence: float
    note: str
    jpeg: Path
    """File of the JPEG frames, one after another; removed once it is in the shard."""
    sizes: np.ndarray
    """Bytes of each frame, int64 [n_frames]."""
    logmel: Path
    """File of float32 [n_mel, bands]; empty where the video has no sound; removed once it is in the shard."""
    token: Sequence[int] = ()
    start: Sequence[float] = ()
    end: Sequence[float] = ()


def write_shard(
    path: Path,
    records: Sequence[VideoRecord],
    rejected: Sequence[Mapping[str, str]],
    attributes: Mapping[str, Any],
    bands: int,
    scratch: Path,
) -> None:
    """Write a shard in the folder `scratch`, and give it its name when it is complete and on disk."""
    partial = scratch / path.name
    with h5py.File(partial, "w", libver=("earliest", "v110")) as file:

        def numbers(name: str, values: Any, dtype: type) -> None:
            file.create_dataset(name, data=np.asarray(values, dtype))

        def bounds(name: str, counts: Sequence[int]) -> None:
            numbers(name, np.cumsum([0, *counts]), np.int64)

        sizes = np.concatenate([np.zeros(0, np.int64), *(record.sizes for record in records)])
        rows = [record.logmel.stat().st_size // (4 * bands) for record in records]
        jpeg = file.create_dataset("frames/jpeg", (int(sizes.sum()),), np.uint8)
        logmel = file.create_dataset("audio/logmel", (sum(rows), bands), np.float32)
        _fill(jpeg, [record.jpeg for record in records])
        _fill(logmel, [record.logmel for record in records])
        numbers("frames/offset", np.concatenate([[0], np.cumsum(sizes)]), np.int64)
        bounds("video/frame", [len(record.sizes) for record in records])
        bounds("video/mel", rows)
        bounds("video/text", [len(record.token) for record in records])
        for name, dtype in (("token", np.int32), ("start", np.float32), ("end", np.float32)):
            numbers(f"text/{name}", [value for record in records for value in getattr(record, name)], dtype)
        for name, dtype in (("height", np.int32), ("width", np.int32), ("silence", np.float32)):
            numbers(f"video/{name}", [getattr(record, name) for record in records], dtype)
        for name in ("id", "label", "split", "folds", "note"):
            write_strings(file, f"video/{name}", [getattr(record, name) for record in records])
        write_strings(file, "rejected", [json.dumps(dict(row), ensure_ascii=False) for row in rejected])
        for name in SHARD.keys() - {"frames/jpeg", "audio/logmel"}:
            file[name].attrs["crc32"] = checksum(file[name])
        attributes = {"schema": SCHEMA, **attributes}
        file.attrs.update(attributes | {"crc32": attributes_checksum(attributes)})
    publish(partial, path)


def _fill(dataset: h5py.Dataset, files: Sequence[Path]) -> None:
    """Copy files into a contiguous dataset that they fill exactly, one after another, and remove them."""
    row = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
    checksum, position = 0, 0
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK // row * row):
                values = np.frombuffer(block, dataset.dtype).reshape(-1, *dataset.shape[1:])
                dataset[position : position + len(values)] = values
                checksum = zlib.crc32(block, checksum)
                position += len(values)
        path.unlink()
    if position != len(dataset):
        raise RuntimeError(f"{dataset.name}: {position} rows were written but {len(dataset)} expected")
    dataset.attrs["crc32"] = checksum


def write_strings(file: h5py.File, name: str, values: Sequence[Any] | np.ndarray) -> None:
    file.create_dataset(name, (len(values),), _TEXT, values if len(values) else None)


def attributes_checksum(attributes: Mapping[str, Any]) -> int:
    """CRC-32 of the attributes of a shard, without that of their own checksum."""
    values = {name: np.asarray(value).tolist() for name, value in attributes.items() if name != "crc32"}
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def checksum(dataset: h5py.Dataset) -> int:
    """CRC-32 of the bytes of a dataset, read a block at a time; of strings, joined by zeros."""
    if dataset.dtype == object:
        return zlib.crc32(b"\0".join(dataset[:]))
    value = 0
    rows = max(1, _BLOCK * len(dataset) // max(dataset.nbytes, 1))
    for first in range(0, len(dataset), rows):
        value = zlib.crc32(dataset[first : first + rows].tobytes(), value)
    return value


def shard_attributes(path: Path) -> dict[str, Any] | None:
    """Attributes of a complete shard of this schema; None where it is absent, damaged or of another schema."""
    try:
        with h5py.File(path, "r") as file:
            attributes = dict(file.attrs)
    except Exception:  # h5py meets damage with errors of many kinds
        return None
    if attributes.get("schema") != SCHEMA or attributes.get("crc32") != attributes_checksum(attributes):
        return None
    return attributes


def shard_rejected(path: Path) -> list[dict[str, str]]:
    """The videos of a shard that were left out: id, path below the source folder, reason."""
    with h5py.File(path, "r") as file:
        return [json.loads(row) for row in file["rejected"][:]]


def read_rejected(folder: Path) -> Iterator[dict[str, str]]:
    """The rows of rejected.jsonl, one at a time: id, path, reason."""
    path = folder / REJECTED
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
