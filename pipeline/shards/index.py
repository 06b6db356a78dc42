"""The index of a data set: the video table of all shards with labels, and the statistics, in one file."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from gdt.common.commandline import size_of
from gdt.common.errors import UserError, unknown
from gdt.common.urls import as_path
from gdt.pipeline.shards import container, store
from gdt.pipeline.shards.container import Damaged, Head, OtherSchema, text_array, texts
from gdt.pipeline.shards.layout import (
    COLUMNS,
    INDEX,
    LABEL_SEPARATOR,
    PARTS,
    PIECES,
    VideoTable,
    labels_in,
    names_in,
    table_checksum,
)
from gdt.pipeline.shards.naming import DATASETS, preprocess_command, verify_hint
from gdt.pipeline.shards.statistics import Statistics

_COLUMN = "column/"
LABELS = ("label", "split", "folds")

Annotations = Mapping[str, Sequence[str]]
"""LABELS, empty by default, and extra columns, by name: a string per video."""


def write_index(
    folder: Path, shards: Sequence[Path], settings: str, annotate: Callable[[Sequence[str]], Annotations]
) -> dict[str, str]:
    """Gather the shards into `index.h5`, with annotations of the videos by their ids.

    Returns the reason of each rejected video by its id. Raises UserError for a damaged shard, and OSError.
    """
    arrays, rejected = _gather(shards)
    ids = texts(arrays["video/id"]).tolist()
    for name, values in ({name: [""] * len(ids) for name in LABELS} | dict(annotate(ids))).items():
        # / and . have a meaning in the names of HDF5
        named = f"video/{name}" if name in LABELS else _COLUMN + quote(name, safe=" ").replace(".", "%2E")
        arrays[named] = text_array(values)
    # sorted, so that equal content gives equal bytes
    container.write(folder / INDEX, dict(sorted(arrays.items())), {"settings": settings})
    return rejected


def _gather(shards: Sequence[Path]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The video tables of all shards, sorted by id, with their first lines and total sums; and the rejected videos.

    The order, and so every plan, does not depend on the assignment of videos to shards.
    """
    rows: dict[str, list[np.ndarray]] = {}
    lines: list[bytes] = []
    rejected: dict[str, str] = {}
    sums = {"pixels": np.zeros((3, 3), object), "mels": np.zeros(3, object)}  # Python integers do not overflow
    for number, path in enumerate(shards):
        head, tables = read_table(path)
        lines.append(head.line)
        rejected |= {row["id"]: row["reason"] for row in map(json.loads, tables["rejected"].tolist())}
        table = {name: tables[f"video/{name}"] for name in COLUMNS}
        n = len(table["id"])
        for part in PARTS:
            bounds = tables[f"video/{part}"]
            table |= {f"{part}_start": bounds[:-1], f"{part}_count": np.diff(bounds)}
        table |= {"shard": np.full(n, number, np.int64), "place": np.arange(n, dtype=np.int64)}
        for name, values in table.items():
            rows.setdefault(name, []).append(values)
        for name in sums:
            sums[name] = sums[name] + tables[f"sums/{name}"].astype(object)
    columns = {name: np.concatenate(parts) for name, parts in rows.items()}
    order = np.argsort(columns["id"], kind="stable")
    arrays = {f"video/{name}": values[order] for name, values in columns.items()}
    arrays["shard/name"] = text_array([path.name for path in shards])
    arrays["shard/line"] = np.array(lines, "S")
    arrays["sums"] = text_array([json.dumps({name: values.tolist() for name, values in sums.items()})])
    return arrays, rejected


def read_table(path: Path) -> tuple[Head, dict[str, np.ndarray]]:
    """The head of a shard and its tables, without frames, sound and words. Raises UserError for a damaged one."""
    try:
        head = Head.read(path)
        with path.open("rb") as file:
            arrays = {
                name: place.array(os.pread(file.fileno(), place.nbytes, place.begin))
                for name, place in head.arrays.items()
                if not name.startswith(PIECES)
            }
        if table_checksum(arrays) != head.notes.get("table"):
            raise Damaged("checksum mismatch in its table of videos")
    except Damaged as error:
        raise UserError(f"shard {path} is damaged: {error}; {verify_hint(path.parent)}") from error
    return head, arrays


