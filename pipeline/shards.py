"""The shard layout, schema 1: write, open, check.

A shard is one plain HDF5 file of contiguous datasets (see SHARD), so that any clip is one slice of the file. Beside
the shards lie `index.h5` (one row per video of all shards, classes, statistics; the one file opened at start) and
`rejected.jsonl` (every video left out, and why).
"""

from __future__ import annotations

import json
import os
import resource
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pipeline.errors import UserError

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
MEL_ONE = 1 << 16
"""1.0 in the fixed point in which log-mel values are summed."""
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
            _write_strings(file, f"video/{name}", [getattr(record, name) for record in records])
        _write_strings(file, "rejected", [json.dumps(dict(row), ensure_ascii=False) for row in rejected])
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


def _write_strings(file: h5py.File, name: str, values: Sequence[Any] | np.ndarray) -> None:
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


def publish(partial: Path, path: Path) -> None:
    """Flush a finished temporary file to disk and give it its name: it appears whole or not at all."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(path)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    write_lines(path, [text])


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file atomically, from lines that end with their line breaks and come one at a time."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(lines)
    publish(partial, path)


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


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation per colour channel (0-255 scale) [3], and of the log-mel values."""

    pixel_mean: np.ndarray
    pixel_std: np.ndarray
    mel_mean: float
    mel_std: float

    @staticmethod
    def from_sums(pixels: Sequence[Sequence[int]], mels: Sequence[int]) -> Statistics:
        """From running sums: `pixels` per channel (n, sum x, sum x^2), `mels` the same of `fixed_point` values."""

        def moments(sums: Sequence[int], one: int) -> tuple[float, float]:
            n, total, square = map(int, sums)
            n = max(n, 1)
            variance = (n * square * one - total**2) / (n * one) ** 2  # whole numbers up to here: nothing cancels
            return total / (n * one), max(variance, 0.0) ** 0.5

        pixel = np.array([moments(channel, one=1) for channel in pixels])
        mel_mean, mel_std = moments(mels, one=MEL_ONE)
        return Statistics(pixel[:, 0], np.maximum(pixel[:, 1], 1.0), mel_mean, max(mel_std, 1e-3))


def mel_sums(bank: np.ndarray) -> np.ndarray:
    """(n, sum x, sum x^2) of log-mel values in fixed point: int64 [3], the same in whatever order they are added."""
    value = bank.astype(np.float64)
    total, square = (int(np.rint(x * MEL_ONE).astype(np.int64).sum()) for x in (value, value**2))
    return np.array([bank.size, total, square], np.int64)


def write_index(folder: Path, shards: Sequence[Path], attributes: Mapping[str, Any]) -> None:
    """Gather the video tables of all shards, sorted by id, into `index.h5`; statistics from the shards' running sums.

    The order, and so every plan drawn from it, does not depend on which video went into which shard.
    """
    rows: dict[str, list[np.ndarray]] = {}
    pixels, mels = np.zeros((3, 3), object), np.zeros(3, object)  # of Python's integers, which do not overflow
    for number, path in enumerate(shards):
        with h5py.File(path, "r") as file:
            n = len(file["video/id"])
            for name in ("frame", "mel", "text"):
                bounds = file[f"video/{name}"][:]
                rows.setdefault(f"{name}_start", []).append(bounds[:-1])
                rows.setdefault(f"{name}_count", []).append(np.diff(bounds))
            for name in ("id", "label", "split", "folds", "note", "height", "width", "silence"):
                rows.setdefault(name, []).append(file[f"video/{name}"][:])
            rows.setdefault("shard", []).append(np.full(n, number, np.int64))
            pixels += file.attrs["pixel_sums"].astype(object)
            mels += file.attrs["mel_sums"].astype(object)
    columns = {name: np.concatenate(parts) for name, parts in rows.items()}
    order = np.argsort(columns["id"], kind="stable")
    partial = folder / (INDEX + ".partial")
    with h5py.File(partial, "w", libver=("earliest", "v110")) as file:
        for name, values in columns.items():
            if values.dtype == object:
                _write_strings(file, f"video/{name}", values[order])
            else:
                file[f"video/{name}"] = values[order]
        _write_strings(file, "classes", sorted({label.decode() for label in columns["label"]} - {""}))
        _write_strings(file, "shard/name", [path.name for path in shards])
        file["shard/bytes"] = np.asarray([path.stat().st_size for path in shards], np.int64)
        sums = {"pixels": [[int(x) for x in channel] for channel in pixels], "mels": [int(x) for x in mels]}
        file.attrs.update({"schema": SCHEMA, "sums": json.dumps(sums), **attributes})
    publish(partial, folder / INDEX)


