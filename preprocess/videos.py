"""The list of all videos of a run, in a table on disk."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gdt.common.errors import UserError
from gdt.common.files import dump_row
from gdt.pipeline.shards.index import LABELS, Annotations
from gdt.preprocess.datasets.listing import Missing, Video, Words, key_of, size_of
from gdt.preprocess.scratch import database

_SHOWN = 20
"""Maximum number of pairs of duplicates that a message names."""
_TABLES = """
    CREATE TABLE video (
        number INTEGER PRIMARY KEY, id TEXT, path TEXT, size INTEGER, device INTEGER, content, annotations
    );
    CREATE INDEX ids ON video (id);
    CREATE TABLE missing (row);
"""
_DUPLICATES = """
    SELECT other.number, other.id, other.path, first.path
    FROM (SELECT id, MIN(number) AS number FROM video GROUP BY id HAVING COUNT(*) > 1) AS twice
    JOIN video AS first ON first.number = twice.number JOIN video AS other ON other.id = twice.id
    WHERE other.number > twice.number ORDER BY other.number
"""
"""Videos with the id of an earlier one, and the path of the earlier one."""
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM}
"""Errors of a missing or inaccessible file on a mounted disk."""


@dataclass(frozen=True)
class Shares:
    """Fractions of the videos without a split that become val and test; the others become train."""

    val: float = 0.0
    test: float = 0.0

    def __post_init__(self) -> None:
        for option, share in (("--val", self.val), ("--test", self.test)):
            if not 0 <= share < 1:
                raise UserError(f"{option} is {share}; it must be 0 or more and below 1, such as 0.1")
        if self.val + self.test >= 1:
            raise UserError(
                f"--val is {self.val} and --test is {self.test}; they must add up to less than 1 (an option that is "
                "not given keeps its value from the last run)"
            )

    def split(self, video_id: str) -> str:
        """The split of a video, which depends only on its id.

        Changing the share of val moves no video into or out of test, and vice versa.
        """
        draw = key_of(video_id) / 2**64
        return "test" if draw < self.test else "val" if draw > 1 - self.val else "train"


class VideoList:
    """All videos of a data set, and the missing ones, in a table on disk. A context manager."""

    def __init__(
        self,
        items: Iterable[Video | Missing],
        source: Path,
        scratch: Path,
        shares: Shares = Shares(),
        duplicates: Literal["refuse", "first"] = "refuse",
    ) -> None:
        """Read the list; videos without a split get one by `shares`.

        Raises UserError for duplicate ids, unless `duplicates` is "first", which keeps the first of each.
        """
        self.source, self.shares = source, shares
        self.without_split = 0
        self._table = database(scratch, _TABLES)
        self._table.executemany("INSERT INTO video VALUES (?, ?, ?, ?, ?, ?, ?)", self._rows(items))
        videos, self._count = self._one("SELECT COUNT(*), COUNT(DISTINCT id) FROM video")
        if videos > self._count:
            if duplicates == "refuse":
                raise UserError(self._describe_duplicates(videos - self._count))
            self._keep_first()
        self.missing: int = self._one("SELECT COUNT(*) FROM missing")[0]
        self.source_bytes: int = self._one("SELECT COALESCE(SUM(MAX(size, 0)), 0) FROM video")[0]

    def _rows(self, items: Iterable[Video | Missing]) -> Iterator[tuple[object, ...]]:
        device_of = functools.lru_cache(1 << 12)(_device)
        number = 0
        for item in items:
            if isinstance(item, Missing):
                self._add_missing(item)
                continue
            if not item.split:
                self.without_split += 1
                item = replace(item, split=self.shares.split(item.id))
            path, device = os.path.relpath(item.path, self.source), device_of(_real_folder(item.path))
            content = json.dumps(content_key(item))
            annotations = json.dumps([item.label, item.split, item.folds, item.columns])
            yield number, item.id, path, size_of(item.path), device, content, annotations
            number += 1

    def _add_missing(self, item: Missing) -> None:
        path = str(item.path) if item.path else ""
        row = dump_row({"id": item.id, "path": path, "reason": item.reason})
        self._table.execute("INSERT INTO missing VALUES (?)", (row,))

    def _one(self, query: str, *values: object) -> Any:
        return self._table.execute(query, values).fetchone()

    def _describe_duplicates(self, count: int) -> str:
        pairs = itertools.islice(self._table.execute(_DUPLICATES), _SHOWN)
        lines = [f"\n  '{id}': {self.source / first} and {self.source / path}" for _, id, path, first in pairs]
        rest = f"\n  and {count - _SHOWN} more" if count > _SHOWN else ""
        what = "two videos have the same id" if count == 1 else f"{count} videos have the ids of others"
        return (
            f"{what}; rename them, or pass --duplicates first, which keeps the first of each and lists the others in "
            f"rejected.jsonl:{''.join(lines)}{rest}"
        )

    def _keep_first(self) -> None:
        """Move videos with the id of an earlier one to the missing ones, and renumber the others."""
        for _, id, path, first in self._table.execute(_DUPLICATES):
            reason = f"it has the id of {self.source / first}, which is kept"
            self._add_missing(Missing(id, reason, self.source / path))
        self._table.executescript(f"""
            DELETE FROM video WHERE number IN (SELECT number FROM ({_DUPLICATES}));
            UPDATE video SET number = -rank FROM
                (SELECT number AS old, ROW_NUMBER() OVER (ORDER BY number) AS rank FROM video) WHERE number = old;
            UPDATE video SET number = -1 - number;
        """)

    def __enter__(self) -> VideoList:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def __len__(self) -> int:
        return self._count

    def video(self, number: int) -> tuple[Video, int]:
        """The video of this number in the list, and its bytes (-1 if there is no such file)."""
        path, size, content, annotations = self._one(
            "SELECT path, size, content, annotations FROM video WHERE number = ?", number
        )
        name, segment, stretches, words, *_ = json.loads(content)
        label, split, folds, columns = json.loads(annotations)
        return (
            Video(
                name, self.source / path, label, split, tuple(folds), tuple(segment) if segment else None,
                tuple((a, b) for a, b in stretches), Words(*words) if words else None,
                tuple((column, value) for column, value in columns),
            ),
            size,
        )  # fmt: skip

    def name(self, number: int) -> tuple[str, str]:
        """Id and path below the source of the video of this number."""
        id, path = self._one("SELECT id, path FROM video WHERE number = ?", number)
        return id, path

    def number(self, video_id: str) -> int | None:
        """Number of a video in the list, None if it is not there."""
        row = self._one("SELECT number FROM video WHERE id = ?", video_id)
        return None if row is None else int(row[0])

    def path_of(self, video_id: str) -> Path:
        """The current file of a video. Raises KeyError for an unknown id."""
        return self.source / self._of(video_id, "path")

    def _of(self, video_id: str, column: str) -> str:
        row = self._one(f"SELECT {column} FROM video WHERE id = ?", video_id)
        if row is None:
            raise KeyError(video_id)
        return str(row[0])

    def annotations(self, ids: Sequence[str]) -> Annotations:
        """Annotations of the videos with these ids. Raises KeyError for an unknown id."""
        named: dict[str, list[str]] = {name: [""] * len(ids) for name in LABELS}
        same = functools.lru_cache(1 << 12)(str)  # equal labels of millions of videos are one object
        for row, id in enumerate(ids):
            label, split, folds, columns = json.loads(self._of(id, "annotations"))
            for name, value in (*zip(LABELS, (label, split, ",".join(folds)), strict=True), *columns):
                named.setdefault(name, [""] * len(ids))[row] = same(value)
        return named

    def update_size(self, number: int) -> int:
        """Update and return the bytes of a video in the list.

        Raises UserError if its disk or folder is gone, not only the file.
        """
        name, device = self._one("SELECT path, device FROM video WHERE number = ?", number)
        path = self.source / name
        try:
            path.stat()
        except OSError as error:
            folder = _real_folder(path)
            if error.errno not in _ABSENT or not folder.is_dir() or _device(folder) != device:
                raise UserError(
                    f"{path} was there when the videos were listed, and its disk or folder is gone ({error.strerror}); "
                    "mount it and run the same command again"
                ) from error
        size = size_of(path)
        self._table.execute("UPDATE video SET size = ? WHERE number = ?", (size, number))
        return size

    def missing_rows(self) -> Iterator[str]:
        """Rows of rejected.jsonl for videos that are missing or duplicates."""
        return (row for (row,) in self._table.execute("SELECT row FROM missing ORDER BY rowid"))


def _real_folder(path: Path) -> Path:
    """The folder of a file, links resolved."""
    return Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent


def _device(folder: Path) -> int:
    """The device of a folder, or of its nearest existing parent; it changes when a disk is unmounted."""
    try:
        return folder.stat().st_dev
    except OSError:
        return _device(folder.parent) if folder != folder.parent else -1


def content_key(video: Video) -> list[object]:
    """Everything but the file that determines the stored data of a video."""
    words = astuple(video.words) if video.words else None
    key: list[object] = [video.id, video.segment, video.stretches, words]
    return [*key, "of any length"] if video.folds else key
