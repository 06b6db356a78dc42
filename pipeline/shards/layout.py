"""The shard layout, schema 2: write, open, check.

A shard is one plain HDF5 file of contiguous datasets (see SHARD), so that any clip is one slice of the file. Every byte
of it is under a checksum: what is read in pieces (PIECES) piece by piece, all else by the file's seal. Beside the
shards lie `index.h5` (one row per video of all shards, classes, statistics; the one file opened at start, sealed too)
and `rejected.jsonl` (every video left out, and why).
"""

from __future__ import annotations

import json
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gdt.common.files import publish, require_readable
from gdt.pipeline.shards.seal import SCHEMA, Damaged, check_seal, create, open_sealed, seal

INDEX = "index.h5"
REJECTED = "rejected.jsonl"
MEL_FLOOR = float(np.log(np.finfo(np.float64).eps))
"""The log-mel value of an energy of exactly zero, as in digital silence."""

GENERATED = ("synthetic", "synthetic-hard")
DATASETS = ("audioset", "folder", "hmdb51", "howto100m", "ig65m", "kinetics", *GENERATED, "ucf101", "vggsound")
"""What can be preprocessed; preprocess/datasets says how."""

SHARD = {
    "frames/jpeg": "uint8 [bytes]: all frames of all videos, baseline 4:2:0 JPEG, one after another",
    "frames/offset": "int64 [n_frames + 1]: where each frame starts in frames/jpeg",
    "frames/crc32": "uint32 [n_frames]: CRC-32 of each frame's bytes",
    "audio/logmel": "float32 [n_mel, bands]: log-mel bank at 100 frames/s, not normalised",
    "audio/crc32": "uint32 [n_mel / 100, rounded up]: CRC-32 of the bytes of rows 100 k to 100 k + 99",
    "video/frame": "int64 [n_videos + 1]: where each video's frames start in frames/offset",
    "video/mel": "int64 [n_videos + 1]: where each video's rows start in audio/logmel",
    "video/id": "str [n_videos]",
    "video/label": "str [n_videos]: class name, empty where there is none; as it was when the shard was made, what "
    "counts is in index.h5",
    "video/split": "str [n_videos]: train, val or test; what counts is in index.h5, too",
    "video/folds": "str [n_videos]: the split in each official fold, as in train,test,unused; empty without folds; "
    "what counts is in index.h5, too",
    "video/height": "int32 [n_videos]: of the stored frames, pixels",
    "video/width": "int32 [n_videos]",
    "video/silence": "float32 [n_videos]: seconds of the sound that are silent",
    "video/note": "str [n_videos]: what the decoder complained about, empty where it did not",
    "video/text": "int64 [n_videos + 1]: where each video's words start in text/token",
    "text/token": "int32 [n_words]: rows of the word2vec file; no words where there are no captions",
    "text/start": "float32 [n_words]: seconds from the start of the video",
    "text/end": "float32 [n_words]",
    "text/crc32": "uint32 [n_videos]: CRC-32 of the bytes of each video's tokens, starts and ends, one after another",
    "rejected": "str [n_rejected]: JSON of id, path and reason of the videos that were left out",
}
PIECES = tuple(name for name in SHARD if name.startswith(("frames/", "audio/", "text/")))
"""What is read a piece at a time, while training. An offset or a checksum that is wrong makes a piece wrong, too."""
WORDS = {"token": np.int32, "start": np.float32, "end": np.float32}
"""The columns of text/."""
ROWS = 100
"""Rows of audio/logmel under one checksum."""
_TEXT = h5py.string_dtype()
_BLOCK = 1 << 24


def shard_folder(dataset: str, named: Path | None = None) -> Path:
    """Where the shards of a data set lie unless another folder is `named`."""
    return named or Path("data/shards") / dataset


def making(folder: Path) -> str:
    """The command that makes the shards of a folder, as it can be typed but for where the videos are."""
    if folder == shard_folder("demo"):
        return "make demo"
    dataset = folder.name if folder.name in DATASETS else "folder"
    source = "" if dataset in GENERATED else " SOURCE=<your videos>"
    elsewhere = "" if folder == shard_folder(dataset) else f' ARGS="--destination {shlex.quote(str(folder))}"'
    return f"make preprocess DATASET={dataset}{source}{elsewhere}"


def removal(folder: Path, full: bool = False) -> str:
    """The command that removes what is damaged in a folder, as it can be typed."""
    return f"`gdt verify --shards {shlex.quote(str(folder))}{' --full' if full else ''} --remove`"


