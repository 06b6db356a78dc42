"""The work of a worker: make one shard."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import is_disk_full, open_regular
from gdt.pipeline.shards.statistics import mel_sums
from gdt.pipeline.shards.writer import VideoRecord, write_shard
from gdt.preprocess.datasets.listing import Words, size_of
from gdt.preprocess.extract import Extracted, extract_group, groups, pixel_sums
from gdt.preprocess.ffmpeg import Extraction, Target
from gdt.preprocess.logmel import HOP, SAMPLE_RATE, Waveform, logmel_blocks, peak_levels
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.process import Rejected

PROGRESS = "gdt-preprocess"
"""Dask topic of the number of videos just done."""


class ChangedVideo(NamedTuple):
    """A video of a task that has changed since it was listed."""

    number: int
    """Index in the task."""
    size: int
    """As seen by `host`."""
    host: str


def make_shard(task: ShardTask) -> list[ChangedVideo]:
    """Decode the videos of one shard and write it; returns the videos that changed since they were listed.

    If a video has changed since it was listed, or changes during decoding, no shard is written. In the last attempt
    such videos are rejected instead, and the next run makes the shard again.
    """
    states = [_file_state(video.path) for video in task.videos]
    changed = [
        ChangedVideo(k, state.size, socket.gethostname())
        for k, (state, size) in enumerate(zip(states, task.sizes, strict=False))
        if state.size != size
    ]
    if changed and (not task.last or any(video.size < 0 for video in changed)):
        return changed
    try:
        with tempfile.TemporaryDirectory(prefix=f".{task.path.stem}-", dir=task.path.parent) as folder:
            return _make_shard(task, Path(folder), states, {video.number for video in changed})
    except OSError as error:
        explained = explain_full_disk(error, task.path.parent)
        if explained is error:
            explained = UserError(f"cannot write {task.path}: {error}; fix this and run the same command again")
        raise explained from error


def make_planned_shard(task: tuple[int, ShardTask]) -> tuple[int, list[ChangedVideo]]:
    """Call `make_shard` for a task with its index in the plan, and return the index too."""
    shard, what = task
    return shard, make_shard(what)


def explain_full_disk(error: Exception, folder: Path) -> Exception:
    """A UserError for a full disk; any other error as it is."""
    if not is_disk_full(error):
        return error
    return UserError(
        f"no space left on the disk of {folder}; free some and run the same command again: finished shards are kept"
    )


class _FileState(NamedTuple):
    """Size and time of a file, to detect writes."""

    size: int
    modified: int = 0
    """Nanoseconds."""


def _file_state(path: Path) -> _FileState:
    size = size_of(path)
    try:
        return _FileState(size, path.stat().st_mtime_ns if size > 0 else 0)
    except OSError:
        return _FileState(-1)


def _read_error(path: Path) -> str:
    """The error that prevents reading the file; empty if it can be read."""
    left = size_of(path)
    if left <= 0:  # some system files report size 0 but are endless
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


def _make_shard(task: ShardTask, folder: Path, states: Sequence[_FileState], unstable: set[int]) -> list[ChangedVideo]:
    """Make the shard in `folder`; `unstable` are the indices of videos to reject because they changed."""
    from distributed import get_worker

    records: list[VideoRecord] = []
    rejected: list[dict[str, str]] = []
    unreadable = 0
    pixels, mels = np.zeros((3, 3), np.int64), np.zeros(3, np.int64)
    for group in groups(task.videos):
        first = len(records) + len(rejected)
        numbers = range(first, first + len(group))
        targets = [Target.within(folder / str(number), task.videos[number]) for number in numbers]
        for number, target, output in zip(numbers, targets, extract_group(targets, task.extraction), strict=True):
            path, reason = target.video.path, ""
            try:
                record, sums = _record(target, output, task.extraction)
            except Rejected as error:
                reason = str(error)
                if failure := _read_error(path):
                    reason, unreadable = f"it cannot be read ({failure})", unreadable + 1
                    unstable.add(number)
            if task.sizes and _file_state(path) != states[number]:
                reason = f"it is still being written ({size_of(path)} bytes now)"
                unstable.add(number)
            elif number in unstable:
                reason = reason or f"it changed after it was listed ({states[number].size} bytes now)"
            if number in unstable and not task.last:
                return [ChangedVideo(number, size_of(path), socket.gethostname())]
            if reason:
                rejected.append({"id": target.video.id, "path": os.path.relpath(path, task.source), "reason": reason})
                shutil.rmtree(target.jpeg.parent)
            else:
                records.append(record)
                mels += sums
                pixels += pixel_sums(record.jpeg, record.sizes, every=task.extraction.fps)
        with contextlib.suppress(ValueError):  # without Dask
            get_worker().log_event(PROGRESS, len(group))
    if unreadable == len(task.videos) > 1:
        raise UserError(
            f"none of the videos of {task} can be read: {rejected[0]['reason']}; check their disk, then run the same "
            "command again: finished shards are kept"
        )
    content = "" if unstable else task.content  # matches no plan
    notes = {"settings": json.dumps(dict(task.details)), "content": content}
    write_shard(task.path, records, {"pixels": pixels, "mels": mels}, folder, rejected, notes)
    return []


def _record(target: Target, output: Extracted | Rejected, settings: Extraction) -> tuple[VideoRecord, np.ndarray]:
    """A row of the shard and the sums of its log-mel values. Raises Rejected if the video cannot be used."""
    if isinstance(output, Rejected):
        raise output
    video, note = target.video, output.note
    seconds = len(output.sizes) / settings.fps
    waveform = Waveform(target.pcm, limit=round(seconds * SAMPLE_RATE))  # no clip begins after the last frame
    bank = target.pcm.with_suffix(".mel")
    peaks = peak_levels(waveform)
    audible = bool((peaks > settings.silence_peak).any())
    if not audible:
        if settings.require_audio:
            raise Rejected("its sound track is silent" if len(waveform) else "it has no sound")
        if len(waveform):
            note = note or "its sound track is silent"
    sums = _write_bank(waveform if audible else Waveform(target.pcm, limit=0), bank)
    target.pcm.unlink(missing_ok=True)
    silence = np.count_nonzero(peaks <= settings.silence_peak) * HOP / SAMPLE_RATE
    words = video.words or Words([], [], [])
    kept = [k for k, end in enumerate(words.end) if end <= seconds]
    columns = {
        "id": video.id, "height": output.height, "width": output.width, "silence": silence, "note": note,
    }  # fmt: skip
    return VideoRecord(
        columns, output.jpeg, output.sizes, bank, [[column[k] for k in kept] for column in astuple(words)]
    ), sums


def _write_bank(waveform: Waveform, path: Path) -> np.ndarray:
    sums = np.zeros(3, np.int64)
    with path.open("wb") as file:
        for block in logmel_blocks(waveform):
            file.write(block.tobytes())
            sums += mel_sums(block)
    return sums
