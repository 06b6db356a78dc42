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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    "video/height": "int32 [n_videos]: of the stored frames, pixels",
    "video/width": "int32 [n_videos]",
    "video/note": "str [n_videos]: what the decoder complained about, empty where it did not",
}
_TEXT = h5py.string_dtype()
_BLOCK = 1 << 24


def shard_folder(dataset: str) -> Path:
    """Where the shards of a data set lie unless another folder is named."""
    return Path("data/shards") / dataset


@dataclass(frozen=True)
class VideoRecord:
    """One video on its way into a shard; frames lie in a file of concatenated JPEGs, not in memory."""

    id: str
    label: str
    split: str
    height: int
    width: int
    note: str
    jpeg: Path
    """File of the JPEG frames, one after another."""
    sizes: np.ndarray
    """Bytes of each frame, int64 [n_frames]."""
    logmel: np.ndarray
    """float32 [n_mel, bands]; no rows where the video has no sound."""


def write_shard(path: Path, records: Sequence[VideoRecord], attributes: Mapping[str, Any]) -> None:
    """Write a shard under a temporary name and rename it when it is complete and on disk."""
    partial = path.with_name(path.name + ".partial")
    sizes = np.concatenate([record.sizes for record in records]) if records else np.zeros(0, np.int64)
    bands = records[0].logmel.shape[1] if records else 40
    with h5py.File(partial, "w", libver=("earliest", "v110")) as file:
        offset = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        jpeg = file.create_dataset("frames/jpeg", (int(offset[-1]),), np.uint8)
        checksum, position = 0, 0
        for record in records:
            with record.jpeg.open("rb") as frames:
                while block := frames.read(_BLOCK):
                    jpeg[position : position + len(block)] = np.frombuffer(block, np.uint8)
                    checksum = zlib.crc32(block, checksum)
                    position += len(block)
        if position != offset[-1]:
            raise RuntimeError(f"{path.name}: frames take {position} bytes but their sizes add up to {offset[-1]}")
        file.create_dataset("frames/offset", data=offset)
        mel = np.cumsum([0] + [len(record.logmel) for record in records], dtype=np.int64)
        logmel = file.create_dataset("audio/logmel", (int(mel[-1]), bands), np.float32)
        for record, start in zip(records, mel[:-1], strict=True):
            logmel[start : start + len(record.logmel)] = record.logmel
        file["video/frame"] = np.cumsum([0] + [len(record.sizes) for record in records], dtype=np.int64)
        file["video/mel"] = mel
        for name in ("id", "label", "split", "note"):
            values = [getattr(record, name) for record in records]
            file.create_dataset(f"video/{name}", (len(values),), _TEXT, values or None)
        for name in ("height", "width"):
            file[f"video/{name}"] = np.asarray([getattr(record, name) for record in records], np.int32)
        file.attrs.update({"schema": SCHEMA, "jpeg_crc32": checksum, **attributes})
    publish(partial, path)


def publish(partial: Path, path: Path) -> None:
    """Flush a finished temporary file to disk and give it its name: it appears whole or not at all."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(path)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    publish(partial, path)


def shard_attributes(path: Path) -> dict[str, Any] | None:
    """Attributes of a complete shard of this schema; None where the file is absent, cut short or of another schema."""
    try:
        with h5py.File(path, "r") as file:
            attributes = dict(file.attrs)
    except OSError:
        return None
    return attributes if attributes.get("schema") == SCHEMA else None


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation per colour channel (0-255 scale) [3], and of the log-mel values."""

    pixel_mean: np.ndarray
    pixel_std: np.ndarray
    mel_mean: float
    mel_std: float

    @staticmethod
    def from_sums(pixels: np.ndarray, mels: np.ndarray) -> Statistics:
        """From running sums: `pixels` [3, 3] = per channel (n, sum x, sum x^2), `mels` [3] the same for log-mel."""

        def moments(n: Any, total: Any, square: Any) -> tuple[Any, Any]:
            mean = total / np.maximum(n, 1)
            return mean, np.sqrt(np.maximum(square / np.maximum(n, 1) - mean**2, 0.0))

        pixel_mean, pixel_std = moments(*pixels.astype(np.float64).T)
        mel_mean, mel_std = moments(*mels.astype(np.float64))
        return Statistics(pixel_mean, np.maximum(pixel_std, 1.0), float(mel_mean), float(max(mel_std, 1e-3)))


def write_index(folder: Path, shards: Sequence[Path], attributes: Mapping[str, Any]) -> None:
    """Gather the video tables of all shards, in order, into `index.h5`; statistics from the shards' running sums."""
    rows: dict[str, list[np.ndarray]] = {}
    pixels, mels = np.zeros((3, 3)), np.zeros(3)
    for number, path in enumerate(shards):
        with h5py.File(path, "r") as file:
            n = len(file["video/id"])
            for name in ("frame", "mel"):
                bounds = file[f"video/{name}"][:]
                rows.setdefault(f"{name}_start", []).append(bounds[:-1])
                rows.setdefault(f"{name}_count", []).append(np.diff(bounds))
            for name in ("id", "label", "split", "note", "height", "width"):
                rows.setdefault(name, []).append(file[f"video/{name}"][:])
            rows.setdefault("shard", []).append(np.full(n, number, np.int64))
            pixels += file.attrs["pixel_sums"]
            mels += file.attrs["mel_sums"]
    partial = folder / (INDEX + ".partial")
    with h5py.File(partial, "w", libver=("earliest", "v110")) as file:
        for name, parts in rows.items():
            values = np.concatenate(parts)
            if values.dtype == object:
                file.create_dataset(f"video/{name}", values.shape, _TEXT, values if len(values) else None)
            else:
                file[f"video/{name}"] = values
        classes = sorted({label.decode() for part in rows["label"] for label in part} - {""})
        file.create_dataset("classes", (len(classes),), _TEXT, classes or None)
        names = [path.name for path in shards]
        file.create_dataset("shard/name", (len(names),), _TEXT, names)
        file["shard/bytes"] = np.asarray([path.stat().st_size for path in shards], np.int64)
        file.attrs.update({"schema": SCHEMA, "pixel_sums": pixels, "mel_sums": mels, **attributes})
    publish(partial, folder / INDEX)


@dataclass
class Index:
    """The video table of a preprocessed data set, in memory; every column is an array [n_videos]."""

    folder: Path
    id: np.ndarray
    label: np.ndarray
    split: np.ndarray
    shard: np.ndarray
    height: np.ndarray
    width: np.ndarray
    frame_start: np.ndarray
    frame_count: np.ndarray
    mel_start: np.ndarray
    mel_count: np.ndarray
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

    columns = {name: text(f"video/{name}") for name in ("id", "label", "split")}
    for name in ("shard", "height", "width", "frame_start", "frame_count", "mel_start", "mel_count"):
        columns[name] = file[f"video/{name}"][:].astype(np.int64)
    settings = json.loads(file.attrs["settings"])
    return Index(
        folder=folder,
        **columns,
        classes=list(text("classes")),
        shard_names=list(text("shard/name")),
        shard_bytes=file["shard/bytes"][:],
        fps=settings["fps"],
        bands=settings["bands"],
        statistics=Statistics.from_sums(file.attrs["pixel_sums"], file.attrs["mel_sums"]),
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


def read_rejected(folder: Path) -> list[dict[str, str]]:
    """The rows of rejected.jsonl: id, path, reason."""
    path = folder / REJECTED
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def dump_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """JSON lines."""
    return "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
