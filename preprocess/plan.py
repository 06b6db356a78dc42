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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from pipeline.errors import UserError
from pipeline.files import checked_lines, dump_row, with_checksum, write_lines
from pipeline.shards.index import LABELS, Said, column_dataset
from pipeline.shards.layout import shard_content
from pipeline.shards.seal import SCHEMA, Damaged, open_sealed
from preprocess.datasets.listing import SPLITS, Missing, Video, Words, key_of, size_of
from preprocess.ffmpeg import Extraction

PLAN = "plan.jsonl"
_TOLD = 20
"""Pairs of videos with one id that are named."""
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
    """Hash of the settings and of what decides the bytes made of the videos, their sizes included: a finished shard
    that carries it is kept."""

    sizes: Sequence[int] = ()
    """Bytes of each video when it was listed, -1 where there was no such file."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """The settings in full, for whoever finds the shard alone."""

    last: bool = False
    """Whether a video that is not what it was when it was listed is left out, instead of being tried again."""

    def __str__(self) -> str:
        return f"{self.path} ({self.videos[0].id} to {self.videos[-1].id})"


@dataclass(frozen=True)
class Shares:
    """Parts, from 0 to 1, of the videos without a split that become val and test; the others become train."""

    val: float = 0.0
    test: float = 0.0

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

        Raises UserError if ids occur twice, unless `duplicates` is "first", which keeps the first of each, and if there
        are shares and every video has its split.
        """
        self.source = source
        self._sizes: dict[int, int] = {}
        self.missing = 0
        self.source_bytes = 0
        self._file = tempfile.TemporaryFile(dir=scratch, prefix=".videos-")  # noqa: SIM115 (closed by __exit__)
        self._labels = tempfile.TemporaryFile(dir=scratch, prefix=".labels-")  # noqa: SIM115
        self._missing = tempfile.TemporaryFile("w+", dir=scratch, prefix=".missing-", encoding="utf-8")  # noqa: SIM115
        keys, offsets = array("Q"), array("q")
        position, label_position, without_split = 0, 0, 0
        device_of = functools.lru_cache(1 << 12)(_device)
        for item in items:
            if isinstance(item, Missing):
                self._leave_out(item)
                continue
            if not item.split:
                without_split += 1
                item = replace(item, split=shares.split(item.id))
            size = size_of(item.path)
            self.source_bytes += max(size, 0)
            device = device_of(_folder_of(item.path))
            row = (json.dumps([os.path.relpath(item.path, source), size, device, *_decides(item)]) + "\n").encode()
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
        if len(self) and not without_split and shares != Shares():
            raise UserError(
                f"every video in {source} has its split, by its folder or by a list; --val and --test are shares of "
                "those that have none: leave them out"
            )

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
        self._labels.seek(int(self._offsets[number, 1]))
        label, split, folds, columns = json.loads(self._labels.readline())
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
            self._labels.seek(begin)
            label, split, folds, columns = json.loads(self._labels.readline())
            for name, value in zip(LABELS, (label, split, ",".join(folds)), strict=True):
                said[name][row] = encoded(value)
            for column, value in columns:
                if (name := dataset(column)) not in said:
                    said[name] = np.full(len(ids), b"", object)
                said[name][row] = encoded(value)
        return said

    def _row(self, number: int) -> list[Any]:
        self._file.seek(int(self._offsets[number, 0]))
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


def _decides(video: Video) -> list[object]:
    """What decides the bytes made of a video, besides the file itself."""
    words = astuple(video.words) if video.words else None
    return [video.id, video.segment, video.stretches, words]


def _said(video: Video) -> list[object]:
    """What is said about a video, and may change without decoding it again."""
    return [video.label, video.split, video.folds, video.columns]


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
        content = _content([[size, *_decides(video)] for video, size in rows], extraction, details)
        videos, sizes = [video for video, _ in rows], [size for _, size in rows]
        return ShardTask(self.path(shard), videos, extraction, self.videos.source, content, sizes, details, last)

    def pending(self, extraction: Extraction, details: Mapping[str, Any]) -> array[int]:
        """Places of the shards that are not there yet, or not as this plan wants them."""
        return array("q", (shard for shard in range(len(self)) if not self._is_done(shard, extraction, details)))

    def _is_done(self, shard: int, extraction: Extraction, details: Mapping[str, Any]) -> bool:
        content = shard_content(self.path(shard))
        if content is None:
            return False
        task = self.task(shard, extraction, details)
        return content == task.content or content in _earlier_contents(task)

    def write(self, details: Mapping[str, Any]) -> None:
        """Keep the assignment beside the shards: the settings, then a line per shard, its number and its videos."""
        rows = itertools.chain([{"settings": dict(details)}], map(self._line, range(len(self))))
        write_lines(self.destination / PLAN, with_checksum(map(dump_row, rows)))

    def _line(self, shard: int) -> dict[str, Any]:
        names = [self.videos.name(place) for place in self.places(shard)]
        folders = [_split_folder(path, name) for name, path in names]
        row: dict[str, Any] = {"shard": self.numbers[shard], "videos": [name for name, _ in names]}
        return row | {"folders": folders} if any(folders) else row


