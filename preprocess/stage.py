"""The Dask stage: which shards to make, making them, going on after an interruption, and the index at the end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np
from tqdm import tqdm

from pipeline.errors import UserError
from pipeline.shards import (
    INDEX,
    REJECTED,
    SCHEMA,
    Index,
    VideoRecord,
    dump_rows,
    shard_attributes,
    shard_folder,
    write_index,
    write_shard,
    write_text,
)
from preprocess.datasets import listing
from preprocess.datasets.listing import Listing, Video
from preprocess.ffmpeg import Extraction, Rejected, Target, extract_group, groups, pixel_sums, require_ffmpeg
from preprocess.logmel import BANDS, logmel

_PROGRESS = "gdt-preprocess"


@dataclass(frozen=True)
class Preprocess:
    """Turn a data set of videos into shards; run again to go on where it stopped."""

    dataset: str = "folder"
    """Which layout the videos have: folder, kinetics or synthetic."""
    source: Path | None = None
    """Folder of the videos. The synthetic set is generated there (default data/videos/synthetic)."""
    destination: Path | None = None
    """Folder of the shards; default data/shards/<dataset>."""
    extraction: Extraction = field(default_factory=Extraction)
    """How frames and sound are taken from a video."""
    videos_per_shard: int = 128
    """Videos in one shard file."""
    workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Worker processes on this machine, one ffmpeg thread each; default one per core. Unused with --scheduler."""
    scheduler: str = ""
    """Address of a running Dask scheduler (tcp://host:8786); empty starts workers on this machine."""

    def __post_init__(self) -> None:
        if self.videos_per_shard < 1 or self.workers < 1:
            raise UserError("--videos-per-shard and --workers must be 1 or more")

    @property
    def shard_folder(self) -> Path:
        return self.destination or shard_folder(self.dataset)


@dataclass(frozen=True)
class ShardTask:
    """Everything that decides the bytes of one shard."""

    path: Path
    videos: Sequence[Video]
    extraction: Extraction

    content: str
    """Hash of the settings and of the videos (id, label, split, size): a finished shard that carries it is kept."""

    @staticmethod
    def of(path: Path, videos: Sequence[Video], extraction: Extraction) -> ShardTask:
        """The task of writing these videos to `path`."""
        rows = [(v.id, v.label, v.split, v.path.stat().st_size if v.path.is_file() else -1) for v in videos]
        text = json.dumps([SCHEMA, asdict(extraction), rows], ensure_ascii=False)
        return ShardTask(path, videos, extraction, hashlib.sha256(text.encode()).hexdigest())


@dataclass(frozen=True)
class Summary:
    """What a run found and did."""

    videos: int
    kept: int
    rejected: int
    shards_made: int
    shards_kept: int
    hours: float
    gigabytes: float
    without_sound: int
    index: Index
    """Of all shards, those made earlier too."""


def run(settings: Preprocess) -> Summary:
    """Make every shard that is not there yet, then the index. Raises UserError on bad input, before any work."""
    require_ffmpeg()
    # absolute, since workers of a cluster may have been started in another folder
    source = (settings.source or Path("data/videos") / settings.dataset).absolute()
    destination = settings.shard_folder.absolute()
    found = listing(settings.dataset, source)
    try:
        destination.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {destination}: {error.strerror}; set --destination") from error
    _refuse_to_replace(found, source, destination, settings)
    tasks = plan(found.videos, destination, settings)
    pending = [task for task in tasks if (shard_attributes(task.path) or {}).get("content") != task.content]
    if pending:
        (destination / INDEX).unlink(missing_ok=True)  # it would speak of shards that are about to change
        _make(pending, settings)
    return _finish(found, tasks, len(pending), destination, settings)


def _details(settings: Preprocess) -> dict[str, Any]:
    """What the index says of how its shards were made."""
    return asdict(settings.extraction) | {
        "bands": BANDS, "dataset": settings.dataset, "videos_per_shard": settings.videos_per_shard,
    }  # fmt: skip


