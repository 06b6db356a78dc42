"""Assign videos to shards.

The plan is kept next to the shards (`plan.jsonl`): an interrupted run resumes with the same shards, and videos added
later form new shards instead of changing old ones. The videos themselves stay in a table on disk (videos.py), so that a
list of any length takes little memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import dump_row, write_lines
from gdt.pipeline.shards.container import SCHEMA, Damaged, Head, texts
from gdt.pipeline.shards.index import read_table
from gdt.preprocess.datasets.listing import SPLITS, Missing, Video, find_key, key_of
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.videos import Shares, VideoList, content_key

PLAN = "plan.jsonl"


@dataclass(frozen=True)
class ShardTask:
    """Everything that determines the bytes of one shard."""

    path: Path
    videos: Sequence[Video]
    extraction: Extraction
    source: Path
    """Folder to which the paths in rejected.jsonl are relative."""

    content: str
    """Hash of settings, videos and sizes, which determine the shard's bytes; a finished shard with the same hash is
    kept."""

    sizes: Sequence[int] = ()
    """Bytes of each video when it was listed, -1 if there was no such file."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """Settings to record in the shard."""

    last: bool = False
    """Reject videos that have changed since they were listed, instead of trying again."""

    def __str__(self) -> str:
        return f"{self.path} ({self.videos[0].id} to {self.videos[-1].id})"


class Plan:
    """The shards of a data set, each with its number and the numbers of its videos in the list.

    Videos of an earlier plan stay in their shards; deleted videos are removed from their shards; new videos are
    divided, in the order of the list, into new shards of at most `videos_per_shard` videos and about
    `megabytes_per_shard` of files.
    """

    def __init__(self, videos: VideoList, destination: Path, videos_per_shard: int, megabytes_per_shard: float) -> None:
        self.videos, self.destination = videos, destination
        self.numbers = array("q")
        self._members, self._ends = array("q"), array("q", [0])
        assigned = np.zeros(len(videos), bool)
        earlier, ordered = _planned(destination)
        for row in earlier:
            members = [k for k in map(videos.number, row["videos"]) if k is not None and not assigned[k]]
            if not ordered:
                members.sort()
            if members:
                assigned[members] = True
                self._add(row["shard"], members)
        group: list[int] = []
        size, limit = 0, megabytes_per_shard * 1e6
        number = max(self.numbers, default=-1)
        for k in map(int, np.flatnonzero(~assigned)):
            _, more = videos.video(k)
            if group and (len(group) == videos_per_shard or size + more > limit):
                self._add(number := number + 1, group)
                group, size = [], 0
            group.append(k)
            size += max(more, 0)
        if group:
            self._add(number + 1, group)

    def _add(self, number: int, members: Sequence[int]) -> None:
        self.numbers.append(number)
        self._members.extend(members)
        self._ends.append(len(self._members))

    def __len__(self) -> int:
        return len(self.numbers)

    def count(self, shard: int) -> int:
        """Number of videos of the shard at this index of the plan."""
        return self._ends[shard + 1] - self._ends[shard]

    def path(self, shard: int) -> Path:
        return self.destination / f"shard-{self.numbers[shard]:06d}.h5"

    def members(self, shard: int) -> Sequence[int]:
        """Numbers in the list of the videos of a shard."""
        return self._members[self._ends[shard] : self._ends[shard + 1]]

    def task(self, shard: int, extraction: Extraction, details: Mapping[str, Any], last: bool = False) -> ShardTask:
        """The task that makes a shard; `details` are all settings."""
        rows = [self.videos.video(k) for k in self.members(shard)]
        content = _content([[size, *content_key(video)] for video, size in rows], extraction, details)
        videos, sizes = [video for video, _ in rows], [size for _, size in rows]
        return ShardTask(self.path(shard), videos, extraction, self.videos.source, content, sizes, details, last)

    def pending(self, extraction: Extraction, details: Mapping[str, Any]) -> array[int]:
        """Indices of the shards that are absent, or differ from this plan."""
        return array("q", (shard for shard in range(len(self)) if not self._is_done(shard, extraction, details)))

    def _is_done(self, shard: int, extraction: Extraction, details: Mapping[str, Any]) -> bool:
        try:
            content = Head.read(self.path(shard)).notes["content"]
        except (Damaged, FileNotFoundError):
            return False
        return content == self.task(shard, extraction, details).content

    def write(self, details: Mapping[str, Any]) -> None:
        """Write plan.jsonl: settings and shares, then number and videos of each shard."""
        first = {"settings": dict(details), "shares": asdict(self.videos.shares)}
        rows = itertools.chain([first], map(self._row, range(len(self))))
        write_lines(self.destination / PLAN, map(dump_row, rows))

    def _row(self, shard: int) -> dict[str, Any]:
        names = [self.videos.name(k) for k in self.members(shard)]
        folders = [_split_folder(path, name) for name, path in names]
        row: dict[str, Any] = {"shard": self.numbers[shard], "videos": [name for name, _ in names]}
        return row | {"folders": folders} if any(folders) else row


def _split_folder(path: str, video_id: str) -> str:
    """The split folder of a video whose id is its path below it; else empty."""
    first, _, rest = path.partition("/")
    return first if rest == video_id and first.lower() in SPLITS else ""


def with_planned_ids(items: Iterable[Video | Missing], source: Path, destination: Path) -> Iterator[Video | Missing]:
    """Yield the videos with the ids that the plan in `destination` gave them.

    An id is the path below train/, val/ or test/, or the whole path if another of these folders has the same path below
    it. So a new file may change the id of another, which would be decoded again. Takes 16 bytes per planned video.
    """
    ids, paths = array("Q"), array("Q")  # keys of all ids, and of whole paths whose ids lack the split folder
    for row in _planned(destination)[0]:
        ids.extend(map(key_of, row["videos"]))
        named = zip(row.get("folders", ()), row["videos"], strict=False)
        paths.extend(key_of(f"{folder}/{name}") for folder, name in named if folder)
    known, short = (np.sort(np.frombuffer(keys, np.uint64)) for keys in (ids, paths))
    for item in items:
        if len(known) and isinstance(item, Video) and str(item.path).endswith(item.id):
            path = os.path.relpath(item.path, source)
            first, _, rest = path.partition("/")
            if first.lower() in SPLITS and item.id in (path, rest):
                if find_key(short, path) is not None:
                    item = replace(item, id=rest)
                elif find_key(known, item.id) is None and find_key(known, path) is not None:
                    item = replace(item, id=path)
        yield item


def _content(videos: list[list[object]], extraction: Extraction, details: Mapping[str, Any]) -> str:
    text = json.dumps([SCHEMA, extraction.identity, dict(details), videos], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_settings(destination: Path) -> dict[str, Any] | None:
    """The settings of the shards in a folder, from the plan or a shard; None if neither is readable."""
    rows = _rows(destination)
    if rows is not None:
        return dict(next(rows)["settings"])
    return next((json.loads(head.notes["settings"]) for _, head, _ in _shards(destination)), None)


def read_shares(destination: Path) -> Shares | None:
    """The shares of the last run into a folder, None without a plan."""
    rows = _rows(destination)
    return None if rows is None else Shares(**next(rows)["shares"])


def absent_videos(videos: VideoList, destination: Path) -> tuple[int, dict[int, set[str]]]:
    """Number of videos in the plan of a folder, and, by shard number, the ids that are not in the list."""
    planned, absent = 0, {}
    for row in _planned(destination)[0]:
        planned += len(row["videos"])
        if names := {name for name in row["videos"] if videos.number(name) is None}:
            absent[row["shard"]] = names
    return planned, absent


def finished_videos(destination: Path, ids: Mapping[int, set[str]]) -> Iterator[str]:
    """The ids, given by shard number, that finished shards contain."""
    for number, _, table in _shards(destination):
        if number in ids:
            yield from sorted(ids[number].intersection(texts(table["video/id"]).tolist()))


def _planned(destination: Path) -> tuple[Iterator[dict[str, Any]], bool]:
    """Number and videos of every shard, and whether in planned order; from the plan, or else from the shards."""
    rows = _rows(destination)
    if rows is not None:
        next(rows)  # settings and shares
        return rows, True
    return (
        {
            "shard": number,
            "videos": texts(table["video/id"]).tolist() + [json.loads(row)["id"] for row in table["rejected"]],
        }
        for number, _, table in _shards(destination)
    ), False


def _rows(destination: Path) -> Iterator[dict[str, Any]] | None:
    """The rows of a plan, None without one. Raises UserError for a damaged one."""
    path = destination / PLAN
    return _parsed(path) if path.is_file() else None


def _parsed(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield dict(json.loads(line))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); delete it: the shards hold the same plan") from error


def _shards(destination: Path) -> Iterator[tuple[int, Head, dict[str, np.ndarray]]]:
    """Number, head and tables of every readable shard."""
    for path in sorted(destination.glob("shard-*.h5")):
        number = path.stem.removeprefix("shard-")
        with contextlib.suppress(OSError, UserError):
            if number.isdecimal():
                yield int(number), *read_table(path)