def remake(folder: Path) -> str:
    """What to do about a damaged shard in a folder."""
    return f"{removal(folder)} removes what is damaged, and the same 'make preprocess' command as before makes it again"


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

    @property
    def words(self) -> tuple[np.ndarray, ...]:
        """Tokens, starts and ends as they are stored, each [n_words]."""
        return tuple(np.asarray(getattr(self, name), dtype) for name, dtype in WORDS.items())


def write_shard(
    path: Path,
    records: Sequence[VideoRecord],
    rejected: Sequence[Mapping[str, str]],
    attributes: Mapping[str, Any],
    content: str,
    bands: int,
    scratch: Path,
) -> None:
    """Write a shard in the folder `scratch`, and give it its name when it is complete and on disk."""
    partial = scratch / path.name
    with create(partial) as file:

        def numbers(name: str, values: Any, dtype: type) -> None:
            file.create_dataset(name, data=np.asarray(values, dtype))

        def bounds(name: str, counts: Sequence[int]) -> None:
            numbers(name, np.cumsum([0, *counts]), np.int64)

        sizes = np.concatenate([np.zeros(0, np.int64), *(record.sizes for record in records)])
        rows = [record.logmel.stat().st_size // (4 * bands) for record in records]
        jpeg = file.create_dataset("frames/jpeg", (int(sizes.sum()),), np.uint8)
        logmel = file.create_dataset("audio/logmel", (sum(rows), bands), np.float32)
        numbers("frames/crc32", _fill_frames(jpeg, records), np.uint32)
        numbers("audio/crc32", _fill_rows(logmel, records), np.uint32)
        numbers("frames/offset", np.concatenate([[0], np.cumsum(sizes)]), np.int64)
        bounds("video/frame", [len(record.sizes) for record in records])
        bounds("video/mel", rows)
        bounds("video/text", [len(record.token) for record in records])
        words = [record.words for record in records]
        for k, (name, dtype) in enumerate(WORDS.items()):
            numbers(f"text/{name}", np.concatenate([np.zeros(0, dtype), *(columns[k] for columns in words)]), dtype)
        numbers("text/crc32", [words_checksum(*columns) for columns in words], np.uint32)
        for name, dtype in (("height", np.int32), ("width", np.int32), ("silence", np.float32)):
            numbers(f"video/{name}", [getattr(record, name) for record in records], dtype)
        for name in ("id", "label", "split", "folds", "note"):
            write_strings(file, f"video/{name}", [getattr(record, name) for record in records])
        write_strings(file, "rejected", [json.dumps(dict(row), ensure_ascii=False) for row in rejected])
        file.attrs.update({"schema": SCHEMA, **attributes})
    seal(partial, PIECES, content=content)
    publish(partial, path)


def _fill_frames(dataset: h5py.Dataset, records: Sequence[VideoRecord]) -> list[int]:
    """Move the JPEG files of the records into a dataset, one after another; returns the checksum of every frame."""
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
    """Move the log-mel files of the records into a dataset; returns the checksum of every ROWS of its rows."""
    checksums: list[int] = []
    row = 4 * dataset.shape[1]
    position = value = 0
    for record in records:
        with record.logmel.open("rb") as file:
            # a piece ends where the shard's rows reach a multiple of ROWS, whichever videos it is made of
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
        raise RuntimeError(f"{dataset.name}: {position} rows were written but {len(dataset)} expected")


def words_checksum(token: np.ndarray, start: np.ndarray, end: np.ndarray) -> int:
    """CRC-32 of the words of one video, arrays of the types in WORDS."""
    return zlib.crc32(end.tobytes(), zlib.crc32(start.tobytes(), zlib.crc32(token.tobytes())))


def write_strings(file: h5py.File, name: str, values: Sequence[Any] | np.ndarray) -> None:
    file.create_dataset(name, (len(values),), _TEXT, values if len(values) else None)


def shard_content(path: Path) -> str | None:
    """What the shard was made of, as its plan called it; None where it is absent, damaged or of another schema.

    Damage in the frames, the sound and the words is left to those who read them. Raises UserError where the disk, and
    not what is on it, keeps the shard from being read.
    """
    try:
        return str(check_seal(path).notes["content"])
    except Damaged:
        return None
    except OSError as error:
        require_readable(f"shard {path}", error)
        return None


def shard_rejected(path: Path) -> list[dict[str, str]]:
    """The videos of a shard that were left out: id, path below the source folder, reason."""
    with open_sealed(path) as file:
        return [json.loads(row) for row in file["rejected"][:]]


def read_rejected(folder: Path) -> Iterator[dict[str, str]]:
    """The rows of rejected.jsonl, one at a time: id, path, reason."""
    path = folder / REJECTED
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
