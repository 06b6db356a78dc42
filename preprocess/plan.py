"""Assign videos to shards.

The plan is kept next to the shards (`plan.jsonl`): an interrupted run resumes with the same shards, and videos added
later form new shards instead of changing old ones.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from gdt.common.errors import UserError
from gdt.common.files import dump_row, write_lines
from gdt.pipeline.shards.container import SCHEMA, Damaged, Head
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.videos import Shares

PLAN = "plan.jsonl"


@dataclass(frozen=True)
class ShardTask:
    """Everything that determines the bytes of one shard."""

    path: Path
    videos: Sequence[Video]
    extraction: Extraction
    details: Mapping[str, Any]
    """All settings that change shards, to be recorded in the shard."""

    def __str__(self) -> str:
        return f"{self.path} ({self.videos[0].id} to {self.videos[-1].id})"

    @property
    def content(self) -> str:
        """Hash of settings, videos and sizes, which determine the shard's bytes."""
        videos = [_content(video) for video in self.videos]
        text = json.dumps([SCHEMA, dict(self.details), videos], ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def done(self) -> bool:
        """Whether the shard is there."""
        try:
            return Head.read(self.path).notes["content"] == self.content
        except (Damaged, FileNotFoundError):
            return False


def _content(video: Video) -> list[object]:
    """What determines the stored data of a video; its file may move."""
    words = astuple(video.words) if video.words else None
    key: list[object] = [video.size, video.id, video.segment, video.stretches, words]
    return [*key, "of any length"] if video.folds else key


def assign(
    videos: Mapping[str, Video], planned: Iterable[tuple[int, Sequence[str]]], videos_per_shard: int, megabytes: float
) -> dict[int, list[Video]]:
    """The videos of each shard by its number, given those of an earlier plan.

    Planned videos stay in their shards; the others are divided, in the order of the list, into new shards of at most
    `videos_per_shard` videos and about `megabytes` of files.
    """
    left, shards = dict(videos), {}
    for number, names in planned:
        if members := [left.pop(name) for name in names if name in left]:
            shards[number] = members
    number, room, group = max(shards, default=-1), 0.0, list[Video]()
    for video in left.values():
        room -= max(video.size, 0)
        if not group or len(group) == videos_per_shard or room < 0:
            number, room, group = number + 1, 1e6 * megabytes - max(video.size, 0), []
            shards[number] = group
        group.append(video)
    return shards


def shard_path(destination: Path, number: int) -> Path:
    return destination / f"shard-{number:06d}.h5"


def write_plan(destination: Path, shares: Shares, shards: Mapping[int, Sequence[Video]]) -> None:
    """Write plan.jsonl: the shares, then number and videos of each shard."""
    rows = (dump_row({"shard": number, "videos": [each.id for each in videos]}) for number, videos in shards.items())
    write_lines(destination / PLAN, itertools.chain([dump_row({"shares": asdict(shares)})], rows))


def read_shares(destination: Path) -> Shares:
    """The shares of the last run into a folder."""
    return next((Shares(**row["shares"]) for row in _rows(destination)), Shares())


def read_plan(destination: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and ids of every planned shard; none without a plan."""
    return ((row["shard"], row["videos"]) for row in _rows(destination) if "shard" in row)


def _rows(destination: Path) -> Iterator[dict[str, Any]]:
    path = destination / PLAN
    if not path.is_file():
        return
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield dict(json.loads(line))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); delete it: shards whose videos change are made again") from error
