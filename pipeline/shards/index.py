"""The index of a data set: the video table of all shards and the statistics, in one small file."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import h5py
import numpy as np

from gdt.common.errors import UserError, plural, unknown
from gdt.common.files import require_readable
from gdt.pipeline.shards.layout import (
    COLUMNS,
    DATASETS,
    INDEX,
    LABELS,
    PARTS,
    VideoTable,
    preprocess_command,
    repair_hint,
    shard_folder,
)
from gdt.pipeline.shards.seal import SCHEMA, Damaged, OtherSchema, open_sealed, read_seal, write_strings, writing_sealed

MEL_ONE = 1 << 16
"""1.0 in the fixed-point sums of log-mel values."""
_COLUMN = "column/"
DIGEST = "said"
"""Attribute of an index: `annotations_digest`."""

Annotations = dict[str, np.ndarray]
"""LABELS and extra columns as datasets of an index; they can be rewritten without reading the shards."""


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation of the colour channels (0-255) [3] and of the log-mel values."""

    pixel_mean: np.ndarray
    pixel_std: np.ndarray
    mel_mean: float
    mel_std: float

    def to_numbers(self) -> list[float]:
        """As a list for checkpoints: colour means, colour deviations, log-mel mean, log-mel deviation."""
        return [*map(float, self.pixel_mean), *map(float, self.pixel_std), float(self.mel_mean), float(self.mel_std)]

    @staticmethod
    def from_numbers(numbers: Sequence[float], source: str) -> Statistics:
        """The inverse of `to_numbers`. Raises UserError, naming `source`, if they cannot normalise."""
        if len(numbers) != 8 or not np.isfinite(numbers).all() or min(*numbers[3:6], numbers[7]) <= 0:
            raise UserError(f"{source} has an invalid normalisation ({numbers}); use another file")
        return Statistics(np.array(numbers[:3]), np.array(numbers[3:6]), numbers[6], numbers[7])

    @staticmethod
    def from_sums(pixels: Sequence[Sequence[int]], mels: Sequence[int]) -> Statistics:
        """From sums (n, sum x, sum x^2): `pixels` per channel, `mels` of log-mel values in fixed point (`mel_sums`)."""

        def moments(sums: Sequence[int], one: int) -> tuple[float, float]:
            n, total, square = map(int, sums)
            n = max(n, 1)
            # integer arithmetic until the division avoids cancellation
            variance = (n * square * one - total**2) / (n * one) ** 2
            return total / (n * one), max(variance, 0.0) ** 0.5

        pixel = np.array([moments(channel, one=1) for channel in pixels])
        mel_mean, mel_std = moments(mels, one=MEL_ONE)
        return Statistics(pixel[:, 0], np.maximum(pixel[:, 1], 1.0), mel_mean, max(mel_std, 1e-3))


def mel_sums(bank: np.ndarray) -> np.ndarray:
    """(n, sum x, sum x^2) of log-mel values, with x and x^2 in fixed point: int64 [3], independent of the order."""
    value = bank.astype(np.float64)
    total, square = (int(np.rint(x * MEL_ONE).astype(np.int64).sum()) for x in (value, value**2))
    return np.array([bank.size, total, square], np.int64)


def write_index(
    folder: Path, shards: Sequence[Path], attributes: Mapping[str, Any],
    annotate: Callable[[np.ndarray], Annotations] | None = None,
) -> None:  # fmt: skip
    """Gather the shards into `index.h5`; `annotate(ids)`, ids as bytes [n_videos], overrides their annotations."""
    datasets, attributes = gather(shards, attributes)
    if annotate is not None:
        datasets, attributes = with_annotations(datasets, attributes, annotate(datasets["video/id"]))
    _write(folder, datasets, attributes)


def rewrite_index(folder: Path, annotations: Annotations) -> None:
    """Replace the annotations of an index, given in the order of its ids, without reading the shards."""
    _write(folder, *with_annotations(*contents(folder), annotations))


def read_annotations(folder: Path) -> tuple[np.ndarray, Annotations]:
    """Ids of the videos of an index (bytes, [n_videos]) and their annotations. Raises Damaged or OSError."""
    datasets, _ = contents(folder)
    return datasets["video/id"], {name: datasets[name] for name in filter(is_annotation, datasets)}


