"""The video table of all shards, in one small file that is opened at start, and the data set's statistics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import h5py
import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import require_readable
from gdt.pipeline.shards.layout import COLUMNS, INDEX, LABELS, PARTS, VideoTable, preprocess_command, repair_hint
from gdt.pipeline.shards.seal import SCHEMA, Damaged, OtherSchema, open_sealed, read_seal, write_strings, writing_sealed

MEL_ONE = 1 << 16
"""1.0 in the fixed point in which log-mel values are summed."""
_COLUMN = "column/"

Annotations = dict[str, np.ndarray]
"""What is said about videos and decides no byte of a shard: LABELS and further columns, datasets of an index."""


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation per colour channel (0-255 scale) [3], and of the log-mel values."""

    pixel_mean: np.ndarray
    pixel_std: np.ndarray
    mel_mean: float
    mel_std: float

    def to_numbers(self) -> list[float]:
        """As plain numbers, for checkpoints: means of the colours, their deviations, mean and deviation of log-mels."""
        return [*map(float, self.pixel_mean), *map(float, self.pixel_std), float(self.mel_mean), float(self.mel_std)]

    @staticmethod
    def from_numbers(numbers: Sequence[float]) -> Statistics:
        """What `to_numbers` gave."""
        return Statistics(np.array(numbers[:3]), np.array(numbers[3:6]), numbers[6], numbers[7])

    @staticmethod
    def from_sums(pixels: Sequence[Sequence[int]], mels: Sequence[int]) -> Statistics:
        """From running sums: `pixels` per channel (n, sum x, sum x^2), `mels` the same of log-mel values.

        For these, x and x^2 are taken times MEL_ONE and rounded: see `mel_sums`.
        """

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


def write_index(
    folder: Path,
    shards: Sequence[Path],
    attributes: Mapping[str, Any],
    say: Callable[[np.ndarray], Annotations] | None = None,
) -> None:
    """Write what `gather` says of the shards into `index.h5`.

    With `say`, what it says of the videos with these ids (bytes, [n_videos]) counts, and not what the shards do.
    """
    datasets, attributes = gather(shards, attributes)
    if say is not None:
        datasets, attributes = with_annotations(datasets, attributes, say(datasets["video/id"]))
    _write(folder, datasets, attributes)


def rewrite_index(folder: Path, said: Annotations) -> None:
    """Let the index that is there say this of its videos, in the order of its ids; the shards are not looked at."""
    _write(folder, *with_annotations(*contents(folder), said))


def read_annotations(folder: Path) -> tuple[np.ndarray, Annotations]:
    """Ids of the videos in an index (bytes, [n_videos]), and what it says of them. Raises Damaged or OSError."""
    datasets, _ = contents(folder)
    return datasets["video/id"], {name: datasets[name] for name in filter(is_annotation, datasets)}


