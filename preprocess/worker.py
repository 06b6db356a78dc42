"""What a worker does: one shard, made of the videos of a task."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import is_disk_full, open_regular
from gdt.pipeline.shards.index import mel_sums
from gdt.pipeline.shards.writer import VideoRecord, write_shard
from gdt.preprocess.datasets.listing import Words, size_of
from gdt.preprocess.ffmpeg import Extracted, Extraction, Target, extract_group, groups, pixel_sums
from gdt.preprocess.logmel import BANDS, HOP, SAMPLE_RATE, Waveform, logmel_blocks, peaks_of
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.process import Rejected
from gdt.preprocess.summary import SLOWEST, Slow

PROGRESS = "gdt-preprocess"
"""Dask's topic under which workers tell how many more videos are done."""


class Changed(NamedTuple):
    """A video of a task that is not what it was when it was listed."""

    number: int
    size: int
    """As `host` sees it."""
    host: str


@dataclass(frozen=True)
class Made:
    """What came of a task."""

    slow: list[Slow]
    """The videos that took longest."""
    changed: list[Changed] = field(default_factory=list)
    """Videos that are not what they were when they were listed; where there are any, there is no shard yet."""


def make_shard(task: ShardTask) -> Made:
    """Decode the videos of one shard, one after another, and write it.

    Where a video is not what it was when it was listed, or changes meanwhile, there is no shard, unless it is the last
    time that this is tried: then such videos are left out, and the next run will want to make the shard again.
    """
    looks = [_look(video.path) for video in task.videos]
    changed = [
        Changed(k, look.size, socket.gethostname())
        for k, (look, size) in enumerate(zip(looks, task.sizes, strict=False))
        if look.size != size
    ]
    if changed and (not task.last or any(seen.size < 0 for seen in changed)):
        return Made([], changed)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{task.path.stem}-", dir=task.path.parent) as folder:
            return _make_shard(task, Path(folder), looks, {seen.number for seen in changed})
    except OSError as error:
        named = full_disk_named(error, task.path.parent)
        if named is error:
            named = UserError(f"cannot write {task.path}: {error}; mend it and run the same command again")
        raise named from error


def make_numbered(task: tuple[int, ShardTask]) -> tuple[int, Made]:
    """`make_shard` for a shard that is known by its place in the plan."""
    shard, what = task
    return shard, make_shard(what)


def full_disk_named(error: Exception, folder: Path) -> Exception:
    """A full disk as a sentence; what else may go wrong with files as it is."""
    if not is_disk_full(error):
        return error
    return UserError(
        f"no space left on the disk of {folder}; free some and run the same command again: finished shards are kept"
    )


class _Look(NamedTuple):
    """What can be seen of a file without reading it; another one means that somebody has written to it."""

    size: int
    """As `size_of` has it."""
    written: int = 0
    """When that was last done, in nanoseconds."""


def _look(path: Path) -> _Look:
    size = size_of(path)
    try:
        return _Look(size, path.stat().st_mtime_ns if size > 0 else 0)
    except OSError:
        return _Look(-1)


def _read_error(path: Path) -> str:
    """Why the disk, not the file, kept ffmpeg from reading it; empty where all of it can be read."""
    left = size_of(path)
    if left <= 0:  # of an empty one there is nothing to read, and some that the system makes up never end
        return ""
    try:
        with open_regular(path) as file:
            while left > 0 and (data := file.read(min(left, 1 << 24))):
                left -= len(data)
    except OSError as error:
        return error.strerror or str(error)
    except UserError as error:
        return str(error)
    return ""