def _write(folder: Path, datasets: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> None:
    with writing_sealed(folder / INDEX) as file:
        for name, values in sorted(datasets.items()):  # sorted, so that equal content gives equal bytes
            if values.dtype == object:
                write_strings(file, name, values)
            else:
                file[name] = values
        file.attrs.update(sorted(attributes.items()))


def contents(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Datasets, with text as bytes, and attributes of an index. Raises Damaged, OtherSchema or OSError."""
    datasets: dict[str, np.ndarray] = {}

    def read(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[name] = item[:]

    with open_sealed(folder / INDEX) as file:
        file.visititems(read)
        return datasets, dict(file.attrs)


def is_annotation(dataset: str) -> bool:
    """Whether a dataset of an index is an annotation."""
    return dataset in LABELS or dataset.startswith(_COLUMN)


def column_dataset(name: str) -> str:
    """Dataset of an extra column: `column/<name>`, with %, / and a lone . percent-encoded."""
    encoded = name.replace("%", "%25").replace("/", "%2F")
    return _COLUMN + ("%2E" if encoded == "." else encoded)


def annotations_digest(datasets: Mapping[str, np.ndarray]) -> str:
    """Hash of the annotations of all videos, which `verify` compares."""
    digest = hashlib.sha256()
    for name in ("video/id", *sorted(filter(is_annotation, datasets))):
        digest.update(b"\0\0".join([name.encode(), b"\0".join(datasets[name].tolist())]))
    return digest.hexdigest()


def classes_of(labels: np.ndarray) -> np.ndarray:
    """The sorted classes of labels (bytes)."""
    return np.asarray(sorted({*labels} - {b""}), object)


def with_annotations(
    datasets: Mapping[str, np.ndarray], attributes: Mapping[str, Any], annotations: Annotations
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Replace the annotations in the datasets and attributes of an index."""
    datasets = {name: values for name, values in datasets.items() if not is_annotation(name)} | annotations
    datasets["classes"] = classes_of(annotations["video/label"])
    return datasets, {**attributes, DIGEST: annotations_digest(datasets)}


def gather(shards: Sequence[Path], attributes: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Datasets and attributes of an index: the video tables of all shards, sorted by id, and the total sums.

    The order, and so every plan, does not depend on the assignment of videos to shards.
    """
    rows: dict[str, list[np.ndarray]] = {}
    totals: list[list[int]] = []
    pixels, mels = np.zeros((3, 3), object), np.zeros(3, object)  # Python integers do not overflow
    for number, path in enumerate(shards):
        with _open_shard(path) as file:
            n = len(file["video/id"])
            totals.append([len(file[name]) for name in PARTS.values()])
            table = {name: file[f"video/{name}"][:] for name in COLUMNS}
            for name in PARTS:
                bounds = file[f"video/{name}"][:]
                table |= {f"{name}_start": bounds[:-1], f"{name}_count": np.diff(bounds)}
            table |= {"shard": np.full(n, number, np.int64), "place": np.arange(n, dtype=np.int64)}
            for name, values in table.items():
                rows.setdefault(name, []).append(values)
            pixels += file.attrs["pixel_sums"].astype(object)
            mels += file.attrs["mel_sums"].astype(object)
    columns = {name: np.concatenate(parts) for name, parts in rows.items()}
    order = np.argsort(columns["id"], kind="stable")
    datasets = {f"video/{name}": values[order] for name, values in columns.items()}
    datasets["classes"] = classes_of(columns["label"])
    datasets["shard/name"] = np.asarray([path.name.encode() for path in shards], object)
    datasets["shard/bytes"] = np.asarray([path.stat().st_size for path in shards], np.int64)
    datasets["shard/seal"] = np.asarray([read_seal(path).own for path in shards], np.int64)
    datasets["shard/totals"] = np.asarray(totals, np.int64).reshape(-1, 3)
    sums = {"pixels": [[int(x) for x in channel] for channel in pixels], "mels": [int(x) for x in mels]}
    return datasets, {"schema": SCHEMA, "sums": json.dumps(sums), **attributes}


def _open_shard(path: Path) -> h5py.File:
    try:
        return open_sealed(path)
    except Damaged as error:
        raise UserError(f"shard {path} is damaged: {error}; {repair_hint(path.parent)}") from error


@dataclass(kw_only=True)
class Index(VideoTable):
    """The video table of a preprocessed data set in memory; every column is an array [n_videos]."""

    folder: Path
    shard: np.ndarray
    """Index of the video's shard in `shard_names`."""
    place: np.ndarray
    """Row of the video in its shard."""
    frame_start: np.ndarray
    frame_count: np.ndarray
    mel_start: np.ndarray
    mel_count: np.ndarray
    text_start: np.ndarray
    text_count: np.ndarray
    classes: list[str]
    shard_names: list[str]
    shard_bytes: np.ndarray
    shard_seal: np.ndarray
    """Checksum of each shard's seal, which identifies it, int64 [n_shards]."""
    shard_totals: np.ndarray
    """Frames, log-mel rows and words of each shard, int64 [n_shards, 3]."""
    fps: int
    bands: int
    statistics: Statistics
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """Extra annotation columns by name: strings, empty where a video has no value."""

    def __len__(self) -> int:
        return len(self.id)

    @staticmethod
    def open(folder: str | Path) -> Index:
        """Read `index.h5` and check the lengths of all shards; ~ is expanded.

        Raises UserError if the folder, the index or a shard is missing, truncated or of another schema.
        """
        folder = Path(os.path.expanduser(folder))  # noqa: PTH111 - pathlib's raises for an unknown user
        path = folder / INDEX
        require_index(folder)
        try:
            index = _index(folder, *contents(folder))
        except OtherSchema as error:
            raise UserError(
                f"{path} cannot be used: {error}; rebuild the shards in another folder with 'gdt preprocess', or use "
                "the version of this program that wrote it"
            ) from error
        except (Damaged, OSError) as error:
            if isinstance(error, OSError):
                require_readable(path, error)
            raise UserError(
                f"{path} is damaged: {error}; run the same preprocessing command again, which rebuilds it and "
                "keeps finished shards"
            ) from error
        index.check_bounds()
        for name, expected in zip(index.shard_names, index.shard_bytes, strict=True):
            shard = folder / name
            size = shard.stat().st_size if shard.is_file() else None
            if size != expected:
                state = (
                    "is missing" if size is None else f"has {size} bytes instead of {expected}: truncated or changed"
                )
                raise UserError(
                    f"shard {shard} {state}; run the same preprocessing command again, which rebuilds only damaged "
                    "shards"
                )
        return index

    def check_bounds(self) -> None:
        """Raise UserError unless the rows of every video are within its shard."""
        known = (self.shard >= 0) & (self.shard < len(self.shard_names))
        totals = self.shard_totals[np.where(known, self.shard, 0)] if len(self.shard_names) else np.zeros((0, 3))
        wrong = ~known | (self.height < 1) | (self.width < 1)
        for total, name in zip(totals.T, PARTS, strict=True):
            start, count = getattr(self, f"{name}_start"), getattr(self, f"{name}_count")
            wrong |= (start < 0) | (count < 0) | (start > total) | (count > total - start)
        if wrong.any():
            raise UserError(
                f"{self.folder / INDEX} does not match its shards at '{self.id[wrong.argmax()]}' ({int(wrong.sum())} "
                f"videos in all); delete {INDEX} and run the same preprocessing command again"
            )

    def shard_path(self, video: int) -> Path:
        """The shard of a video."""
        return self.folder / self.shard_names[self.shard[video]]

    def fold(self, number: int) -> Index:
        """The index with the splits of an official fold, from 1. Raises UserError if there is no such fold."""
        folds = [row.split(",") for row in self.folds]
        if number < 1 or any(len(row) < number or not row[0] for row in folds):
            known = min((len(row) if row[0] else 0 for row in folds), default=0)
            has = f"its videos have {plural(known, 'official fold')}"
            raise UserError(f"{self.folder} has no fold {number}; {has}; leave --folds out")
        return replace(self, split=np.asarray([row[number - 1] for row in folds], object))

    def labelled(self, column: str) -> Index:
        """The index with labels from another column: an extra column, or a numeric column of VideoTable.

        "label" and "" keep the labels. Raises UserError for an unknown column.
        """
        if column in ("", "label"):
            return self
        numeric = {name: getattr(self, name) for name, stored in COLUMNS.items() if stored.dtype is not str}
        columns = numeric | self.columns
        if column not in columns:
            others = ", ".join(name for name in numeric if name not in self.columns)
            raise UserError(f"{unknown('column', column, ['label', *self.columns])}; numeric columns: {others}")
        values = columns[column].tolist()
        classes = [str(value) for value in sorted(set(values)) if value != ""]
        return replace(self, label=np.asarray(list(map(str, values)), object), classes=classes)

    def start_counts(self, frames: int, stride: int, mel_frames: int = 0) -> np.ndarray:
        """Number of start frames at which a clip fits into each video: int64 [n_videos].

        A clip takes `frames` frames at a step of `stride`, and `mel_frames` log-mel rows from mel_position(start).
        """
        count = self.frame_count - ((frames - 1) * stride + 1) + 1
        if mel_frames:
            # the last start f with mel_position(f) + mel_frames <= mel_count: begin above it, then step down
            last = (self.mel_count - mel_frames) * self.fps // 100 + 1
            for _ in range(3):
                last -= self.mel_position(last) + mel_frames > self.mel_count
            count = np.minimum(count, last + 1)
        return np.maximum(count, 0)

    def mel_position(self, start: np.ndarray) -> np.ndarray:
        """First log-mel row of a clip that starts at frame `start`: round(100 tau), tau = start / fps."""
        return (200 * np.asarray(start) + self.fps) // (2 * self.fps)


def fingerprint(index: Index) -> str:
    """Hash of videos, lengths, settings and statistics, which must not change when a run resumes."""
    rows = zip(index.id, index.split, index.frame_count.tolist(), index.mel_count.tolist(), strict=True)
    statistics = [index.statistics.pixel_mean.tolist(), index.statistics.pixel_std.tolist(), index.statistics.mel_mean]
    text = json.dumps([list(rows), index.settings, index.shard_bytes.tolist(), statistics])
    return hashlib.sha256(text.encode()).hexdigest()


def require_index(folder: Path) -> None:
    """Raise UserError unless a folder has finished shards."""
    if not (folder / INDEX).is_file():
        raise UserError(_no_index(folder))


def _no_index(folder: Path) -> str:
    shards = sum(1 for _ in folder.glob("shard-*.h5"))
    if shards:
        return (
            f"{folder} has {plural(shards, 'shard')} but no {INDEX}: preprocessing has not finished, or found no "
            "usable video; wait, or run the same preprocessing command again, which resumes it or says why"
        )
    missing = f"there are no shards in {folder} (no {INDEX})"
    if (usual := shard_folder(str(folder))) != folder and (usual / INDEX).is_file():
        return f"{missing}; did you mean '{usual}'?"
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        return f"{missing}, but other files; name a folder of shards that 'gdt preprocess' wrote"
    others = sorted(path.parent.name for path in folder.parent.glob(f"*/{INDEX}")) if folder.parent.name else []
    if folder.name not in DATASETS:  # perhaps misspelt
        if similar := difflib.get_close_matches(folder.name, others, 1):
            return f"{missing}; did you mean '{similar[0]}'?"
        if similar := difflib.get_close_matches(folder.name, DATASETS, 1):
            command = preprocess_command(folder.with_name(similar[0]))
            return f"{missing}; did you mean '{similar[0]}'? Make its shards with '{command}'"
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    available = f"; available: {', '.join(others[:5])}{more}" if others else ""
    return f"{missing}{available}; make them with '{preprocess_command(folder)}'"


def _index(folder: Path, datasets: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> Index:
    decoded = lru_cache(1 << 12)(bytes.decode)  # millions of videos share few label strings

    def group(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): column(name) for name in datasets if name.startswith(prefix)}

    def column(name: str) -> np.ndarray:
        values = datasets[name]
        if values.dtype == object:
            return np.asarray([decoded(value) for value in values], dtype=object)
        return values.astype(np.int64) if np.issubdtype(values.dtype, np.integer) else values

    settings, sums = json.loads(attributes["settings"]), json.loads(attributes["sums"])
    return Index(
        folder=folder,
        **group("video/"),
        **{f"shard_{name}": column(f"shard/{name}") for name in ("bytes", "seal", "totals")},
        shard_names=list(column("shard/name")),
        classes=list(column("classes")),
        fps=settings["fps"],
        bands=settings["bands"],
        statistics=Statistics.from_sums(sums["pixels"], sums["mels"]),
        settings=settings,
        columns={unquote(name): values for name, values in group(_COLUMN).items()},
    )