def _write(folder: Path, datasets: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> None:
    with writing_sealed(folder / INDEX) as file:
        for name, values in sorted(datasets.items()):  # the same bytes, wherever they come from
            if values.dtype == object:
                write_strings(file, name, values)
            else:
                file[name] = values
        file.attrs.update(sorted(attributes.items()))


def contents(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Datasets, text as bytes, and attributes of the index of a folder. Raises Damaged, OtherSchema or OSError."""
    datasets: dict[str, np.ndarray] = {}

    def read(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[name] = item[:]

    with open_sealed(folder / INDEX) as file:
        file.visititems(read)
        return datasets, dict(file.attrs)


def is_annotation(dataset: str) -> bool:
    """Whether a dataset of an index is what is said about videos."""
    return dataset in LABELS or dataset.startswith(_COLUMN)


def column_dataset(name: str) -> str:
    """Where a further column is in an index: `column/<name>`, in which %, / and a lone . are written as in a URL."""
    written = name.replace("%", "%25").replace("/", "%2F")
    return _COLUMN + ("%2E" if written == "." else written)


def annotations_digest(datasets: Mapping[str, np.ndarray]) -> str:
    """Hash of what an index says about which video, by which `verify` knows that nothing else did."""
    digest = hashlib.sha256()
    for name in ("video/id", *sorted(filter(is_annotation, datasets))):
        digest.update(b"\0\0".join([name.encode(), b"\0".join(datasets[name].tolist())]))
    return digest.hexdigest()


def classes_of(labels: np.ndarray) -> np.ndarray:
    """The classes among labels (bytes), in order."""
    return np.asarray(sorted({*labels} - {b""}), object)


def with_annotations(
    datasets: Mapping[str, np.ndarray], attributes: Mapping[str, Any], said: Annotations
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Datasets and attributes of an index that says this of its videos instead of what it said before."""
    datasets = {name: values for name, values in datasets.items() if not is_annotation(name)} | said
    datasets["classes"] = classes_of(said["video/label"])
    return datasets, {**attributes, "said": annotations_digest(datasets)}


def gather(shards: Sequence[Path], attributes: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Datasets and attributes of an index: the video tables of all shards, sorted by id, and sums of their sums.

    The order, and so every plan drawn from it, does not depend on which video went into which shard.
    """
    rows: dict[str, list[np.ndarray]] = {}
    totals: list[list[int]] = []
    pixels, mels = np.zeros((3, 3), object), np.zeros(3, object)  # of Python's integers, which do not overflow
    for number, path in enumerate(shards):
        with _open_shard(path) as file:
            n = len(file["video/id"])
            totals.append([len(file[name]) for name in PARTS.values()])
            own = {name: file[f"video/{name}"][:] for name in COLUMNS}
            for name in PARTS:
                bounds = file[f"video/{name}"][:]
                own |= {f"{name}_start": bounds[:-1], f"{name}_count": np.diff(bounds)}
            own |= {"shard": np.full(n, number, np.int64), "place": np.arange(n, dtype=np.int64)}
            for name, values in own.items():
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
    """The video table of a preprocessed data set, in memory; every column is an array [n_videos]."""

    folder: Path
    shard: np.ndarray
    """Number of the shard that holds the video."""
    place: np.ndarray
    """Row in the shard's own tables."""
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
    """The checksum of each shard's seal, which tells it from any other, int64 [n_shards]."""
    shard_totals: np.ndarray
    """Frames, log-mel rows and words of each shard, int64 [n_shards, 3]."""
    fps: int
    bands: int
    statistics: Statistics
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """What else is said about every video, by the name of the column; empty where nothing is."""

    def __len__(self) -> int:
        return len(self.id)

    @staticmethod
    def open(folder: str | Path) -> Index:
        """Read `index.h5` and check that every shard is there in full length.

        Raises UserError if the folder, the index or a shard is missing, cut short or of another schema.
        """
        folder = Path(folder)
        path = folder / INDEX
        if not path.is_file():
            raise UserError(_no_index(folder))
        try:
            index = _index(folder, *contents(folder))
        except OtherSchema as error:
            raise UserError(
                f"{path} cannot be used: {error}; make the shards anew with 'make preprocess' into another folder, or "
                "use the version that wrote it"
            ) from error
        except (Damaged, OSError) as error:
            if isinstance(error, OSError):
                require_readable(path, error)
            raise UserError(
                f"{path} is damaged: {error}; run the same 'make preprocess' command again, which makes it again and "
                "keeps finished shards"
            ) from error
        index.require_inside()
        for name, expected in zip(index.shard_names, index.shard_bytes, strict=True):
            shard = folder / name
            found = shard.stat().st_size if shard.is_file() else None
            if found != expected:
                state = (
                    "is missing" if found is None else f"has {found} bytes instead of {expected}: it was cut or changed"
                )
                raise UserError(f"shard {shard} {state}; run 'make preprocess' again, it remakes only what is damaged")
        return index

    def require_inside(self) -> None:
        """Raise UserError unless every video lies inside its shard, as far as the shards go."""
        known = (self.shard >= 0) & (self.shard < len(self.shard_names))
        totals = self.shard_totals[np.where(known, self.shard, 0)] if len(self.shard_names) else np.zeros((0, 3))
        wrong = ~known | (self.height < 1) | (self.width < 1)
        for total, name in zip(totals.T, PARTS, strict=True):
            start, count = getattr(self, f"{name}_start"), getattr(self, f"{name}_count")
            wrong |= (start < 0) | (count < 0) | (start > total) | (count > total - start)
        if wrong.any():
            raise UserError(
                f"{self.folder / INDEX} says of '{self.id[wrong.argmax()]}' what its shard does not hold "
                f"({int(wrong.sum())} videos in all); delete {INDEX} and run the same 'make preprocess' command again, "
                "which keeps finished shards"
            )

    def shard_path(self, video: int) -> Path:
        """The shard that holds a video."""
        return self.folder / self.shard_names[self.shard[video]]

    def fold(self, number: int) -> Index:
        """The same videos with the splits of an official fold, from 1. Raises UserError if there is no such fold."""
        folds = [row.split(",") for row in self.folds]
        if number < 1 or any(len(row) < number or not row[0] for row in folds):
            known = min((len(row) if row[0] else 0 for row in folds), default=0)
            raise UserError(f"{self.folder} has no fold {number}; its videos have {known} official folds")
        return replace(self, split=np.asarray([row[number - 1] for row in folds], object))

    def labelled(self, column: str) -> Index:
        """The same videos with a further column as their labels; "label", or "", leaves them as they are.

        Raises UserError if there is no such column.
        """
        if column in ("", "label"):
            return self
        if column not in self.columns:
            raise UserError(
                f"{self.folder / INDEX} has no column '{column}'; it has {', '.join(['label', *self.columns])}"
            )
        label = self.columns[column]
        return replace(self, label=label, classes=sorted({*label} - {""}))

    def start_counts(self, frames: int, stride: int, mel_frames: int = 0) -> np.ndarray:
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


def fingerprint(index: Index) -> str:
    """Hash of the videos, their lengths, settings and statistics: with others, a run would not go on as it began."""
    rows = zip(index.id, index.split, index.frame_count.tolist(), index.mel_count.tolist(), strict=True)
    statistics = [index.statistics.pixel_mean.tolist(), index.statistics.pixel_std.tolist(), index.statistics.mel_mean]
    text = json.dumps([list(rows), index.settings, index.shard_bytes.tolist(), statistics])
    return hashlib.sha256(text.encode()).hexdigest()


def _no_index(folder: Path) -> str:
    shards = sum(1 for _ in folder.glob("shard-*.h5"))
    if shards:
        return (
            f"{folder} holds {shards} shards and no {INDEX}, so preprocessing has not come to its end; wait for it, or "
            "run the same 'make preprocess' command again, which goes on"
        )
    others = sorted(path.parent.name for path in folder.parent.glob(f"*/{INDEX}"))[:5] if folder.parent.name else []
    there = f" (there are those of {', '.join(others)})" if others else ""
    return f"there are no shards in {folder} (no {INDEX}){there}; make them with '{preprocess_command(folder)}'"


def _index(folder: Path, datasets: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> Index:
    decoded = lru_cache(1 << 12)(bytes.decode)  # equal labels of millions of videos are one string

    def below(group: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(group): column(name) for name in datasets if name.startswith(group)}

    def column(name: str) -> np.ndarray:
        values = datasets[name]
        if values.dtype == object:
            return np.asarray([decoded(value) for value in values], dtype=object)
        return values.astype(np.int64) if np.issubdtype(values.dtype, np.integer) else values

    settings, sums = json.loads(attributes["settings"]), json.loads(attributes["sums"])
    return Index(
        folder=folder,
        **below("video/"),
        **{f"shard_{name}": column(f"shard/{name}") for name in ("bytes", "seal", "totals")},
        shard_names=list(column("shard/name")),
        classes=list(column("classes")),
        fps=settings["fps"],
        bands=settings["bands"],
        statistics=Statistics.from_sums(sums["pixels"], sums["mels"]),
        settings=settings,
        columns={unquote(name): values for name, values in below(_COLUMN).items()},
    )
