"""The index of a data set: the video table of all shards with labels, and the statistics, in one file."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np

from gdt.common.commandline import gdt_command, size_of
from gdt.common.errors import LeftOut, UserError, unknown
from gdt.common.folders import Folder
from gdt.pipeline.shards import container, layout
from gdt.pipeline.shards.container import Damaged, Header, OtherSchema, text_array, texts
from gdt.pipeline.shards.layout import INDEX, MEL_RATE, VideoTable, table_checksum
from gdt.pipeline.shards.naming import DATASET_NAMES, is_shard, shard_folder, verify_hint
from gdt.pipeline.shards.rejected import rejected_in
from gdt.pipeline.shards.statistics import Statistics

_COLUMN = "column/"
ANNOTATION_COLUMNS = ("label", "split", "folds")
LABEL_SEPARATOR = ";"
"""Between the labels of a video in a column that holds several."""

Annotations = Mapping[str, Sequence[str]]
"""ANNOTATION_COLUMNS, empty by default, and extra columns, by name: a string per video."""


class ShardTables(NamedTuple):
    """The video tables of some shards, sorted by id, with their first lines and total sums."""

    arrays: dict[str, np.ndarray]
    rejected: dict[str, LeftOut]
    """By id."""

    @property
    def ids(self) -> list[str]:
        return texts(self.arrays["video/id"]).tolist()


def gather_tables(folder: Folder, shards: Sequence[str]) -> ShardTables:
    """The tables of the shards of a folder, by name. Raises UserError for a damaged shard, and OSError.

    The order, and so every plan, does not depend on the assignment of videos to shards.
    """
    rows: dict[str, list[np.ndarray]] = {}
    lines: list[bytes] = []
    rejected: dict[str, LeftOut] = {}
    sums = {"pixels": np.zeros((3, 3), object), "mels": np.zeros(3, object)}  # Python integers do not overflow
    for number, (header, tables) in enumerate(_tables(folder, shards)):
        lines.append(header.line)
        rejected |= {video.id: video for video in rejected_in(tables)}
        table = layout.video_table(tables)
        n = len(table["id"])
        for part in layout.PARTS:
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
    arrays["shard/name"] = text_array(shards)
    arrays["shard/line"] = np.array(lines, "S")
    arrays["sums"] = text_array([json.dumps({name: values.tolist() for name, values in sums.items()})])
    return ShardTables(arrays, rejected)


def write_index(path: Path, tables: ShardTables, settings: str, annotations: Annotations) -> None:
    """Write the index: tables with annotations of their videos, in the same order. Raises OSError."""
    arrays = dict(tables.arrays)
    empty = {name: [""] * len(tables.ids) for name in ANNOTATION_COLUMNS}
    for name, values in {**empty, **annotations}.items():
        # / and . have a meaning in the names of HDF5
        named = f"video/{name}" if name in ANNOTATION_COLUMNS else _COLUMN + quote(name, safe=" ").replace(".", "%2E")
        arrays[named] = text_array(values)
    # sorted, so that equal content gives equal bytes
    container.write(path, dict(sorted(arrays.items())), {"settings": settings})


def _tables(folder: Folder, shards: Sequence[str]) -> Iterator[tuple[Header, dict[str, np.ndarray]]]:
    files = folder.files()
    sizes = [files[name].size if name in files else -1 for name in shards]
    with ThreadPoolExecutor(folder.reads_at_once) as pool:
        yield from pool.map(partial(read_table, folder), shards, sizes)


def read_table(folder: Folder, name: str, size: int) -> tuple[Header, dict[str, np.ndarray]]:
    """The header of a shard of this size and its tables, without frames, sound and words.

    Raises UserError for a damaged one, and OSError.
    """
    try:
        header = Header.read_in(folder, name, size)
        tables = {key: at for key, at in header.arrays.items() if not key.startswith(layout.PIECES)}
        stored = [at for at in tables.values() if at.nbytes]
        begin = min(at.begin for at in stored)
        data = folder.read(name, begin, max(at.begin + at.nbytes for at in stored))  # they are side by side
        arrays = {}
        for key, at in tables.items():
            first = at.begin - begin if at.nbytes else 0
            arrays[key] = at.array(data[first : first + at.nbytes])
        if table_checksum(arrays) != header.attributes.get("table"):
            raise Damaged("checksum mismatch in its table of videos")
    except Damaged as error:
        hint = verify_hint(folder)
        raise UserError(f"shard {folder.address(name)} is damaged: {error}; {hint}") from error
    return header, arrays


@dataclass(kw_only=True)
class Index(VideoTable):
    """The video table of a preprocessed data set in memory; every column is an array [n_videos]."""

    folder: Folder
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
    """First of the video's frames in its shard; likewise of log-mel rows and words."""
    frame_count: np.ndarray
    """Number of the video's frames; likewise of log-mel rows and words."""
    mel_start: np.ndarray
    mel_count: np.ndarray
    text_start: np.ndarray
    text_count: np.ndarray
    shard_names: list[str]
    headers: list[Header]
    """The first line of each shard, which says where its datasets lie."""
    fps: int
    """Frames per second."""
    bands: int
    """Bands of the log-mel spectrogram."""
    statistics: Statistics
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """Extra annotation columns by name: strings, empty where a video has no value."""
    cache_bytes: int = 0
    """Bound of the local cache of shards in a store, bytes; 0: the default."""

    def __len__(self) -> int:
        return len(self.id)

    @staticmethod
    def open(where: str | Folder | Path, cache: str = "") -> Index:
        """Read `index.h5` and check the lengths of all shards; ~ is expanded.

        Shards in a store are checked as they come into the local cache of size `cache`, such as 500GB. Raises UserError
        if the folder, the index or a shard is missing, truncated or of another schema.
        """
        folder = Folder(where)
        path = folder.address(INDEX)
        again = "run the same preprocessing command again, which rebuilds only what is damaged"
        bound = size_of("--cache", cache)
        require_index(folder)
        try:
            with folder.local(INDEX) as local:
                index = Index.read(local, folder)
        except OtherSchema as error:
            raise UserError(f"{path} cannot be used: {error}; rebuild the shards in another folder") from error
        except Damaged as error:
            raise UserError(f"{path} is damaged: {error}; {again}") from error
        if folder.remote:
            return replace(index, cache_bytes=bound)
        if bound:
            raise UserError(f"--cache has no effect on {folder}, which is not in a store; leave it out")
        for name, header in zip(index.shard_names, index.headers, strict=True):
            size = folder.state(name).size
            if size != header.size:
                state = "is missing" if size < 0 else f"has {size} bytes instead of {header.size}"
                raise UserError(f"shard {folder.address(name)} {state}; {again}")
        return index

    @staticmethod
    def read(path: Path, folder: Folder) -> Index:
        """The index of the shards in a folder, from its file. Raises Damaged or OtherSchema."""
        arrays, attributes = container.read(path)
        arrays |= {f"video/{name}": values for name, values in layout.video_table(arrays).items()}

        def group(prefix: str) -> dict[str, np.ndarray]:
            return {name.removeprefix(prefix): column(name) for name in arrays if name.startswith(prefix)}

        def column(name: str) -> np.ndarray:
            values = arrays[name]
            if values.dtype.kind == "S":
                return texts(values)
            return values.astype(np.int64) if np.issubdtype(values.dtype, np.integer) else values

        settings = json.loads(attributes["settings"])
        sums = json.loads(column("sums")[0])
        known = {field.name for field in fields(Index)}  # a later version may have more
        videos: dict[str, Any] = {name: values for name, values in group("video/").items() if name in known}
        videos["label"] = _joined(videos["label"])
        return Index(
            folder=folder,
            **videos,
            shard_names=list(column("shard/name")),
            headers=[Header.parse(line) for line in arrays["shard/line"].tolist()],
            fps=settings["fps"],
            bands=settings["bands"],
            statistics=Statistics.from_sums(sums["pixels"], sums["mels"]),
            settings=settings,
            columns={unquote(name): values for name, values in group(_COLUMN).items()},
        )

    @property
    def classes(self) -> list[str]:
        return names_in(self.label)

    @property
    def official_folds(self) -> range:
        """Their numbers, from 1; empty if there are none."""
        counts = [len(row.split(",")) for row in self.folds if row]
        return range(1, max(counts, default=0) + 1)

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
        return np.where(self.frame_count > 0, self.frame_count, self.mel_count * self.fps // MEL_RATE)

    def start_counts(self, frames: int, stride: int, mel_frames: int = 0) -> np.ndarray:
        """Number of start frames at which a clip fits into each video: int64 [n_videos].

        A clip takes `frames` frames at a step of `stride`, and `mel_frames` log-mel rows from mel_position(start). With
        `mel_frames`, clips fit into sounds, too; with 0 frames, sound alone decides.
        """
        count = (self.length if mel_frames else self.frame_count) - ((frames - 1) * stride + 1) + 1
        if mel_frames:
            # the last start f with mel_position(f) + mel_frames <= mel_count
            last = (self.fps * (2 * (self.mel_count - mel_frames) + 1) - 1) // (2 * MEL_RATE)
            count = np.minimum(count, last + 1)
        return np.maximum(count, 0)

    def mel_position(self, start: np.ndarray) -> np.ndarray:
        """First log-mel row of a clip that starts at frame `start`: round(100 tau), tau = start / fps."""
        return (2 * MEL_RATE * np.asarray(start) + self.fps) // (2 * self.fps)


@cache
def labels_in(cell: str) -> list[str]:
    """The labels in a cell, between LABEL_SEPARATOR: sorted, without blanks around them, each once."""
    return sorted({name.strip() for name in cell.split(LABEL_SEPARATOR)} - {""})


def names_in(cells: Iterable[str]) -> list[str]:
    """The labels of some videos, sorted."""
    return sorted({name for cell in set(cells) for name in labels_in(cell)})


def _joined(cells: np.ndarray) -> np.ndarray:
    """Cells with the same labels are equal."""
    return np.array([LABEL_SEPARATOR.join(labels_in(cell)) for cell in cells.tolist()], object)


def fingerprint(index: Index) -> str:
    """Hash of shards, settings, videos and splits, which must not change when a run resumes."""
    digest = hashlib.sha256(json.dumps([index.id.tolist(), index.split.tolist(), index.settings]).encode())
    for header in index.headers:
        digest.update(header.line)
    return digest.hexdigest()


def require_index(folder: Folder) -> None:
    """Raise UserError unless a folder has finished shards."""
    if folder.exists(INDEX):
        return
    if any(map(is_shard, folder.files())):
        raise UserError(
            f"{folder} has shards but no {INDEX}: preprocessing has not finished, or found no usable video; wait, or "
            "run the same preprocessing command again, which resumes it or says why"
        )
    beside = [] if folder.remote else [path.parent.name for path in folder.absolute().parent.glob(f"*/{INDEX}")]
    similar = difflib.get_close_matches(folder.name, [*beside, *DATASET_NAMES], 1)
    hint = f" did you mean '{similar[0]}'? Otherwise" if similar and similar[0] != folder.name else ""
    elsewhere = [] if folder == shard_folder(folder.name) else ["--destination", folder]
    make = gdt_command("preprocess", "--dataset", folder.name, "--source", "VIDEOS", *elsewhere)
    raise UserError(f"there are no shards in {folder} (no {INDEX});{hint} make them with '{make}'")
