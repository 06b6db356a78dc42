"""The summary of a run, printed and written to `summary.json`."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gdt.common.errors import LeftOut
from gdt.common.files import write_text
from gdt.common.intervals import FEWEST_VIDEOS
from gdt.common.wording import plural
from gdt.pipeline.shards.copies import between_splits
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import INDEX, REJECTED, SPLITS
from gdt.pipeline.shards.rejected import cause_of
from gdt.preprocess.datasets.listing import ignored_in_words
from gdt.preprocess.plan import Listed

SUMMARY = "summary.json"
_SHOWN = 8
"""Reasons and notes to print."""


@dataclass(frozen=True)
class Summary:
    index: Index
    listed: Listed
    reasons: dict[str, int]
    """Number of rejected videos by reason."""
    notes: dict[str, int]
    """Number of kept videos by note."""
    unread: Sequence[str]
    """The files that the machine could not read; the next run tries them again."""
    shards_made: int
    decoded: int
    """Videos of the new shards."""

    @property
    def videos(self) -> int:
        """Number of files, and of entries of official lists without one."""
        return len(self.listed.videos) + len(self.listed.left_out)

    @property
    def kept(self) -> int:
        return len(self.index)

    @property
    def shards_kept(self) -> int:
        return len(self.index.shard_names) - self.shards_made

    @property
    def without_sound(self) -> int:
        return int((self.index.mel_count == 0).sum())

    @property
    def numbers(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        index = self.index
        splits = Counter(index.split.tolist())
        return {
            "videos": self.videos,
            "kept": self.kept,
            "decoded": self.decoded,
            "left_out": self.reasons,
            "notes": self.notes,
            "ignored": dict(self.listed.ignored),
            "splits": {split: splits[split] for split in (*SPLITS, "unused") if splits[split]},
            "ffmpeg": dict(Counter(header.attributes["ffmpeg"] for header in index.headers)),
            "classes": len(index.classes),
            "hours": float(index.length.sum()) / index.fps / 3600,
            "gigabytes": sum(header.size for header in index.headers) / 1e9,
            "without_sound": self.without_sound,
            "silent_seconds": float(index.silence.sum()),
            "words": int(index.text_count.sum()),
        }


def summarise(index: Index, listed: Listed, rejected: Sequence[LeftOut], new_shards: int, decoded: int) -> Summary:
    """Count the contents of the shards, which `rejected` some videos, and write `summary.json` next to them."""
    reasons = _count(video.reason for video in (*listed.left_out, *rejected))
    notes = _count(part for note in index.note for part in note.split("; ") if part)
    unread = [video.path for video in rejected if video.fault]
    summary = Summary(index, listed, reasons, notes, unread, new_shards, decoded)
    text = json.dumps(summary.numbers, indent=1, ensure_ascii=False) + "\n"
    index.folder.write(SUMMARY, lambda path: write_text(path, text))
    return summary


def _count(reasons: Iterable[str]) -> dict[str, int]:
    """Number of equal reasons, most frequent first."""
    return dict(Counter(map(cause_of, reasons)).most_common())


def describe(summary: Summary) -> str:
    """The table printed at the end of a run."""
    index = summary.index
    numbers = summary.numbers
    splits = ", ".join(f"{n} {split}" for split, n in numbers["splits"].items())
    lines = [
        f"{summary.kept} of {plural(summary.videos, 'video')} kept "
        f"({splits}; {plural(len(index.classes), 'class', 'classes')}), "
        f"{numbers['hours']:.2f} hours, {numbers['gigabytes']:.2f} GB",
        f"{summary.decoded} decoded; {plural(summary.shards_made, 'new shard')}, {summary.shards_kept} unchanged",
    ]
    builds = [f"{name}: {plural(count, 'shard')}" for name, count in numbers["ffmpeg"].items()]
    lines.append(f"ffmpeg {', '.join(builds)}")
    if summary.listed.drawn and not numbers["splits"].keys() & {"val", "test"}:
        lines.append("no test split: evaluation needs one; set --test 0.1 and run again (nothing is decoded again)")
    test = numbers["splits"].get("test", 0)
    if summary.listed.drawn and 0 < test < FEWEST_VIDEOS:
        lines.append(f"{plural(test, 'test video')} will hardly tell whether training carries over; raise --test")
    lines += [f"warning: {line}" for line in _leaks(index)]
    if index.settings.get("vocabulary"):
        lines.append(f"{numbers['words']} words, without stop words and unknown words")
    sounds = int((index.frame_count == 0).sum())
    if sounds:
        lines.append(f"{sounds} without pictures: usable only for sound")
    if summary.without_sound:
        lines.append(f"{summary.without_sound} without sound: usable only with presets without audio")
    if summary.reasons:
        total = sum(summary.reasons.values())
        lines += [f"{total} rejected (see {index.folder.address(REJECTED)}):", *_rows(summary.reasons)]
    if summary.notes:
        total = int((index.note != "").sum())
        where = f"see video/note in {index.folder.address(INDEX)}"
        lines += [f"{total} kept with a note ({where}):", *_rows(summary.notes)]
    lines += [*ignored_in_words(summary.listed.ignored), *summary.listed.readings]
    lines.append(f"shards and {SUMMARY} in {index.folder}")
    return "\n".join(lines)


def _leaks(index: Index) -> list[str]:
    """What splits share, or those of each official fold."""
    lines = []
    for number in index.official_folds:
        lines += [f"fold {number}: {line}" for line in between_splits(index.fold(number))]
    return lines or between_splits(index)


def left_out(listed: Listed) -> list[str]:
    """Lines that say what was found and not listed as a video, and why."""
    total = f"{len(listed.left_out)} left out"
    if listed.left_out:
        total += ":"
    reasons = _rows(_count(video.reason for video in listed.left_out))
    return [total, *reasons, *ignored_in_words(listed.ignored), *listed.readings]


def _rows(counts: dict[str, int]) -> list[str]:
    """A line for each of the most frequent reasons, and one for the others."""
    rows = [f"{n:8d}  {reason}" for reason, n in counts.items()]
    if len(rows) <= _SHOWN:
        return rows
    others = sum(list(counts.values())[_SHOWN:])
    return [*rows[:_SHOWN], f"{others:8d}  other"]
