"""What a run found and did: a table for people, and the same numbers in `summary.json`."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import NamedTuple

import numpy as np

from gdt.common.files import write_text
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import REJECTED, read_rejected

SUMMARY = "summary.json"
SLOWEST = 10
"""How many of the slowest videos are named."""
_SPLITS = ("train", "val", "test", "unused")


class Slow(NamedTuple):
    """A video that took long."""

    seconds: float
    id: str


@dataclass(frozen=True)
class Summary:
    """What a run found and did."""

    index: Index
    """Of all shards, those made earlier too."""
    videos: int
    """Found, and listed but missing."""
    reasons: dict[str, int]
    """How many videos were left out for which reason."""
    notes: dict[str, int]
    """How many of the kept videos have which note."""
    shards_made: int
    decoded: int
    """Videos of the shards that were made now."""
    relabelled: int
    """Videos whose label, split, folds or further columns are not those of the index that was there before."""
    slowest: Sequence[Slow]
    """Over all runs into this folder, the slowest first."""

    @property
    def kept(self) -> int:
        return len(self.index)

    @property
    def rejected(self) -> int:
        return sum(self.reasons.values())

    @property
    def shards_kept(self) -> int:
        return len(self.index.shard_names) - self.shards_made

    @property
    def hours(self) -> float:
        return float(self.index.frame_count.sum()) / self.index.fps / 3600

    @property
    def gigabytes(self) -> float:
        return float(self.index.shard_bytes.sum()) / 1e9

    @property
    def without_sound(self) -> int:
        return int((self.index.mel_count == 0).sum())

    @property
    def silent_seconds(self) -> float:
        return float(self.index.silence.sum())


def summarise(index: Index, videos: int, made: int, decoded: int, relabelled: int, slow: Sequence[Slow]) -> Summary:
    """Count what is in the shards' folder, and write it to `summary.json` there."""
    path = index.folder / SUMMARY
    earlier: list[Slow] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if path.is_file():
            earlier = [Slow(float(seconds), str(name)) for seconds, name in json.loads(path.read_text())["slowest"]]
    again = {row.id for row in slow}
    slowest = nlargest(SLOWEST, [*slow, *(row for row in earlier if row.id not in again)])
    reasons = Counter(_kind(row["reason"]) for row in read_rejected(index.folder))
    notes = Counter(_kind(note) for note in index.note if note)
    summary = Summary(
        index, videos, dict(reasons.most_common()), dict(notes.most_common()), made, decoded, relabelled, slowest
    )
    row = {
        "videos": videos, "kept": summary.kept, "decoded": decoded, "relabelled": relabelled,
        "left_out": summary.reasons, "notes": summary.notes,
        "splits": _splits(index), "classes": len(index.classes), "hours": summary.hours,
        "gigabytes": summary.gigabytes, "without_sound": summary.without_sound,
        "silent_seconds": summary.silent_seconds, "words": int(index.text_count.sum()), "slowest": slowest,
    }  # fmt: skip
    write_text(path, json.dumps(row, indent=1, ensure_ascii=False) + "\n")
    return summary


def _kind(reason: str) -> str:
    """A reason without what differs from video to video: names, numbers, and the decoder's words after ours."""
    reason = re.sub(r"^it has the id of .*, which is kept$", "it has the id of another, which is kept", reason)
    return re.sub(r"(?<!UTF-)\b(0x[0-9a-f]+|\d+(\.\d+)?)(?=\D|$)", "N", reason.split(";")[0])


def _splits(index: Index) -> dict[str, int]:
    return {split: n for split in _SPLITS if (n := int(np.count_nonzero(index.split == split)))}


def describe(summary: Summary) -> str:
    """The table printed at the end of a run."""
    index, folder = summary.index, summary.index.folder
    splits = ", ".join(f"{n} {split}" for split, n in _splits(index).items())
    lines = [
        f"{summary.kept} of {summary.videos} videos kept ({splits}; {len(index.classes)} classes), "
        f"{summary.hours:.2f} hours, {summary.gigabytes:.2f} GB in {folder}",
        f"{summary.decoded} decoded, {summary.relabelled} relabelled; {summary.shards_made} shards made now, "
        f"{summary.shards_kept} were there already",
    ]
    if summary.rejected:
        lines.append(f"{summary.rejected} left out, each with its reason in {folder / REJECTED}:")
        lines += _counts(summary.reasons)
    if summary.notes:
        lines.append(f"{sum(summary.notes.values())} kept with a note (video/note in {index.folder.name}/index.h5):")
        lines += _counts(summary.notes)
    if summary.without_sound:
        lines.append(f"{summary.without_sound} kept without sound: only presets a to d can learn from them")
    lines.append(f"{summary.silent_seconds:.0f} s of the sound are silence")
    if index.settings.get("vocabulary"):
        words, videos = int(index.text_count.sum()), int((index.text_count > 0).sum())
        lines.append(f"{words} words in {videos} videos, beside stop words and those that the word2vec file lacks")
    if summary.slowest:
        named = ", ".join(f"{row.id} ({row.seconds:.1f} s)" for row in summary.slowest[:3])
        lines.append(f"slowest: {named}; all figures in {folder / SUMMARY}")
    return "\n".join(lines)


def _counts(counts: dict[str, int], most: int = 8) -> list[str]:
    rows = [f"{n:8d}  {reason}" for reason, n in list(counts.items())[:most]]
    rest = sum(list(counts.values())[most:])
    return rows + ([f"{rest:8d}  other"] if rest else [])