@dataclass
class Index:
    """The video table of a preprocessed data set, in memory; every column is an array [n_videos]."""

    folder: Path
    id: np.ndarray
    label: np.ndarray
    split: np.ndarray
    folds: np.ndarray
    shard: np.ndarray
    height: np.ndarray
    width: np.ndarray
    silence: np.ndarray
    frame_start: np.ndarray
    frame_count: np.ndarray
    mel_start: np.ndarray
    mel_count: np.ndarray
    text_start: np.ndarray
    text_count: np.ndarray
    classes: list[str]
    shard_names: list[str]
    shard_bytes: np.ndarray
    fps: int
    bands: int
    statistics: Statistics
    settings: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.id)

    @staticmethod
    def open(folder: Path) -> Index:
        """Read `index.h5` and check that every shard is there in full length.

        Raises UserError if the folder, the index or a shard is missing, cut short or of another schema.
        """
        path = folder / INDEX
        if not path.is_file():
            raise UserError(
                f"there are no shards in {folder} (no {INDEX}); make them with "
                f"'make preprocess DATASET={folder.name} SOURCE=<your videos>'"
            )
        try:
            with h5py.File(path, "r") as file:
                schema = file.attrs.get("schema")
                if schema != SCHEMA:
                    raise UserError(
                        f"{path} has schema {schema}, this version reads schema {SCHEMA}; "
                        "run 'make preprocess' into another folder, or use the version that wrote it"
                    )
                index = _read_index(folder, file)
        except (OSError, KeyError) as error:
            raise UserError(
                f"{path} is damaged ({error}); run 'make preprocess' again, finished shards are kept"
            ) from error
        for name, expected in zip(index.shard_names, index.shard_bytes, strict=True):
            shard = folder / name
            found = shard.stat().st_size if shard.is_file() else None
            if found != expected:
                state = (
                    "is missing" if found is None else f"has {found} bytes instead of {expected}: it was cut or changed"
                )
                raise UserError(f"shard {shard} {state}; run 'make preprocess' again, it remakes only what is damaged")
        return index

    def notes(self) -> list[str]:
        """What the decoder complained about, per video; read when asked for."""
        with h5py.File(self.folder / INDEX, "r") as file:
            return [note.decode() for note in file["video/note"][:]]

    def fold(self, number: int) -> Index:
        """The same videos with the splits of an official fold, from 1. Raises UserError if there is no such fold."""
        folds = [row.split(",") for row in self.folds]
        if number < 1 or any(len(row) < number or not row[0] for row in folds):
            known = min((len(row) if row[0] else 0 for row in folds), default=0)
            raise UserError(f"{self.folder} has no fold {number}; its videos have {known} official folds")
        return replace(self, split=np.asarray([row[number - 1] for row in folds], object))

    def starts(self, frames: int, stride: int, mel_frames: int = 0) -> np.ndarray:
        """How many start frames every video offers to a clip: int64 [n_videos], 0 where none fits.

        A clip takes `frames` frames, every `stride`-th, and with sound `mel_frames` rows from mel_position(start).
        """
        count = self.frame_count - ((frames - 1) * stride + 1) + 1
        if mel_frames:
            # the last start f with mel_position(f) + mel_frames <= mel_count, from f = fps * row / 100 and a step about
            last = (self.mel_count - mel_frames) * self.fps // 100 + 1
            for _ in range(3):
                last -= self.mel_position(last) + mel_frames > self.mel_count
            count = np.minimum(count, last + 1)
        return np.maximum(count, 0)

    def mel_position(self, start: np.ndarray) -> np.ndarray:
        """The log-mel row at which a clip that starts at frame `start` begins: round(100 tau), tau = start / fps."""
        return (200 * np.asarray(start) + self.fps) // (2 * self.fps)


def _read_index(folder: Path, file: h5py.File) -> Index:
    def text(name: str) -> np.ndarray:
        return np.asarray([value.decode() for value in file[name][:]], dtype=object)

    columns = {name: text(f"video/{name}") for name in ("id", "label", "split", "folds")}
    for name in ("shard", "height", "width"):
        columns[name] = file[f"video/{name}"][:].astype(np.int64)
    for name in ("frame_start", "frame_count", "mel_start", "mel_count", "text_start", "text_count"):
        columns[name] = file[f"video/{name}"][:]
    columns["silence"] = file["video/silence"][:]
    settings, sums = json.loads(file.attrs["settings"]), json.loads(file.attrs["sums"])
    return Index(
        folder=folder,
        **columns,
        classes=list(text("classes")),
        shard_names=list(text("shard/name")),
        shard_bytes=file["shard/bytes"][:],
        fps=settings["fps"],
        bands=settings["bands"],
        statistics=Statistics.from_sums(sums["pixels"], sums["mels"]),
        settings=settings,
    )


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


def read_rejected(folder: Path) -> Iterator[dict[str, str]]:
    """The rows of rejected.jsonl, one at a time: id, path, reason."""
    path = folder / REJECTED
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def dump_row(row: Mapping[str, Any]) -> str:
    """One JSON line."""
    return json.dumps(dict(row), ensure_ascii=False) + "\n"
