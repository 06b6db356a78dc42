"""Which video goes into which shard.

The list of videos is read once (videos.py), and the assignment of videos to shards is kept beside the shards
(`plan.jsonl`). So a list of any length takes hardly any memory, a run that was stopped goes on with the same shards,
and videos that are added later make new shards instead of moving the old ones.
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

import h5py
import numpy as np

from gdt.common.files import checked_lines, dump_row, with_checksum, write_lines
from gdt.pipeline.shards.layout import shard_content
from gdt.pipeline.shards.seal import SCHEMA, Damaged, open_sealed
from gdt.preprocess.datasets.listing import SPLITS, Missing, Video, find_key, key_of
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.videos import Shares, VideoList, decides

PLAN = "plan.jsonl"


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
        planned, whole = _planned(destination)
        for row in planned:
            places = [place for place in map(videos.place, row["videos"]) if place is not None and not assigned[place]]
            if not whole:
                places.sort()  # as they were cut
            if places:
                assigned[places] = True
                self._add(row["shard"], places)
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

    def path(self, shard: int) -> Path:
        return self.destination / f"shard-{self.numbers[shard]:06d}.h5"

    def places(self, shard: int) -> Sequence[int]:
        """Where in the list the videos of the shard at this place of the plan are."""
        return self._places[self._ends[shard] : self._ends[shard + 1]]

    def task(self, shard: int, extraction: Extraction, details: Mapping[str, Any], last: bool = False) -> ShardTask:
        """What has to be done for the shard at this place of the plan; `details` are the settings in full."""
        rows = [self.videos.video(place) for place in self.places(shard)]
        content = _content([[size, *decides(video)] for video, size in rows], extraction, details)
        videos, sizes = [video for video, _ in rows], [size for _, size in rows]
        return ShardTask(self.path(shard), videos, extraction, self.videos.source, content, sizes, details, last)

    def pending(self, extraction: Extraction, details: Mapping[str, Any]) -> array[int]:
        """Places of the shards that are not there yet, or not as this plan wants them."""
        return array("q", (shard for shard in range(len(self)) if not self._is_done(shard, extraction, details)))

    def _is_done(self, shard: int, extraction: Extraction, details: Mapping[str, Any]) -> bool:
        content = shard_content(self.path(shard))
        return content is not None and content == self.task(shard, extraction, details).content

    def write(self, details: Mapping[str, Any]) -> None:
        """Keep the assignment beside the shards: settings and shares, then for each shard its number and its videos."""
        first = {"settings": dict(details), "shares": asdict(self.videos.shares)}
        rows = itertools.chain([first], map(self._line, range(len(self))))
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

    An id that is a path below train/, val/ or test/ becomes a whole path once another video has that path there, too,
    and back again: no reason to decode a video again. 16 bytes of memory for each video of the plan.
    """
    ids, paths = array("Q"), array("Q")  # and those of ids that are without the folder of their split
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
    """The settings that the shards of a folder were planned with, None where there is nothing that tells them."""
    rows = _rows(destination)
    if rows is not None:
        return dict(next(rows)["settings"])
    return next((json.loads(file.attrs["settings"]) for _, file in _shards(destination)), None)


def read_shares(destination: Path) -> Shares | None:
    """The shares of the last run into a folder, None where there is no plan that tells them."""
    rows = _rows(destination)
    return None if rows is None else Shares(**next(rows)["shares"])


def absent_videos(videos: VideoList, destination: Path) -> tuple[int, dict[int, set[str]]]:
    """How many videos the plan of a folder names, and by shard the ids of those that the list does not have."""
    planned, absent = 0, {}
    for row in _planned(destination)[0]:
        planned += len(row["videos"])
        if names := {name for name in row["videos"] if videos.place(name) is None}:
            absent[row["shard"]] = names
    return planned, absent


def held_videos(destination: Path, wanted: Mapping[int, set[str]]) -> Iterator[str]:
    """Those of the wanted ids, given by shard, that finished shards of a folder hold."""
    for number, file in _shards(destination):
        if number in wanted:
            yield from sorted(wanted[number].intersection(file["video/id"].asstr()[:].tolist()))


def _planned(destination: Path) -> tuple[Iterator[dict[str, Any]], bool]:
    """Number and videos of every shard, and whether it is the plan that says so, or, where that is damaged, the shards.

    They name the same videos, in another order.
    """
    rows = _rows(destination)
    if rows is not None:
        next(rows)  # settings and shares
        return rows, True
    return (
        {
            "shard": number,
            "videos": file["video/id"].asstr()[:].tolist() + [json.loads(row)["id"] for row in file["rejected"][:]],
        }
        for number, file in _shards(destination)
    ), False


def _rows(destination: Path) -> Iterator[dict[str, Any]] | None:
    """The rows of a plan, None where there is none, or none that is whole."""
    path = destination / PLAN
    try:
        return map(json.loads, checked_lines(path)) if path.is_file() else None
    except ValueError:
        return None


def _shards(destination: Path) -> Iterator[tuple[int, h5py.File]]:
    """Number of every shard that can be read, and the shard, open until the next is."""
    for path in sorted(destination.glob("shard-*.h5")):
        number = path.stem.removeprefix("shard-")
        with contextlib.suppress(OSError, Damaged):
            if number.isdecimal():
                with open_sealed(path) as file:
                    yield int(number), file