def _refuse_to_replace(found: Listing, source: Path, destination: Path, settings: Preprocess) -> None:
    """A wrong SOURCE or a changed option must not replace finished shards, which may be days of work."""
    if not (destination / INDEX).is_file():
        return
    try:
        index = Index.open(destination)
    except UserError:
        return  # damaged shards are what this run mends
    changed = [
        f"{name.replace('_', '-')} {index.settings.get(name)}, now {value}"
        for name, value in _details(settings).items()
        if index.settings.get(name) != value
    ]
    if changed:
        raise UserError(
            f"{destination} holds shards made with {'; '.join(changed)}; set --destination to another folder, "
            "or delete those shards first"
        )
    before = set(index.id)
    if before and len(before & {video.id for video in found.videos}) < len(before) / 2:
        raise UserError(
            f"{destination} holds shards of {len(before)} videos, most of which are not in {source}; "
            "set --destination to another folder, or delete those shards first"
        )


def plan(videos: Sequence[Video], destination: Path, settings: Preprocess) -> list[ShardTask]:
    """Cut the sorted list of videos into shards; the cut depends on the list and the settings alone."""
    n = settings.videos_per_shard
    total = math.ceil(len(videos) / n)
    return [
        ShardTask.of(destination / f"shard-{number:06d}-of-{total:06d}.h5", videos[number * n : (number + 1) * n],
                  settings.extraction)
        for number in range(total)
    ]  # fmt: skip


def make_shard(task: ShardTask) -> int:
    """Decode the videos of one shard, one after another, and write it; returns how many were kept."""
    records: list[VideoRecord] = []
    rejected: list[dict[str, str]] = []
    pixels, mels = np.zeros((3, 3)), np.zeros(3)
    videos = iter(task.videos)
    with tempfile.TemporaryDirectory(prefix=f".{task.path.stem}-", dir=task.path.parent) as folder:
        for group in groups([video.path for video in task.videos]):
            count = len(records) + len(rejected)
            targets = [Target.within(Path(folder) / str(count + k), path) for k, path in enumerate(group)]
            for target, taken in zip(targets, extract_group(targets, task.extraction), strict=True):
                video = next(videos)
                if isinstance(taken, Rejected):
                    rejected.append({"id": video.id, "path": str(video.path), "reason": str(taken)})
                else:
                    bank = logmel(taken.waveform)
                    pixels += pixel_sums(taken.jpeg, taken.sizes, every=task.extraction.fps)
                    mels += [bank.size, bank.sum(dtype=np.float64), np.square(bank, dtype=np.float64).sum()]
                    records.append(
                        VideoRecord(video.id, video.label, video.split, taken.height, taken.width, taken.note,
                                    taken.jpeg, taken.sizes, bank)
                    )  # fmt: skip
                target.pcm.unlink(missing_ok=True)
            _report_progress(len(group))
        attributes = {
            "content": task.content,
            "settings": json.dumps(asdict(task.extraction)),
            "pixel_sums": pixels,
            "mel_sums": mels,
            "rejected": json.dumps(rejected, ensure_ascii=False),
        }
        try:
            write_shard(task.path, records, attributes)
        except OSError as error:
            raise UserError(f"cannot write {task.path}: {error}; mend it and run the same command again") from error
    return len(records)


def _report_progress(videos: int) -> None:
    with contextlib.suppress(ValueError):  # called directly, without Dask
        distributed.get_worker().log_event(_PROGRESS, videos)


def _make(pending: Sequence[ShardTask], settings: Preprocess) -> None:
    total = sum(len(task.videos) for task in pending)
    interval = 0.5 if sys.stderr.isatty() else 20.0
    with _cluster(settings) as client:
        print(f"Dask dashboard: {client.dashboard_link}")
        with tqdm(total=total, unit="video", desc="preprocess", smoothing=0.02, mininterval=interval) as bar:
            client.subscribe_topic(_PROGRESS, lambda event: bar.update(event[1]))
            workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
            for _ in _bounded(client, pending, in_flight=2 * workers):
                pass
            client.unsubscribe_topic(_PROGRESS)
            bar.update(total - bar.n)