@dataclass(kw_only=True)
class Index(VideoTable):
    """The video table of a preprocessed data set in memory; every column is an array [n_videos]."""

    folder: Path
    label: np.ndarray
    """Name of the class, or empty; several names are sorted and joined by LABEL_SEPARATOR."""
    split: np.ndarray
    """train, val, test or unused."""
    folds: np.ndarray
    """The split in each official fold, as in train,test,unused; or empty."""
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
    shard_names: list[str]
    heads: list[Head]
    """The first line of each shard, which says where its datasets lie."""
    fps: int
    bands: int
    statistics: Statistics
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """Extra annotation columns by name: strings, empty where a video has no value."""
    cache: int = 0
    """Bound of the local cache of shards in a store, bytes; 0: the default."""

    def __len__(self) -> int:
        return len(self.id)

    @staticmethod
    def open(folder: str | Path, cache: str = "") -> Index:
        """Read `index.h5` and check the lengths of all shards; ~ is expanded.

        Shards in a store are checked as they come into the local cache of size `cache`, such as 500GB. Raises UserError
        if the folder, the index or a shard is missing, truncated or of another schema.
        """
        folder = as_path(folder)
        path, again = folder / INDEX, "run the same preprocessing command again, which rebuilds only what is damaged"
        bound = size_of("--cache", cache)
        require_index(folder)
        try:
            with store.copied(path) as local:
                index = _index(folder, *container.read(local))
        except OtherSchema as error:
            raise UserError(f"{path} cannot be used: {error}; rebuild the shards in another folder") from error
        except Damaged as error:
            raise UserError(f"{path} is damaged: {error}; {again}") from error
        if store.is_remote(folder):
            return replace(index, cache=bound)
        if bound:
            raise UserError(f"--cache has no effect on {folder}, which is not in a store; leave it out")
        for name, head in zip(index.shard_names, index.heads, strict=True):
            shard = folder / name
            size = shard.stat().st_size if shard.is_file() else None
            if size != head.size:
                state = "is missing" if size is None else f"has {size} bytes instead of {head.size}"
                raise UserError(f"shard {shard} {state}; {again}")
        return index

    @property
    def classes(self) -> list[str]:
        return names_in(self.label)

    def shard_path(self, video: int) -> Path:
        """The shard of a video."""
        return self.folder / self.shard_names[self.shard[video]]

    def fold(self, number: int) -> Index:
        """The index with the splits of an official fold, from 1. Raises UserError if there is no such fold."""
        folds = [row.split(",") for row in self.folds]
        if number < 1 or any(len(row) < number or not row[0] for row in folds):
            raise UserError(f"not every video of {self.folder} has an official fold {number}; leave --folds out")
        return replace(self, split=np.asarray([row[number - 1] for row in folds], object))

    def labelled(self, column: str) -> Index:
        """The index with labels from an extra column; "label" and "" keep the labels.

        Raises UserError for an unknown column.
        """
        if column in ("", "label"):
            return self
        if column not in self.columns:
            raise unknown("column", column, ["label", *self.columns])
        return replace(self, label=_joined(self.columns[column]))

    @cached_property
    def length(self) -> np.ndarray:
        """Length of each video in frames, also of sounds, which have none: int64 [n_videos]."""
        return np.where(self.frame_count > 0, self.frame_count, self.mel_count * self.fps // 100)

    def start_counts(self, frames: int, stride: int, mel_frames: int = 0) -> np.ndarray:
        """Number of start frames at which a clip fits into each video: int64 [n_videos].

        A clip takes `frames` frames at a step of `stride`, and `mel_frames` log-mel rows from mel_position(start). With
        `mel_frames`, clips fit into sounds, too; with 0 frames, sound alone decides.
        """
        count = (self.length if mel_frames else self.frame_count) - ((frames - 1) * stride + 1) + 1
        if mel_frames:
            # the last start f with mel_position(f) + mel_frames <= mel_count
            last = (self.fps * (2 * (self.mel_count - mel_frames) + 1) - 1) // 200
            count = np.minimum(count, last + 1)
        return np.maximum(count, 0)

    def mel_position(self, start: np.ndarray) -> np.ndarray:
        """First log-mel row of a clip that starts at frame `start`: round(100 tau), tau = start / fps."""
        return (200 * np.asarray(start) + self.fps) // (2 * self.fps)


def _joined(cells: np.ndarray) -> np.ndarray:
    """Cells with the same labels are equal."""
    return np.array([LABEL_SEPARATOR.join(labels_in(cell)) for cell in cells.tolist()], object)


def fingerprint(index: Index) -> str:
    """Hash of shards, settings, videos and splits, which must not change when a run resumes."""
    digest = hashlib.sha256(json.dumps([index.id.tolist(), index.split.tolist(), index.settings]).encode())
    for head in index.heads:
        digest.update(head.line)
    return digest.hexdigest()


def require_index(folder: Path) -> None:
    """Raise UserError unless a folder has finished shards."""
    if store.exists(folder / INDEX):
        return
    if any(name.startswith("shard-") for name in store.names(folder)):
        raise UserError(
            f"{folder} has shards but no {INDEX}: preprocessing has not finished, or found no usable video; wait, or "
            "run the same preprocessing command again, which resumes it or says why"
        )
    made = [] if store.is_remote(folder) else [path.parent.name for path in folder.parent.glob(f"*/{INDEX}")]
    similar = difflib.get_close_matches(folder.name, [*made, *DATASETS], 1)
    hint = f" did you mean '{similar[0]}'? Otherwise" if similar and similar[0] != folder.name else ""
    make = preprocess_command(folder)
    raise UserError(f"there are no shards in {folder} (no {INDEX});{hint} make them with '{make}'")


def _index(folder: Path, arrays: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> Index:
    def group(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): column(name) for name in arrays if name.startswith(prefix)}

    def column(name: str) -> np.ndarray:
        values = arrays[name]
        if values.dtype.kind == "S":
            return texts(values)
        return values.astype(np.int64) if np.issubdtype(values.dtype, np.integer) else values

    settings, sums = json.loads(notes["settings"]), json.loads(column("sums")[0])
    videos: dict[str, Any] = group("video/")
    videos["label"] = _joined(videos["label"])
    return Index(
        folder=folder,
        **videos,
        shard_names=list(column("shard/name")),
        heads=[Head.parse(line) for line in arrays["shard/line"].tolist()],
        fps=settings["fps"],
        bands=settings["bands"],
        statistics=Statistics.from_sums(sums["pixels"], sums["mels"]),
        settings=settings,
        columns={unquote(name): values for name, values in group(_COLUMN).items()},
    )
