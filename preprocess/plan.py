"""Which video goes into which shard.

The list of videos is read once, from the data set into a file, and the assignment of videos to shards is kept beside
the shards (`plan.jsonl`). So a list of any length takes no memory, a run that was stopped goes on with the same
shards, and videos that are added later make new shards instead of moving the old ones.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.files import checked_lines, dump_row, with_checksum, write_lines
from pipeline.shards.layout import shard_content
from pipeline.shards.seal import SCHEMA, Damaged, open_sealed
from preprocess.datasets.listing import Missing, Video, Words, key_of, size_of
from preprocess.ffmpeg import Extraction

PLAN = "plan.jsonl"
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM}
"""Why a file cannot be looked at though its disk is there."""


@dataclass(frozen=True)
class ShardTask:
    """Everything that decides the bytes of one shard."""

    path: Path
    videos: Sequence[Video]
    extraction: Extraction
    source: Path
    """Folder to which rejected.jsonl names the videos."""

    content: str
    """Hash of the settings and of the videos, their sizes included: a finished shard that carries it is kept."""

    sizes: Sequence[int] = ()
    """Bytes of each video when it was listed, -1 where there was no such file."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """The settings in full, for whoever finds the shard alone."""

    last: bool = False
    """Whether a video that is not what it was when it was listed is left out, instead of being tried again."""

    def __str__(self) -> str:
        return f"{self.path} ({self.videos[0].id} to {self.videos[-1].id})"


class VideoList:
    """All videos of a data set, and those that are missing, in a temporary file. 24 bytes of memory per video."""

    def __init__(self, items: Iterable[Video | Missing], source: Path, scratch: Path) -> None:
        """Read the list. Raises UserError if an id occurs twice."""
        self.source = source
        self._sizes: dict[int, int] = {}
        self.missing = 0
        self.source_bytes = 0
        self._file = tempfile.TemporaryFile(dir=scratch, prefix=".videos-")  # noqa: SIM115 (closed by __exit__)
        self._missing = tempfile.TemporaryFile("w+", dir=scratch, prefix=".missing-", encoding="utf-8")  # noqa: SIM115
        keys, offsets, position = array("Q"), array("q"), 0
        device_of = functools.lru_cache(1 << 12)(_device)
        for item in items:
            if isinstance(item, Missing):
                self.missing += 1
                path = str(item.path) if item.path else ""
                self._missing.write(dump_row({"id": item.id, "path": path, "reason": item.reason}))
                continue
            size = size_of(item.path)
            self.source_bytes += max(size, 0)
            device = device_of(_folder_of(item.path))
            row = (json.dumps([os.path.relpath(item.path, source), size, device, *_fields(item)]) + "\n").encode()
            self._file.write(row)
            keys.append(key_of(item.id))
            offsets.append(position)
            position += len(row)
        self._offsets = np.frombuffer(offsets, np.int64)
        unsorted = np.frombuffer(keys, np.uint64)
        self._order = np.argsort(unsorted, kind="stable")
        self._sorted = unsorted[self._order]
        if len(twice := np.flatnonzero(self._sorted[1:] == self._sorted[:-1])):
            one, other = (self.video(int(self._order[twice[0] + k]))[0] for k in (0, 1))
            raise UserError(f"two videos have the id '{one.id}': {one.path} and {other.path}; rename one of them")

    def __enter__(self) -> VideoList:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._missing.close()

    def __len__(self) -> int:
        return len(self._offsets)

    def video(self, number: int) -> tuple[Video, int]:
        """One video by its place in the list, and its bytes (-1 where there is no such file)."""
        path, size, _, *fields = self._row(number)
        name, label, split, folds, segment, stretches, words = fields
        return (
            Video(
                name, self.source / path, label, split, tuple(folds), tuple(segment) if segment else None,
                tuple((a, b) for a, b in stretches), Words(*words) if words else None,
            ),
            self._sizes.get(number, size),
        )  # fmt: skip

    def _row(self, number: int) -> list[Any]:
        self._file.seek(int(self._offsets[number]))
        row: list[Any] = json.loads(self._file.readline())
        return row

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
        key = np.uint64(key_of(video_id))
        at = int(np.searchsorted(self._sorted, key))
        return int(self._order[at]) if at < len(self) and self._sorted[at] == key else None

    def missing_rows(self) -> Iterator[str]:
        """Rows of rejected.jsonl for what the official lists name but is not there."""
        self._missing.seek(0)
        yield from self._missing


def _folder_of(path: Path) -> Path:
    """The folder that a file really lies in."""
    return Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent


def _device(folder: Path) -> int:
    """The file system of a folder, or of the nearest one above it: other where a disk is not mounted any more."""
    try:
        return folder.stat().st_dev
    except OSError:
        return _device(folder.parent) if folder != folder.parent else -1


def _fields(video: Video) -> list[object]:
    """What decides the bytes made of a video, besides the file itself."""
    words = astuple(video.words) if video.words else None
    return [video.id, video.label, video.split, video.folds, video.segment, video.stretches, words]


class Plan:
    """The shards of a data set: for each its number and the places of its videos in the list.

    Videos of an earlier plan stay in their shards; videos that are gone leave them; new ones are cut, in the order of
    the list, into new shards of at most `videos_per_shard` videos and about `megabytes_per_shard` of video files.
    """

    def __init__(self, videos: VideoList, destination: Path, videos_per_shard: int, megabytes_per_shard: float) -> None:
        self.videos, self.destination = videos, destination
        self.numbers = array("q")
        self._places, self._ends = array("q"), array("q", [0])
        assigned = np.zeros(len(videos), bool)
        known, whole = _assigned(destination)
        for number, ids in known:
            places = [place for place in map(videos.place, ids) if place is not None and not assigned[place]]
            if not whole:
                places.sort()  # as they were cut
            if places:
                assigned[places] = True
                self._add(number, places)
        group: list[int] = []
        size, limit = 0, megabytes_per_shard * 1e6
        number = max(self.numbers, default=-1)
        for place in np.flatnonzero(~assigned):
            _, more = videos.video(int(place))
            if group and (len(group) == videos_per_shard or size + more > limit):
                self._add(number := number + 1, group)
                group, size = [], 0
            group.append(int(place))
            size += max(more, 0)
        if group:
            self._add(number + 1, group)

    def _add(self, number: int, places: Sequence[int]) -> None:
        self.numbers.append(number)
        self._places.extend(places)
        self._ends.append(len(self._places))

    def __len__(self) -> int:
        return len(self.numbers)

    def count(self, shard: int) -> int:
        """How many videos the shard at this place of the plan is made of."""
        return self._ends[shard + 1] - self._ends[shard]

    def _rows(self, shard: int) -> list[tuple[Video, int]]:
        """The videos of the shard at this place of the plan, each with its bytes."""
        return [self.videos.video(place) for place in self.places(shard)]

    def path(self, shard: int) -> Path:
        return self.destination / f"shard-{self.numbers[shard]:06d}.h5"

    def places(self, shard: int) -> Sequence[int]:
        """Where in the list the videos of the shard at this place of the plan are."""
        return self._places[self._ends[shard] : self._ends[shard + 1]]

    def task(self, shard: int, extraction: Extraction, details: Mapping[str, Any], last: bool = False) -> ShardTask:
        """What has to be done for the shard at this place of the plan; `details` are the settings in full."""
        rows = self._rows(shard)
        described = [[size, *_fields(video)] for video, size in rows]
        text = json.dumps([SCHEMA, extraction.identity, dict(details), described], ensure_ascii=False)
        content = hashlib.sha256(text.encode()).hexdigest()
        videos, sizes = [video for video, _ in rows], [size for _, size in rows]
        return ShardTask(self.path(shard), videos, extraction, self.videos.source, content, sizes, details, last)

    def pending(self, extraction: Extraction, details: Mapping[str, Any]) -> array[int]:
        """Places of the shards that are not there yet, or not as this plan wants them."""
        return array("q", (shard for shard in range(len(self)) if not self._is_done(shard, extraction, details)))

    def _is_done(self, shard: int, extraction: Extraction, details: Mapping[str, Any]) -> bool:
        content = shard_content(self.path(shard))
        return content is not None and content == self.task(shard, extraction, details).content

    def write(self, details: Mapping[str, Any]) -> None:
        """Keep the assignment beside the shards: the settings, then a line per shard, its number and its videos."""
        shards = (
            {"shard": self.numbers[shard], "videos": [video.id for video, _ in self._rows(shard)]}
            for shard in range(len(self))
        )
        rows: Iterable[dict[str, Any]] = itertools.chain([{"settings": dict(details)}], shards)
        write_lines(self.destination / PLAN, with_checksum(map(dump_row, rows)))


def read_settings(destination: Path) -> dict[str, Any] | None:
    """The settings that the shards of a folder were planned with, None where there is nothing that tells them."""
    lines = _lines(destination / PLAN)
    if lines is not None:
        return dict(json.loads(next(lines))["settings"])
    for path in _shards(destination):
        with contextlib.suppress(OSError, Damaged), open_sealed(path) as file:
            return dict(json.loads(file.attrs["settings"]))
    return None


def absent_videos(videos: VideoList, destination: Path) -> tuple[int, dict[int, set[str]]]:
    """How many videos the plan of a folder names, and by shard the ids of those that the list does not have."""
    planned, absent = 0, {}
    for number, ids in _assigned(destination)[0]:
        planned += len(ids)
        if names := {name for name in ids if videos.place(name) is None}:
            absent[number] = names
    return planned, absent


def held_videos(destination: Path, wanted: Mapping[int, set[str]]) -> Iterator[str]:
    """Those of the wanted ids, given by shard, that finished shards of a folder hold."""
    for number, names in wanted.items():
        path = destination / f"shard-{number:06d}.h5"
        if path.is_file():
            with contextlib.suppress(OSError, Damaged), open_sealed(path) as file:
                yield from sorted(names.intersection(file["video/id"].asstr()[:].tolist()))


Assigned = Iterator[tuple[int, list[str]]]


def _assigned(destination: Path) -> tuple[Assigned, bool]:
    """Number and videos of every shard, and whether it is the plan that says so, or, where that is damaged, the shards.

    They name the same videos, in another order.
    """
    lines = _lines(destination / PLAN)
    return (_by_shards(destination), False) if lines is None else (_by_plan(lines), True)


def _by_plan(lines: Iterator[str]) -> Assigned:
    next(lines)  # the settings
    for line in lines:
        row = json.loads(line)
        yield row["shard"], row["videos"]


def _by_shards(destination: Path) -> Assigned:
    for path in _shards(destination):
        with contextlib.suppress(OSError, Damaged), open_sealed(path) as file:
            kept = file["video/id"].asstr()[:].tolist()
            left_out = [json.loads(row)["id"] for row in file["rejected"][:]]
            yield int(path.stem.removeprefix("shard-")), kept + left_out


def _lines(path: Path) -> Iterator[str] | None:
    """The lines of a plan, None where there is none, or none that is whole."""
    try:
        return checked_lines(path) if path.is_file() else None
    except ValueError:
        return None


def _shards(destination: Path) -> list[Path]:
    return sorted(path for path in destination.glob("shard-*.h5") if path.stem[6:].isdecimal())
