"""The videos of a run, as a list in memory, and their assignment to shards.

The plan is kept next to the shards (`plan.jsonl`): an interrupted run resumes with the same shards, and videos added
later form new shards instead of changing old ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from gdt.common.errors import LeftOut, UserError
from gdt.common.files import dump_row, write_lines
from gdt.common.folders import Folder
from gdt.pipeline.shards.container import SCHEMA
from gdt.pipeline.shards.index import Annotations
from gdt.preprocess.datasets.listing import Item, SourceFiles
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.videos import ListedVideo

PLAN = "plan.jsonl"
SHARD_BYTES = 256e6
"""Maximum bytes of the videos of a shard, which is 1 to 3 times as large; one video may be more."""
_LEAST, _SHARE = 16, 20
"""Of a small set, a shard has one of so many parts, since a kill costs those in work, but not fewer than these videos,
which one ffmpeg decodes.
"""


@dataclass(frozen=True)
class Shares:
    """Fractions of the videos without a split that become val and test; the others become train."""

    val: float = 0.0
    test: float = 0.0
    chosen: Mapping[str, str] = field(default_factory=dict)
    """The split of the video, by id, that was moved into a split which the draw left without a usable video."""

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
        """The split of a video, which depends only on its id and, in small sets, on those chosen before.

        Changing the share of val moves no video into or out of test, and vice versa.
        """
        if self.share(self.chosen.get(video_id, "train")):
            return self.chosen[video_id]
        draw = _draw(video_id)
        if draw < self.test:
            return "test"
        if draw > 1 - self.val:
            return "val"
        return "train"

    def changed(self, val: float | None, test: float | None) -> Shares:
        """With other shares; None keeps one."""
        return replace(self, val=self.val if val is None else val, test=self.test if test is None else test)

    def share(self, split: str) -> float:
        """The share of val or test; 0 for train."""
        return {"val": self.val, "test": self.test}.get(split, 0.0)

    def without_empty(self, video_ids: Collection[str]) -> Shares:
        """With a video, chosen from train, for each split that was asked for and would be empty."""
        splits = {video_id: self.split(video_id) for video_id in video_ids}
        chosen = dict(self.chosen)
        for split in ("test", "val"):
            train = [video_id for video_id, drawn in splits.items() if drawn == "train"]
            if self.share(split) and split not in splits.values() and len(train) > 1:
                nearest = min(train, key=_draw) if split == "test" else max(train, key=_draw)
                splits[nearest] = split
                chosen[nearest] = split
        return replace(self, chosen=chosen)


def _draw(video_id: str) -> float:
    """A number from 0 to 1 that depends only on the id."""
    return int.from_bytes(hashlib.blake2b(video_id.encode(), digest_size=8).digest(), "little") / 2**64


@dataclass(frozen=True)
class Listed:
    videos: dict[str, ListedVideo]
    """By id, sorted, each with its split and the size of its file."""
    left_out: list[LeftOut]
    """Those that cannot be used."""
    shares: Shares
    """Those that decide the split of the videos without one."""
    drawn: Collection[str]
    """The ids of those."""
    ignored: Mapping[str, int]
    """How many files and folders are ignored, by suffix or in words."""
    readings: Sequence[str]
    """How folders and labels are read."""

    def settled(self, kept: Collection[str]) -> Listed:
        """With a kept video, chosen from train, for each split that was asked for and would have no kept one."""
        shares = self.shares.without_empty([video_id for video_id in kept if video_id in self.drawn])
        splits = {video_id: shares.split(video_id) for video_id in self.drawn}
        videos = {video_id: replace(self.videos[video_id], split=split) for video_id, split in splits.items()}
        return replace(self, videos={**self.videos, **videos}, shares=shares)

    def annotations(self, ids: Sequence[str]) -> Annotations:
        """Labels, splits, folds and further columns of the videos with these ids."""
        videos = [self.videos[id] for id in ids]
        values_by_name = {
            "label": [video.label for video in videos],
            "split": [video.split for video in videos],
            "folds": [",".join(video.folds) for video in videos],
        }
        for row, video in enumerate(videos):
            for name, value in video.columns:
                values_by_name.setdefault(name, [""] * len(ids))[row] = value
        return values_by_name


def collect(items: Iterable[Item], source: SourceFiles, shares: Shares = Shares()) -> Listed:
    """The list of the videos of a source: the first of each id. Those without a split get one by `shares`.

    A split may be empty until decoding shows which videos are kept, see `Listed.settled`.
    """
    videos: dict[str, ListedVideo] = {}
    left_out: list[LeftOut] = []
    drawn: set[str] = set()
    folder = source.folder
    for item in items:
        if isinstance(item, LeftOut):
            left_out.append(replace(item, path=folder.address(item.path) if item.path else ""))
        elif item.id in videos:
            reason = f"it has the id of another video; {folder.address(videos[item.id].path)} is kept"
            left_out.append(LeftOut(item.id, reason, folder.address(item.path), fault=True))
        else:
            if not item.split:
                drawn.add(item.id)
            size, time = (item.folder or folder).state(item.path)
            split = item.split or shares.split(item.id)
            videos[item.id] = replace(item, split=split, size=size, time=time)
    return Listed(dict(sorted(videos.items())), left_out, shares, drawn, source.ignored, source.readings)


@dataclass(frozen=True)
class ShardTask:
    """Everything that determines the bytes of one shard."""

    destination: Folder
    name: str
    source: Folder
    videos: Sequence[ListedVideo]
    extraction: Extraction
    details: Mapping[str, Any]
    """All settings that change shards, to be recorded in the shard."""

    def __str__(self) -> str:
        return f"{self.destination.address(self.name)} ({self.videos[0].id} to {self.videos[-1].id})"

    @property
    def content(self) -> str:
        """Hash of settings, videos and sizes, which determine the shard's bytes."""
        videos = [_content(video) for video in self.videos]
        text = json.dumps([SCHEMA, dict(self.details), videos], ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def _content(video: ListedVideo) -> list[object]:
    """What determines the stored data of a video; its file may move."""
    words = astuple(video.words) if video.words else None
    key: list[object] = [video.size, video.id, video.segment, video.stretches, words]
    if video.official:
        key.append("of any length")
    if video.uncut:  # the file of a query or of features, which no hash tells from its former content
        key.append(video.time)
    return key


@dataclass(frozen=True)
class Plan:
    """What a run decided, for later runs into the same folder."""

    shares: Shares = Shares()
    shards: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The ids of the videos of each shard by its number."""
    times: Mapping[str, str] = field(default_factory=dict)
    """By id: the known times of the files that finished shards were made of, or compared with."""
    files: Mapping[str, str] = field(default_factory=dict)
    """By id: the address of the file, maybe with the second where the video begins in it, as in a.mp4#t=12.5."""

    @staticmethod
    def read(destination: Folder) -> Plan:
        """The plan of the last run; an empty one without."""
        if not destination.exists(PLAN):
            return Plan()
        try:
            with destination.open(PLAN) as file:
                first, *rows = map(json.loads, file)
            shards = {row["shard"]: row["videos"] for row in rows}
            times = {id: time for row in rows for id, time in zip(row["videos"], row["times"], strict=True) if time}
            files = {id: file for row in rows for id, file in zip(row["videos"], row["files"], strict=True) if file}
            return Plan(Shares(**first["shares"]), shards, times, files)
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{destination.address(PLAN)} is damaged ({error}); delete it: shards whose videos change are made "
                "again"
            ) from error

    def write(self, destination: Folder) -> None:
        """Write a line of the shares, then one for each shard."""
        rows: list[dict[str, Any]] = [{"shares": asdict(self.shares)}]
        for number, ids in self.shards.items():
            known = {"times": [self.times.get(id, "") for id in ids], "files": [self.files.get(id, "") for id in ids]}
            rows.append({"shard": number, "videos": ids, **known})
        destination.write(PLAN, lambda path: write_lines(path, map(dump_row, rows)))


def assign(
    videos: Mapping[str, ListedVideo], planned: Mapping[int, Sequence[str]], videos_per_shard: int, shard_bytes: float
) -> dict[int, list[ListedVideo]]:
    """The videos of each shard by its number, given those of an earlier plan.

    Planned videos stay in their shards; the others are divided, in the order of the list, into new shards of at most
    `videos_per_shard` videos, fewer of a small set, and about `shard_bytes` of files.
    """
    left = dict(videos)
    shards: dict[int, list[ListedVideo]] = {}
    for number, names in planned.items():
        members = [left.pop(name) for name in names if name in left]
        if members:
            shards[number] = members
    videos_per_shard = min(videos_per_shard, max(_LEAST, len(left) // _SHARE))
    number = max(shards, default=-1)
    room = 0.0
    group: list[ListedVideo] = []
    for video in left.values():
        size = max(video.size, 0)
        room -= size
        if not group or len(group) == videos_per_shard or room < 0:
            number += 1
            room = shard_bytes - size
            group = []
            shards[number] = group
        group.append(video)
    return shards