def _make_shard(task: ShardTask, folder: Path, looks: Sequence[_Look], unsettled: set[int]) -> Made:
    from distributed import get_worker

    records: list[VideoRecord] = []
    rejected: list[dict[str, str]] = []
    slow: list[Slow] = []
    unreadable = 0
    pixels, mels = np.zeros((3, 3), np.int64), np.zeros(3, np.int64)
    for group in groups(task.videos):
        began = time.perf_counter()
        first = len(records) + len(rejected)
        numbers = range(first, first + len(group))
        targets = [Target.within(folder / str(number), task.videos[number]) for number in numbers]
        for number, target, taken in zip(numbers, targets, extract_group(targets, task.extraction), strict=True):
            try:
                record, sums = _record(target, taken, task.extraction)
            except Rejected as caught:
                reason = str(caught)
                if error := _read_error(target.video.path):
                    reason, unreadable = f"it cannot be read ({error})", unreadable + 1
                    unsettled.add(number)
            else:
                reason = ""
            if task.sizes and _look(target.video.path) != looks[number]:
                reason = f"somebody writes to it: it has {size_of(target.video.path)} bytes now"
                unsettled.add(number)
            elif number in unsettled:
                reason = reason or f"it changes: it has {looks[number].size} bytes now"
            if number in unsettled and not task.last:
                return Made([], [Changed(number, size_of(target.video.path), socket.gethostname())])
            if reason:
                path = os.path.relpath(target.video.path, task.source)
                rejected.append({"id": target.video.id, "path": path, "reason": reason})
                shutil.rmtree(target.jpeg.parent)
            else:
                records.append(record)
                mels += sums
                pixels += pixel_sums(record.jpeg, record.sizes, every=task.extraction.fps)
        seconds = (time.perf_counter() - began) / len(group)
        slow = nlargest(SLOWEST, [*slow, *(Slow(seconds, video.id) for video in group)])
        with contextlib.suppress(ValueError):  # called directly, without Dask
            get_worker().log_event(PROGRESS, len(group))
    if unreadable == len(task.videos) > 1:
        raise UserError(
            f"none of the videos of {task} can be read: {rejected[0]['reason']}; mend their disk, then run the same "
            "command again: finished shards are kept"
        )
    attributes = {"settings": json.dumps(dict(task.details)), "pixel_sums": pixels, "mel_sums": mels}
    content = "" if unsettled else task.content  # which no plan asks for
    write_shard(task.path, records, rejected, attributes, content, BANDS, folder)
    return Made(slow)


def _record(target: Target, taken: Extracted | Rejected, settings: Extraction) -> tuple[VideoRecord, np.ndarray]:
    """A row of the shard and the sums of its log-mel values. Raises Rejected where the video cannot be used."""
    if isinstance(taken, Rejected):
        raise taken
    video, note = target.video, taken.note
    seconds = len(taken.sizes) / settings.fps
    waveform = Waveform(target.pcm, most=round(seconds * SAMPLE_RATE))  # no clip begins after the picture's end
    bank = target.pcm.with_suffix(".mel")
    peaks = peaks_of(waveform)
    heard = bool((peaks > settings.silence_peak).any())
    if not heard:
        if settings.need_sound:
            raise Rejected("its sound is silence" if len(waveform) else "it has no sound")
        if len(waveform):
            note = note or "its sound is silence"
    sums = _write_bank(waveform if heard else Waveform(target.pcm, most=0), bank)
    target.pcm.unlink(missing_ok=True)
    silence = np.count_nonzero(peaks <= settings.silence_peak) * HOP / SAMPLE_RATE
    words = video.words or Words([], [], [])
    spoken = [k for k, end in enumerate(words.end) if end <= seconds]  # not what is said after the picture has ended
    columns = {
        "id": video.id, "label": video.label, "split": video.split, "folds": ",".join(video.folds),
        "height": taken.height, "width": taken.width, "silence": silence, "note": note,
    }  # fmt: skip
    said = [[column[k] for k in spoken] for column in astuple(words)]
    return VideoRecord(columns, taken.jpeg, taken.sizes, bank, said), sums


def _write_bank(waveform: Waveform, path: Path) -> np.ndarray:
    sums = np.zeros(3, np.int64)
    with path.open("wb") as file:
        for block in logmel_blocks(waveform):
            file.write(block.tobytes())
            sums += mel_sums(block)
    return sums
