"""The work of a worker: make one shard."""

import contextlib
import json
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import astuple, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdt.common.errors import LeftOut, UserError
from gdt.common.files import hash_of, is_disk_full, no_space
from gdt.common.folders import state_of
from gdt.pipeline.shards.statistics import mel_sums
from gdt.pipeline.shards.writer import VideoRecord, write_shard
from gdt.preprocess.decode import Extracted, extract_group, groups, pixel_sums
from gdt.preprocess.ffmpeg import Extraction, Target
from gdt.preprocess.logmel import HOP, SAMPLE_RATE, Waveform, logmel_blocks, peak_levels
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.process import Failed, Rejected
from gdt.preprocess.tools import decode_known_clip, require_tools
from gdt.preprocess.videos import TimedWords

PROGRESS = "gdt-preprocess"
"""Dask topic of the number of videos just done."""


def _to_dask(videos: int) -> None:
    from distributed import get_worker  # a second to import, and threads need none of it

    with contextlib.suppress(ValueError):  # without Dask
        get_worker().log_event(PROGRESS, videos)


REPORT: ContextVar[Callable[[int], object]] = ContextVar("report", default=_to_dask)
"""What is called with the number of videos just done; a thread may have a function of its own."""
SCRATCH = ".shard-*"
"""Names of the temporary folders of `make_shard`."""
_AGAIN = "and run the same command again"
SAME_FOLDER = "mount it there: all machines must see the same folder of shards"


class MadeShard(NamedTuple):
    name: str
    host: str
    """The machine that has made it."""
    crc32: str
    """Its checksum, in hexadecimal."""
    videos: int
    rejected: list[LeftOut]
    """The videos that are not in it."""


def make_shard(task: ShardTask) -> MadeShard:
    """Decode the videos of one shard and write it. Raises UserError if the machine, not a video, is at fault."""
    where = task.destination.scratch
    host = socket.gethostname()
    try:
        if not where.is_dir():
            raise UserError(f"it does not see the folder {where}; {SAME_FOLDER}")
        with tempfile.TemporaryDirectory(prefix=f".{Path(task.name).stem}-", dir=where) as folder:
            crc32, rejected = _make_shard(task, _bring(task, Path(folder)), Path(folder))
        return MadeShard(task.name, host, crc32, len(task.videos), rejected)
    except (UserError, OSError) as error:
        if isinstance(error, UserError):
            message = str(error)
        elif is_disk_full(error):
            message = f"{no_space(where)}, {_AGAIN}"
        else:
            message = f"cannot write {task.destination.address(task.name)}: {error}; fix this, {_AGAIN}"
        raise UserError(f"{host}: {message}") from error


def _bring(task: ShardTask, scratch: Path) -> list[Path]:
    """The files of the videos on this machine."""
    files: list[Path] = []
    for source, videos in groupby(task.videos, lambda video: video.folder or task.source):
        files += source.bring([video.path for video in videos], Path(tempfile.mkdtemp(dir=scratch)))
    return files


def _make_shard(task: ShardTask, paths: Sequence[Path], folder: Path) -> tuple[str, list[LeftOut]]:
    """The checksum of the shard, and the videos that are not in it."""
    build = require_tools(task.extraction.limits, folder)
    records: list[VideoRecord] = []
    rejected: list[LeftOut] = []
    pixels = np.zeros((3, 3), np.int64)
    mels = np.zeros(3, np.int64)
    final = True
    files = {path: (state_of(path), hash_of(path)) for path in paths}
    for group in groups(task.videos, paths):
        first = len(records) + len(rejected)
        targets = [Target.within(folder / str(first + k), video, file) for k, (video, file) in enumerate(group)]
        for target, output in zip(targets, extract_group(targets, task.extraction), strict=True):
            _, hash = files[target.file]
            if isinstance(output, Failed) or (isinstance(output, Extracted) and output.suspicious):
                decode_known_clip(task.extraction.limits, folder)  # is it the video's fault, or the machine's?
            try:
                record, mel = _record(target, output, task.extraction)
            except Rejected as error:
                rejected.append(LeftOut(target.video.id, str(error), fault=error.fault, hash=hash))
                final &= not error.fault
                shutil.rmtree(target.jpeg.parent)
            else:
                records.append(replace(record, columns={**record.columns, "hash": hash}))
                mels += mel
                pixels += pixel_sums(record.jpeg, record.sizes, every=task.extraction.fps)
        REPORT.get()(len(group))
    if all(state_of(path).size < 0 <= video.size for video, path in zip(task.videos, paths, strict=True)):
        raise UserError(
            f"it sees none of the videos of {task}; mount their disk on every machine, then run the same command again"
        )
    # without content, the next run makes the shard again, as of files that changed meanwhile or could not be read
    final &= all(state_of(path) == state and (hash or state.size < 0) for path, (state, hash) in files.items())
    attributes = {"settings": json.dumps(dict(task.details)), "content": task.content if final else "", "ffmpeg": build}
    sums = {"pixels": pixels, "mels": mels}
    crc32 = task.destination.write(
        task.name, lambda path: write_shard(path, records, sums, folder, rejected, attributes)
    )
    return crc32, rejected


def _record(target: Target, output: Extracted | Rejected, settings: Extraction) -> tuple[VideoRecord, np.ndarray]:
    """A row of the shard and the sums of its log-mel values. Raises Rejected if the video cannot be used."""
    if isinstance(output, Rejected):
        raise output
    video = target.video
    note = output.note
    pictures = len(output.sizes) > 0
    seconds = len(output.sizes) / settings.fps if pictures else len(output.waveform) / SAMPLE_RATE
    waveform = Waveform(target.pcm, limit=round(seconds * SAMPLE_RATE))  # no clip begins after the last frame
    bank = target.pcm.with_suffix(".mel")
    peaks = peak_levels(waveform)
    audible = bool((peaks > settings.silence_peak).any())
    if not audible:
        if settings.require_audio or not pictures:
            raise Rejected("its sound track is silent" if len(waveform) else "it has no sound")
        if len(waveform):
            note = f"{note}; its sound track is silent" if note else "its sound track is silent"
    sums = _write_bank(waveform if audible else Waveform(target.pcm, limit=0), bank)
    target.pcm.unlink(missing_ok=True)
    silence = np.count_nonzero(peaks <= settings.silence_peak) * HOP / SAMPLE_RATE
    words = video.words or TimedWords([], [], [])
    kept = [k for k, end in enumerate(words.end) if end <= seconds]
    columns = {"id": video.id, "height": output.height, "width": output.width, "silence": silence, "note": note}
    if output.segment:
        columns["segment"] = "{:g} to {:g}".format(*output.segment)
    text = [[column[k] for k in kept] for column in astuple(words)]
    return VideoRecord(columns, output.jpeg, output.sizes, bank, text), sums


def _write_bank(waveform: Waveform, path: Path) -> np.ndarray:
    sums = np.zeros(3, np.int64)
    with path.open("wb") as file:
        for block in logmel_blocks(waveform):
            file.write(block.tobytes())
            sums += mel_sums(block)
    return sums