def _split_folder(path: str, video_id: str) -> str:
    """The folder train, val or test in which a video lies, where its id is the path below that; else empty."""
    first, _, rest = path.partition("/")
    return first if rest == video_id and first.lower() in SPLITS else ""


def as_planned(items: Iterable[Video | Missing], source: Path, destination: Path) -> Iterator[Video | Missing]:
    """The videos by the ids that they have in the plan of a folder, where it is another path of theirs.

    An id that is a path below train/, val/ or test/ becomes a whole path once another video has that path there, too;
    and an earlier version had whole paths only. Neither is a reason to decode a video again. 16 bytes of memory for
    each video of the plan.
    """
    ids, paths, folders = array("Q"), array("Q"), set()
    for name, folder in _planned(destination):
        ids.append(key_of(name))
        if folder:
            paths.append(key_of(f"{folder}/{name}"))
        elif (first := name.partition("/")[0]).lower() in SPLITS:
            folders.add(first)
    known, short = _Keys(ids), _Keys(paths)
    for item in items:
        if len(ids) and isinstance(item, Video) and str(item.path).endswith(item.id):
            path = os.path.relpath(item.path, source)
            first, _, rest = path.partition("/")
            if first.lower() in SPLITS and item.id in (path, rest):
                item = replace(item, id=_planned_id(item.id, path, rest, folders, known, short))
        yield item


def _planned_id(name: str, path: str, rest: str, folders: set[str], known: _Keys, short: _Keys) -> str:
    if path in short:
        return rest
    if name == path or name in known:
        return name
    before = [path] if path in known else [old for folder in folders if (old := f"{folder}/{rest}") in known]
    return before[0] if len(before) == 1 else name


class _Keys:
    """A set of names, as their keys. 8 bytes of memory each."""

    def __init__(self, keys: array[int]) -> None:
        self._keys = np.sort(np.frombuffer(keys, np.uint64))

    def __contains__(self, name: str) -> bool:
        key = np.uint64(key_of(name))
        at = int(np.searchsorted(self._keys, key))
        return at < len(self._keys) and bool(self._keys[at] == key)


def _content(videos: list[list[object]], extraction: Extraction, details: Mapping[str, Any]) -> str:
    text = json.dumps([SCHEMA, extraction.identity, dict(details), videos], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _earlier_contents(task: ShardTask) -> Iterator[str]:
    """What an earlier version called the same shard, with label, split and folds in it: as now, and as they were."""

    def content(said: Callable[[Video], Sequence[object]]) -> str:
        rows = zip(task.videos, task.sizes, strict=True)
        described = [[size, video.id, *said(video), *_decides(video)[1:]] for video, size in rows]
        return _content(described, task.extraction, task.details)

    def now(video: Video) -> Sequence[object]:
        return video.label, video.split, video.folds

    yield content(now)
    with contextlib.suppress(OSError, Damaged), open_sealed(task.path) as file:
        ids, label, split, folds = (file[name].asstr()[:].tolist() for name in ("video/id", *LABELS))
        folds = [row.split(",") if row else [] for row in folds]
        then = dict(zip(ids, zip(label, split, folds, strict=True), strict=True))
        yield content(lambda video: then.get(video.id) or now(video))


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


def _planned(destination: Path) -> Iterator[tuple[str, str]]:
    """Id of every video in the plan of a folder, and the split folder that the id is without."""
    lines = _lines(destination / PLAN)
    if lines is None:
        yield from ((name, "") for _, ids in _by_shards(destination) for name in ids)
        return
    next(lines)  # the settings
    for line in lines:
        row = json.loads(line)
        yield from zip(row["videos"], row.get("folders") or itertools.repeat(""), strict=False)


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
