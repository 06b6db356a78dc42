"""The list of all videos of a run: read once, from the data set into a table, and looked up by place or by id."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import dump_row
from gdt.pipeline.shards.index import Annotations, column_dataset
from gdt.pipeline.shards.layout import LABELS
from gdt.preprocess.datasets.listing import Missing, Video, Words, key_of, size_of
from gdt.preprocess.scratch import database

_TOLD = 20
"""Pairs of videos with one id that are named."""
_TABLES = """
    CREATE TABLE video (place INTEGER PRIMARY KEY, id TEXT, path TEXT, size INTEGER, device INTEGER, decides, said);
    CREATE INDEX ids ON video (id);
    CREATE TABLE missing (row);
"""
_TWICE = """
    SELECT other.place, other.id, other.path, first.path
    FROM (SELECT id, MIN(place) AS place FROM video GROUP BY id HAVING COUNT(*) > 1) AS twice
    JOIN video AS first ON first.place = twice.place JOIN video AS other ON other.id = twice.id
    WHERE other.place > twice.place ORDER BY other.place
"""
"""Videos that have the id of another, and the path of that."""
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM}
"""Why a file cannot be looked at though its disk is there."""


@dataclass(frozen=True)
class Shares:
    """Parts, from 0 to 1, of the videos without a split that become val and test; the others become train."""

    val: float = 0.0
    test: float = 0.0

    def __post_init__(self) -> None:
        if not (self.val >= 0 and self.test >= 0 and self.val + self.test < 1):
            raise UserError(
                f"--val is {self.val} and --test is {self.test}; they are shares of the videos, each 0 or more and "
                "together below 1; one that is left out is that of the last run"
            )

    def split(self, video_id: str) -> str:
        """The split of a video by its id alone: others move none, and more of one share leaves the other as it is."""
        draw = key_of(video_id) / 2**64
        return "test" if draw < self.test else "val" if draw > 1 - self.val else "train"


class VideoList:
    """All videos of a data set, and those that are missing, in a table on disk. A context manager."""

    def __init__(
        self,
        items: Iterable[Video | Missing],
        source: Path,
        scratch: Path,
        shares: Shares = Shares(),
        duplicates: Literal["refuse", "first"] = "refuse",
    ) -> None:
        """Read the list; where it does not say a video's split, `shares` do.

        Raises UserError if ids occur twice, unless `duplicates` is "first", which keeps the first of each.
        """
        self.source, self.shares = source, shares
        self.without_split = 0
        self._table = database(scratch, _TABLES)
        self._table.executemany("INSERT INTO video VALUES (?, ?, ?, ?, ?, ?, ?)", self._rows(items))
        videos, ids = self._one("SELECT COUNT(*), COUNT(DISTINCT id) FROM video")
        if videos > ids and duplicates == "refuse":
            raise UserError(self._told_twice(videos - ids))
        if videos > ids:
            self._keep_first()
        self._count = ids
        self.missing: int = self._one("SELECT COUNT(*) FROM missing")[0]
        self.source_bytes: int = self._one("SELECT COALESCE(SUM(MAX(size, 0)), 0) FROM video")[0]

    def _rows(self, items: Iterable[Video | Missing]) -> Iterator[tuple[object, ...]]:
        device_of = functools.lru_cache(1 << 12)(_device)
        place = 0
        for item in items:
            if isinstance(item, Missing):
                self._leave_out(item)
                continue
            if not item.split:
                self.without_split += 1
                item = replace(item, split=self.shares.split(item.id))
            path, device = os.path.relpath(item.path, self.source), device_of(_folder_of(item.path))
            said = [item.label, item.split, item.folds, item.columns]
            yield place, item.id, path, size_of(item.path), device, json.dumps(decides(item)), json.dumps(said)
            place += 1

    def _leave_out(self, item: Missing) -> None:
        path = str(item.path) if item.path else ""
        row = dump_row({"id": item.id, "path": path, "reason": item.reason})
        self._table.execute("INSERT INTO missing VALUES (?)", (row,))

    def _one(self, query: str, *values: object) -> Any:
        return self._table.execute(query, values).fetchone()

    def _told_twice(self, count: int) -> str:
        """The sentence about videos whose ids others have before them."""
        pairs = itertools.islice(self._table.execute(_TWICE), _TOLD)
        lines = [f"\n  '{id}': {self.source / first} and {self.source / path}" for _, id, path, first in pairs]
        rest = f"\n  and {count - _TOLD} more" if count > _TOLD else ""
        told = "two videos have one id" if count == 1 else f"{count} videos have the ids of others"
        return (
            f"{told}; rename them, or pass --duplicates first, which keeps the first of each and names the others in "
            f"rejected.jsonl:{''.join(lines)}{rest}"
        )

    def _keep_first(self) -> None:
        """Leave out, by name, the videos whose ids others have before them, and close the gaps that they leave."""
        for _, id, path, first in self._table.execute(_TWICE):
            reason = f"it has the id of {self.source / first}, which is kept"
            self._leave_out(Missing(id, reason, self.source / path))
        self._table.executescript(f"""
            DELETE FROM video WHERE place IN (SELECT place FROM ({_TWICE}));
            UPDATE video SET place = -number FROM
                (SELECT place AS was, ROW_NUMBER() OVER (ORDER BY place) AS number FROM video) WHERE place = was;
            UPDATE video SET place = -1 - place;
        """)

    def __enter__(self) -> VideoList:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def __len__(self) -> int:
        return self._count

    def video(self, number: int) -> tuple[Video, int]:
        """One video by its place in the list, and its bytes (-1 where there is no such file)."""
        path, size, decided, said = self._one("SELECT path, size, decides, said FROM video WHERE place = ?", number)
        name, segment, stretches, words = json.loads(decided)
        label, split, folds, columns = json.loads(said)
        return (
            Video(
                name, self.source / path, label, split, tuple(folds), tuple(segment) if segment else None,
                tuple((a, b) for a, b in stretches), Words(*words) if words else None,
                tuple((column, value) for column, value in columns),
            ),
            size,
        )  # fmt: skip

    def name(self, number: int) -> tuple[str, str]:
        """Id of a video by its place in the list, and its path below the source."""
        id, path = self._one("SELECT id, path FROM video WHERE place = ?", number)
        return id, path

    def path_of(self, video_id: str) -> Path:
        """Where the file of a video is now. Raises KeyError for an id that is not in the list."""
        return self.source / self._of(video_id, "path")

    def _of(self, video_id: str, column: str) -> str:
        found = self._one(f"SELECT {column} FROM video WHERE id = ?", video_id)
        if found is None:
            raise KeyError(video_id)
        return str(found[0])

    def say(self, ids: np.ndarray) -> Annotations:
        """What the list says of the videos with these ids (bytes, [n_videos]), as datasets of an index.

        Raises KeyError for an id that is not in the list.
        """
        encoded = functools.lru_cache(1 << 12)(str.encode)  # equal labels of millions of videos are one object
        dataset = functools.lru_cache(1 << 12)(column_dataset)
        said: Annotations = {name: np.full(len(ids), b"", object) for name in LABELS}
        for row, id in enumerate(ids):
            label, split, folds, columns = json.loads(self._of(id.decode(), "said"))
            for name, value in zip(LABELS, (label, split, ",".join(folds)), strict=True):
                said[name][row] = encoded(value)
            for column, value in columns:
                if (name := dataset(column)) not in said:
                    said[name] = np.full(len(ids), b"", object)
                said[name][row] = encoded(value)
        return said

    def look_again(self, number: int) -> int:
        """The bytes of a video as they are now, which from now on are those of the list.

        Raises UserError where its disk, and not it alone, is gone.
        """
        name, device = self._one("SELECT path, device FROM video WHERE place = ?", number)
        path = self.source / name
        try:
            path.stat()
        except OSError as error:
            folder = _folder_of(path)
            if error.errno not in _ABSENT or not folder.is_dir() or _device(folder) != device:
                raise UserError(
                    f"{path} was there when the videos were listed, and its disk or folder is gone ({error.strerror}); "
                    "bring it back, then run the same command again: finished shards are kept"
                ) from error
        size = size_of(path)
        self._table.execute("UPDATE video SET size = ? WHERE place = ?", (size, number))
        return size

    def place(self, video_id: str) -> int | None:
        """Where in the list a video is, None where it is not."""
        found = self._one("SELECT place FROM video WHERE id = ?", video_id)
        return None if found is None else int(found[0])

    def missing_rows(self) -> Iterator[str]:
        """Rows of rejected.jsonl for what the official lists name but is not there."""
        return (row for (row,) in self._table.execute("SELECT row FROM missing ORDER BY rowid"))


def _folder_of(path: Path) -> Path:
    """The folder that a file really lies in."""
    return Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent


def _device(folder: Path) -> int:
    """The file system of a folder, or of the nearest one above it: other where a disk is not mounted any more."""
    try:
        return folder.stat().st_dev
    except OSError:
        return _device(folder.parent) if folder != folder.parent else -1


def decides(video: Video) -> list[object]:
    """What decides the bytes made of a video, besides the file itself."""
    words = astuple(video.words) if video.words else None
    return [video.id, video.segment, video.stretches, words]