def _bounded(client: distributed.Client, tasks: Sequence[ShardTask], in_flight: int) -> Iterator[int]:
    """Results as they come, with no more than `in_flight` tasks on the scheduler: memory stays bounded."""
    waiting = iter(tasks)
    running = distributed.as_completed(loop=client.loop)

    def submit() -> None:
        if (task := next(waiting, None)) is not None:
            running.add(client.submit(make_shard, task, pure=False, retries=2))

    for _ in range(in_flight):
        submit()
    for future in running:
        try:
            yield future.result()
        except distributed.KilledWorker as error:
            raise UserError(f"the workers died repeatedly on one shard ({error}); look for a lack of memory") from error
        future.release()
        submit()


def _local_cluster(workers: int) -> distributed.LocalCluster:
    """Worker processes on this machine that leave Ctrl-C to this one, which ends them."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None  # child processes inherit it
    try:
        return distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        )  # fmt: skip
    finally:
        if main:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _cluster(settings: Preprocess) -> Iterator[distributed.Client]:
    """A client of the scheduler that is named, or of workers on this machine that end with it."""
    if settings.scheduler:
        try:
            client = distributed.Client(settings.scheduler, timeout=10, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise UserError(
                f"no Dask scheduler answers at {settings.scheduler}; start one with 'dask scheduler'"
            ) from error
        with client:
            yield client
        return
    # the stage bounds its own memory, and a worker that pauses or restarts over page cache would lose its shard
    limits = {f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause", "terminate")}
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers inherit it: ffmpeg and log-mel take one thread each
    with (
        dask.config.set(limits),
        _local_cluster(settings.workers) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        yield client


def _finish(found: Listing, tasks: Sequence[ShardTask], made: int, destination: Path, settings: Preprocess) -> Summary:
    """Index and rejected.jsonl from the shards; files of an earlier, different cut are removed."""
    names = {task.path.name for task in tasks}
    for old in destination.glob("shard-*.h5*"):
        if old.name not in names:
            old.unlink()
    for scratch in destination.glob(".shard-*"):  # of workers that were killed
        shutil.rmtree(scratch, ignore_errors=True)
    rejected = [{"id": missing.id, "path": "", "reason": missing.reason} for missing in found.missing]
    for task in tasks:
        rejected += json.loads((shard_attributes(task.path) or {}).get("rejected", "[]"))
    write_text(destination / REJECTED, dump_rows(rejected))
    if made or not (destination / INDEX).is_file():
        write_index(destination, [task.path for task in tasks], {"settings": json.dumps(_details(settings))})
    index = Index.open(destination)
    if not len(index):
        first = rejected[0]
        raise UserError(
            f"none of the {len(found.videos)} videos could be used; {first['path'] or first['id']}: {first['reason']}. "
            f"See {destination / REJECTED}"
        )
    return Summary(
        videos=len(found.videos) + len(found.missing),
        kept=len(index),
        rejected=len(rejected),
        shards_made=made,
        shards_kept=len(tasks) - made,
        hours=float(index.frame_count.sum()) / index.fps / 3600,
        gigabytes=float(index.shard_bytes.sum()) / 1e9,
        without_sound=int((index.mel_count == 0).sum()),
        index=index,
    )


def describe(summary: Summary, destination: Path) -> str:
    """The lines printed at the end of a run."""
    index = summary.index
    splits = ", ".join(f"{int((index.split == split).sum())} {split}" for split in ("train", "val", "test"))
    lines = [
        f"{summary.kept} of {summary.videos} videos kept ({splits}; {len(index.classes)} classes), "
        f"{summary.hours:.2f} hours, {summary.gigabytes:.2f} GB in {destination}",
        f"{summary.shards_made} shards made now, {summary.shards_kept} were there already",
    ]
    if summary.rejected:
        lines.append(f"{summary.rejected} left out, each with its reason in {destination / REJECTED}")
    if summary.without_sound:
        lines.append(f"{summary.without_sound} kept without sound: only presets a to d can learn from them")
    return "\n".join(lines)
