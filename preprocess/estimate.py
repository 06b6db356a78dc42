"""`--dry-run`: estimate time and size of a run by decoding a few videos."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import dask
import numpy as np

from gdt.common.errors import UserError, plural
from gdt.pipeline.shards.index import read_rejected_of
from gdt.preprocess import cluster
from gdt.preprocess.extract import groups
from gdt.preprocess.ffmpeg import require_ffmpeg
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.stage import Preprocess, find_videos, list_videos, report_changed_shares
from gdt.preprocess.videos import VideoList
from gdt.preprocess.worker import make_shard

_SAMPLES = 8
"""Number of samples; each is the videos of one ffmpeg process: one long video, or up to 16 consecutive short ones."""
_MAX_FRACTION = 0.25
"""Maximum fraction of the videos to decode, but at least one per sample."""
_SHOWN = 5
"""Unusable videos to name."""
_SECONDS = 60.0
"""No sample starts after this time."""


@dataclass(frozen=True)
class _Sample:
    """The result of decoding some videos."""

    seconds: float
    """Seconds that one worker took while all others were busy."""
    videos: int
    rejected: list[dict[str, str]]
    """Rows of rejected.jsonl."""
    source_bytes: int
    shard_bytes: int


def estimate(settings: Preprocess) -> str:
    """Make shards of a few videos, spread over the list, in a temporary folder, and extrapolate by bytes."""
    require_ffmpeg()
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(_temporary_folder())
        items, _ = find_videos(settings, scratch, stack)
        videos = list_videos(items, settings, scratch, stack)
        if not len(videos):
            raise UserError(f"there are no videos in {settings.source_folder}")
        tasks = _tasks(videos, scratch, settings)
        report_changed_shares(settings, videos.shares)
        print(f"decoding some of {plural(len(videos), 'video')}, for a minute, or more if they are long", flush=True)
        # on this machine, even if the run is to use a cluster
        workers = min(settings.workers, cluster.one_per_core())
        stack.enter_context(dask.config.set({"temporary-directory": str(scratch)}))
        began = time.perf_counter()
        with cluster.connect("", workers) as client:
            first = replace(tasks[0], videos=tasks[0].videos[:1], sizes=tasks[0].sizes[:1])
            warm = (replace(first, path=scratch / f"shard-{900_000 + k}.h5") for k in range(workers))
            list(cluster.map_unordered(client, _decode, warm, workers))  # so that workers have imported everything
            start = time.perf_counter() - began
            until = time.monotonic() + _SECONDS
            begun = (task for k, task in enumerate(tasks) if k <= workers or time.monotonic() < until)
            samples = list(cluster.map_unordered(client, _decode, begun, workers))
        rejected = [row for sample in samples for row in sample.rejected]
        scale = videos.source_bytes / max(sum(sample.source_bytes for sample in samples), 1)
        tried = sum(sample.videos for sample in samples)
        work = sum(sample.seconds for sample in samples) * scale
        size = sum(sample.shard_bytes for sample in samples) * scale
        return (
            f"tried {tried} of {plural(len(videos), 'video')}: {len(rejected)} unusable"
            + (", so preprocessing is likely to fail" if tried and len(rejected) == tried else "")
            + (f"; {videos.missing} missing or not regular files\n" if videos.missing else "\n")
            + "".join(f"  {row['path']}: {row['reason']}\n" for row in rejected[:_SHOWN])
            + (f"  and {len(rejected) - _SHOWN} more\n" if len(rejected) > _SHOWN else "")
            + f"about {_size(size)} of shards from {_size(videos.source_bytes)} of videos\n"
            f"about {_time(start + work / settings.workers)} with {plural(settings.workers, 'worker')} on cores like "
            f"this machine's ({_time(work)} for one worker, and {_time(start)} to start)"
        )


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A temporary folder that is removed even if this process is killed: a shell waits for the end of its pipe."""
    folder = Path(tempfile.mkdtemp(prefix="gdt-estimate-"))
    script = 'cat; for k in $(seq 100); do rm -rf "$0"; [ -e "$0" ] || exit; sleep 0.1; done'
    with subprocess.Popen(
        ["sh", "-c", script, folder], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ):  # fmt: skip
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _tasks(videos: VideoList, scratch: Path, settings: Preprocess) -> list[ShardTask]:
    """One task per sample, in random order: the first few are spread over the list."""
    tasks: list[ShardTask] = []
    taken, most = 0, max(1, int(len(videos) * _MAX_FRACTION) // _SAMPLES)
    for start in np.linspace(0, len(videos), _SAMPLES, endpoint=False).astype(int).tolist():
        rows = [videos.video(k) for k in range(max(start, taken), min(start + most, len(videos)))]
        group = next(groups([video for video, _ in rows]), [])
        if group:
            taken = max(start, taken) + len(group)
            path = scratch / f"shard-{len(tasks):06d}.h5"
            sizes = [size for _, size in rows[: len(group)]]
            tasks.append(ShardTask(path, group, settings.extraction, videos.source, "", sizes, last=True))
    return [tasks[k] for k in np.random.default_rng(0).permutation(len(tasks))]


def _decode(task: ShardTask) -> _Sample:
    began = time.perf_counter()
    make_shard(task)
    seconds = time.perf_counter() - began
    source_bytes = sum(max(size, 0) for size in task.sizes)
    made = task.path.is_file()
    rejected, shard_bytes = (read_rejected_of(task.path), task.path.stat().st_size) if made else ([], 0)
    return _Sample(seconds, len(task.videos), rejected, source_bytes, shard_bytes)


def _size(count: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9)):
        if count >= one:
            return f"{count / one:.1f} {unit}"
    return f"{count / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    for unit, one in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * one:
            return f"{seconds / one:.1f} {unit}"
    return f"{seconds:.0f} s"
