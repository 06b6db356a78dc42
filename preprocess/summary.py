"""The summary of a run, printed and written to `summary.json`."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from gdt.common.errors import plural
from gdt.common.files import write_text
from gdt.pipeline.shards.index import LABELS, Index
from gdt.pipeline.shards.layout import INDEX, REJECTED, read_rejected
from gdt.preprocess.datasets.labels import NO_FILE

SUMMARY = "summary.json"
_NAMED = 3
"""Maximum number of missing files of labels.csv that the summary names."""
_SPLITS = ("train", "val", "test", "unused")
_COLUMNS = 100
_FEW = 20
"""With fewer test videos, confidence intervals are too wide to compare models."""
_REJECTED, _NOTE = "ffmpeg cannot decode it: ", "ffmpeg: "
_OUR_NOTE = re.compile("its sound|HDR without|cut at|shorter than|ffmpeg ")
_MEANINGS = {
    "moov atom not found": "truncated, only partly downloaded, or not a video",
    "Invalid data found|could not find codec parameters|Could not find codec parameters": "damaged, or not a video",
    "error while decoding|Error submitting packet|Invalid NAL|concealing|corrupt|non-existing PPS|no frame!"
    "|Error splitting|bytestream|damaged|illegal|missing picture|left block|mb_type": "some frames are damaged",
    "Header missing|invalid band type|channel element|Prediction is not allowed|Number of bands|overread"
    "|big_values": "some sound is damaged",
    "Truncat|End of file|partial file|File ended": "the file ends early",
}
"""What common messages of ffmpeg mean, by regular expression."""
_WRAP: dict[str, Any] = {"subsequent_indent": " " * 10, "break_long_words": False, "break_on_hyphens": False}


@dataclass(frozen=True)
class Summary:
    """The results of a run."""

    index: Index
    """Of all shards."""
    videos: int
    """Files and entries of official lists."""
    reasons: dict[str, int]
    """Number of rejected videos by reason."""
    notes: dict[str, int]
    """Number of kept videos by note."""
    shards_made: int
    decoded: int
    """Videos of the new shards."""
    relabelled: int
    """Videos whose label, split, folds or further columns differ from the previous index."""
    without_file: Sequence[str] = ()
    """First names in labels.csv that match no video."""
    drawn: bool = True
    """Whether --val and --test decide the split of some videos."""
    test: float = 0.0
    """--test."""

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
    def without_sound(self) -> int:
        return int((self.index.mel_count == 0).sum())

    @property
    def numbers(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        index = self.index
        splits = {split: int(np.count_nonzero(index.split == split)) for split in _SPLITS}
        return {
            "videos": self.videos, "kept": self.kept, "decoded": self.decoded, "relabelled": self.relabelled,
            "left_out": self.reasons, "notes": self.notes, "splits": {split: n for split, n in splits.items() if n},
            "classes": len(index.classes), "hours": float(index.frame_count.sum()) / index.fps / 3600,
            "gigabytes": sum(head.size for head in index.heads) / 1e9, "without_sound": self.without_sound,
            "silent_seconds": float(index.silence.sum()), "words": int(index.text_count.sum()),
        }  # fmt: skip


def count_relabelled(before: Index, now: Index) -> int:
    """Number of videos in both indexes whose label, split, folds or further columns differ."""
    _, here, there = np.intersect1d(before.id, now.id, assume_unique=True, return_indices=True)
    changed = np.zeros(len(here), bool)
    for name in {*LABELS, *before.columns, *now.columns}:
        old, new = (vars(index).get(name, index.columns.get(name)) for index in (before, now))
        # a column that is not there is empty
        changed |= ("" if old is None else old[here]) != ("" if new is None else new[there])
    return int(np.count_nonzero(changed))


def summarise(index: Index, videos: int, made: int, decoded: int, relabelled: int, drawn: bool, test: float) -> Summary:
    """Count the contents of the shards and write `summary.json` next to them."""
    reasons: Counter[str] = Counter()
    without_file: list[str] = []
    for row in read_rejected(index.folder):
        reasons[_generalise(row["reason"])] += 1
        if row["reason"] == NO_FILE and len(without_file) < _NAMED:
            without_file.append(row["id"])
    notes = Counter(_generalise(note) for note in index.note if note)
    summary = Summary(
        index, videos, dict(reasons.most_common()), dict(notes.most_common()), made, decoded, relabelled, without_file,
        drawn, test,
    )  # fmt: skip
    write_text(index.folder / SUMMARY, json.dumps(summary.numbers, indent=1, ensure_ascii=False) + "\n")
    return summary


def _generalise(reason: str) -> str:
    """A reason without names, numbers and details, which differ from video to video."""
    if short := re.match(r"only [\d.]+ s of it can be decoded, ([\d.]+) s are needed(;?)", reason):
        least = f"--min-seconds {short[1]}"  # "; <error>" follows if the file may be longer, but damaged
        return f"less than {least} could be decoded" if short[2] else f"shorter than {least}"
    reason = re.sub(r"^it has the id of .*, which is kept$", "it has the id of another video, which is kept", reason)
    reason = reason.split(";")[0]
    reason += ")" * (reason.count("(") - reason.count(")"))
    return re.sub(r"(?<!UTF-)\b(0x[0-9a-f]+|\d+(\.\d+)?)(?=\D|$)", "…", reason)


def describe(summary: Summary) -> str:
    """The table printed at the end of a run, at most 100 columns wide unless a path is longer."""
    index, numbers = summary.index, summary.numbers
    splits = ", ".join(f"{n} {split}" for split, n in numbers["splits"].items())
    lines = [
        f"{summary.kept} of {plural(summary.videos - summary.reasons.get(NO_FILE, 0), 'video')} kept "
        f"({splits}; {plural(len(index.classes), 'class', 'classes')}), "
        f"{numbers['hours']:.2f} hours, {numbers['gigabytes']:.2f} GB",
        f"{summary.decoded} decoded, {summary.relabelled} relabelled; {plural(summary.shards_made, 'new shard')}, "
        f"{summary.shards_kept} unchanged",
    ]
    if index.settings.get("dataset") == "folder":
        lines.append(_describe_classes(index))
    if index.columns:
        lines.append(f"labels: {', '.join(['label'] * bool(index.classes) + sorted(index.columns))}")
    split = "test" if "test" in numbers["splits"] else "val"
    if split not in numbers["splits"] and summary.drawn:
        lines.append(_no_test_split(summary))
    if 0 < (held_out := numbers["splits"].get(split, 0)) < _FEW:
        advice = f"raise --{split} or add videos (nothing is decoded again)" if summary.drawn else "add videos"
        lines.append(
            f"warning: the {split} split has only {plural(held_out, 'video')}, too few for evaluation; {advice}"
        )
    if summary.rejected:
        named = {NO_FILE: _describe_without_file(summary)}
        reasons = {named.get(reason, reason): n for reason, n in summary.reasons.items()}
        lines += [f"{summary.rejected} rejected (see {index.folder / REJECTED}):", *_counts(reasons)]
    if summary.notes:
        lines += [f"{sum(summary.notes.values())} kept with a note (see video/note in {index.folder / INDEX}):"]
        lines += _counts({note if _OUR_NOTE.match(note) else _NOTE + note: n for note, n in summary.notes.items()})
    if summary.without_sound:
        lines.append(f"{summary.without_sound} without sound: usable only with presets without audio")
    if numbers["silent_seconds"] >= 0.5:
        lines.append(f"{numbers['silent_seconds']:.0f} s of silence in videos with sound")
    if index.settings.get("vocabulary"):
        videos = int((index.text_count > 0).sum())
        lines.append(f"{numbers['words']} words in {plural(videos, 'video')}, without stop words and unknown words")
    lines.append(f"shards and {SUMMARY} in {index.folder}")
    return "\n".join(textwrap.fill(line, _COLUMNS, **_WRAP) for line in lines)


def _no_test_split(summary: Summary) -> str:
    if summary.test:
        return (
            f"no test split: --test is {summary.test:g}, but none of {plural(summary.kept, 'video')} was drawn, as the "
            "draw is by a hash of the id; raise it, add videos, or use a folder test/ or the column split"
        )
    return "no test split: evaluation needs one; set --test 0.1 and run again (nothing is decoded again)"


def _describe_without_file(summary: Summary) -> str:
    lost = {name.casefold() for name in summary.without_file}
    similar = (p for p in map(PurePath, summary.index.id) if lost & {n.casefold() for n in (str(p), p.name, p.stem)})
    more = ", …" if summary.reasons.get(NO_FILE, 0) > _NAMED else ""
    if meant := next(similar, None):
        more += f" (did you mean {meant}? Names are paths below the source)"
    return f"{NO_FILE}: {', '.join(summary.without_file)}{more}"


def _describe_classes(index: Index) -> str:
    """The source of the classes, and how many videos have none."""
    without = int((index.label == "").sum())
    if without == len(index):
        return "no classes: no video is in a subfolder that would name its class"
    rest = f"; {plural(without, 'video')} without a class" if without else ""
    return f"classes come from subfolders or labels.csv{rest}"


def _plain(reason: str) -> str:
    """A reason with ffmpeg's common messages explained."""
    for prefix, default in ((_REJECTED, "cannot be decoded"), (_NOTE, "warning of the decoder")):
        if prefix in reason:
            own, _, message = reason.partition(prefix)
            meanings = (meaning for pattern, meaning in _MEANINGS.items() if re.search(pattern, message))
            return f"{own}{next(meanings, default)} (ffmpeg: {message})"
    return reason


def _counts(counts: dict[str, int], most: int = 8) -> list[str]:
    rows = [f"{n:8d}  {_plain(reason)}" for reason, n in list(counts.items())[:most]]
    rest = sum(list(counts.values())[most:])
    return rows + ([f"{rest:8d}  other"] if rest else [])
