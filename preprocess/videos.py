"""The list of all videos of a run: read once, from the data set into files, and looked up by place or by id."""

from __future__ import annotations

import errno
import functools
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import dump_row
from gdt.pipeline.shards.index import Said, column_dataset
from gdt.pipeline.shards.layout import LABELS
from gdt.preprocess.datasets.listing import Missing, Video, Words, find_key, key_of, size_of

_TOLD = 20
"""Pairs of videos with one id that are named."""
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
    """All videos of a data set, and those that are missing, in temporary files. 32 bytes of memory per video."""

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
        self._sizes: dict[int, int] = {}  # of those that were looked at again
        self.missing = 0
        self.source_bytes = 0
        self.without_split = 0
        self._file = tempfile.TemporaryFile(dir=scratch, prefix=".videos-")  # noqa: SIM115 (closed by __exit__)
        self._labels = tempfile.TemporaryFile(dir=scratch, prefix=".labels-")  # noqa: SIM115
        self._missing = tempfile.TemporaryFile("w+", dir=scratch, prefix=".missing-", encoding="utf-8")  # noqa: SIM115
        keys, offsets = array("Q"), array("q")
        position, label_position = 0, 0
        device_of = functools.lru_cache(1 << 12)(_device)
        for item in items:
            if isinstance(item, Missing):
                self._leave_out(item)
                continue
            if not item.split:
                self.without_split += 1
                item = replace(item, split=shares.split(item.id))
            size = size_of(item.path)
            self.source_bytes += max(size, 0)
            device = device_of(_folder_of(item.path))
            row = (json.dumps([os.path.relpath(item.path, source), size, device, *decides(item)]) + "\n").encode()
            self._file.write(row)
            said = (json.dumps(_said(item)) + "\n").encode()
            self._labels.write(said)
            keys.append(key_of(item.id))
            offsets.extend((position, label_position))
            position += len(row)
            label_position += len(said)
        self._offsets = np.frombuffer(offsets, np.int64).reshape(-1, 2)
        self._sort(np.frombuffer(keys, np.uint64))
        again = np.flatnonzero(self._sorted[1:] == self._sorted[:-1]) + 1
        if len(again) and duplicates == "refuse":
            raise UserError(self._told_twice(again))
        if len(again):
            self._keep_first(again)

    def _leave_out(self, item: Missing) -> None:
        self.missing += 1
        path = str(item.path) if item.path else ""
        self._missing.write(dump_row({"id": item.id, "path": path, "reason": item.reason}))

    def _sort(self, keys: np.ndarray) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def _first(self, at: int) -> Video:
        """Of the videos with the id of the one at this place among the sorted keys, the first of the list."""
        return self.video(int(self._order[np.searchsorted(self._sorted, self._sorted[at])]))[0]

    def _told_twice(self, again: np.ndarray) -> str:
        """The sentence about the videos at these places among the sorted keys, whose ids others have before them."""
        pairs = sorted(zip(self._order[again].tolist(), again.tolist(), strict=True))[:_TOLD]
        lines = [f"\n  '{(one := self._first(at)).id}': {one.path} and {self.video(k)[0].path}" for k, at in pairs]
        rest = f"\n  and {len(again) - _TOLD} more" if len(again) > _TOLD else ""
        count = "two videos have one id" if len(again) == 1 else f"{len(again)} videos have the ids of others"
        return (
            f"{count}; rename them, or pass --duplicates first, which keeps the first of each and names the others in "
            f"rejected.jsonl:{''.join(lines)}{rest}"
        )

    def _keep_first(self, again: np.ndarray) -> None:
        """Leave out, by name, the videos at these places among the sorted keys."""
        for number, at in sorted(zip(self._order[again].tolist(), again.tolist(), strict=True)):
            video, size = self.video(number)
            self.source_bytes -= max(size, 0)
            self._leave_out(Missing(video.id, f"it has the id of {self._first(at).path}, which is kept", video.path))
        keys = np.empty(len(self), np.uint64)
        keys[self._order] = self._sorted
        kept = np.ones(len(self), bool)
        kept[self._order[again]] = False
        self._offsets = self._offsets[kept]
        self._sort(keys[kept])

    def __enter__(self) -> VideoList:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._labels.close()
        self._missing.close()

    def __len__(self) -> int:
        return len(self._offsets)

    def video(self, number: int) -> tuple[Video, int]:
        """One video by its place in the list, and its bytes (-1 where there is no such file)."""
        path, size, _, name, segment, stretches, words = self._row(number)
        label, split, folds, columns = _row_at(self._labels, int(self._offsets[number, 1]))
        return (
            Video(
                name, self.source / path, label, split, tuple(folds), tuple(segment) if segment else None,
                tuple((a, b) for a, b in stretches), Words(*words) if words else None,
                tuple((column, value) for column, value in columns),
            ),
            self._sizes.get(number, size),
        )  # fmt: skip

    def name(self, number: int) -> tuple[str, str]:
        """Id of a video by its place in the list, and its path below the source."""
        path, _, _, name, *_ = self._row(number)
        return name, path

    def path_of(self, video_id: str) -> Path:
        """Where the file of a video is now. Raises KeyError for an id that is not in the list."""
        place = self.place(video_id)
        if place is None:
            raise KeyError(video_id)
        return self.source / self.name(place)[1]

    def say(self, ids: np.ndarray) -> Said:
        """What the list says of the videos with these ids (bytes, [n_videos]), as datasets of an index.

        Reads the labels of the whole list, once, in its order. Raises KeyError for an id that is not in it.
        """
        keys = np.fromiter((key_of(name.decode()) for name in ids), np.uint64, len(ids))
        at = np.minimum(np.searchsorted(self._sorted, keys), len(self) - 1)
        if len(absent := ids[self._sorted[at] != keys]):
            raise KeyError(absent[0])
        rows = np.full(len(self), -1)
        rows[self._order[at]] = np.arange(len(ids))
        encoded = functools.lru_cache(1 << 12)(str.encode)  # equal labels of millions of videos are one object
        dataset = functools.lru_cache(1 << 12)(column_dataset)
        said: Said = {name: np.full(len(ids), b"", object) for name in LABELS}
        for row, begin in zip(rows.tolist(), self._offsets[:, 1].tolist(), strict=True):
            if row < 0:
                continue
            label, split, folds, columns = _row_at(self._labels, begin)
            for name, value in zip(LABELS, (label, split, ",".join(folds)), strict=True):
                said[name][row] = encoded(value)
            for column, value in columns:
                if (name := dataset(column)) not in said:
                    said[name] = np.full(len(ids), b"", object)
                said[name][row] = encoded(value)
        return said

    def _row(self, number: int) -> list[Any]:
        """Path below the source, bytes, device, and what decides the bytes made of it."""
        return _row_at(self._file, int(self._offsets[number, 0]))

    def look_again(self, number: int) -> int:
        """The bytes of a video as they are now, which from now on are those of the list.

        Raises UserError where its disk, and not it alone, is gone.
        """
        name, _, device, *_ = self._row(number)
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
        self._sizes[number] = size_of(path)
        return self._sizes[number]

    def place(self, video_id: str) -> int | None:
        """Where in the list a video is, None where it is not."""
        at = find_key(self._sorted, video_id)
        return None if at is None else int(self._order[at])

    def missing_rows(self) -> Iterator[str]:
        """Rows of rejected.jsonl for what the official lists name but is not there."""
        self._missing.seek(0)
        yield from self._missing


def _row_at(file: BinaryIO, position: int) -> list[Any]:
    file.seek(position)
    row: list[Any] = json.loads(file.readline())
    return row


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


def _said(video: Video) -> list[object]:
    """What is said about a video, and may change without decoding it again."""
    return [video.label, video.split, video.folds, video.columns]
