"""`--dry-run`: what the whole would take, from a few videos that the workers decode as they would all of them."""

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

from gdt.common.errors import UserError
from gdt.pipeline.shards.layout import shard_rejected
from gdt.preprocess import cluster
from gdt.preprocess.ffmpeg import groups, require_ffmpeg
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.stage import Preprocess, described, listed, tell_changed
from gdt.preprocess.videos import VideoList
from gdt.preprocess.worker import make_shard

_SAMPLES = 8
"""Runs of neighbours, as many as one ffmpeg process decodes together: one long video, or up to 16 short ones."""
_TOLD = 5
"""Unusable videos that are named."""
_SECONDS = 60.0
"""After which no more samples are begun."""


@dataclass(frozen=True)
class _Sample:
    """What came of decoding some videos."""

    seconds: float
    """Of one worker, all others being busy too."""
    videos: int
    unusable: list[dict[str, str]]
    """Rows of what would be rejected.jsonl."""
    source: int
    """Bytes of their files."""
    made: int
    """Bytes of their shard."""


def estimate(settings: Preprocess) -> str:
    """Make shards of a few videos, spread over the list, in a temporary folder, and scale time and size up by bytes."""
    require_ffmpeg()
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(_vanishing())
        items, _ = described(settings, scratch, stack)
        videos = listed(items, settings, scratch, stack)
        if not len(videos):
            raise UserError(f"there are no videos in {settings.source_folder}")
        tasks = _tasks(videos, scratch, settings)
        tell_changed(settings, videos.shares)
        print(f"decoding some of {len(videos)} videos, for a minute at most", flush=True)
        # on this machine, whoever is to do the whole
        workers = min(settings.workers, cluster.one_per_core())
        stack.enter_context(dask.config.set({"temporary-directory": str(scratch)}))
        began = time.perf_counter()
        with cluster.connect("", workers) as client:
            first = replace(tasks[0], videos=tasks[0].videos[:1], sizes=tasks[0].sizes[:1])
            warm = (replace(first, path=scratch / f"shard-{900_000 + k}.h5") for k in range(workers))
            list(cluster.unordered(client, _decode, warm, workers))  # they pay for the imports
            start = time.perf_counter() - began
            until = time.monotonic() + _SECONDS
            begun = (task for k, task in enumerate(tasks) if k <= workers or time.monotonic() < until)
            samples = list(cluster.unordered(client, _decode, begun, workers))
        unusable = [row for sample in samples for row in sample.unusable]
        scale = videos.source_bytes / max(sum(sample.source for sample in samples), 1)
        work = sum(sample.seconds for sample in samples) * scale
        made = sum(sample.made for sample in samples) * scale
        return (
            f"{sum(sample.videos for sample in samples)} of {len(videos)} videos decoded, "
            f"{len(unusable)} of them unusable; {videos.missing} listed or named like videos and not there\n"
            + "".join(f"  {row['path']}: {row['reason']}\n" for row in unusable[:_TOLD])
            + (f"  and {len(unusable) - _TOLD} more\n" if len(unusable) > _TOLD else "")
            + f"about {_size(made)} of shards from {_size(videos.source_bytes)} of videos\n"
            f"about {_time(start + work / settings.workers)} with {settings.workers} workers on cores like this "
            f"machine's ({_time(work)} of work, and {_time(start)} until they have started)"
        )


@contextlib.contextmanager
def _vanishing() -> Iterator[Path]:
    """A temporary folder that goes even where this process is killed: its pipe to a shell closes then."""
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
    """One for each sample, in an order in which any first few are spread over the list."""
    tasks: list[ShardTask] = []
    taken = 0
    for place in np.linspace(0, len(videos), _SAMPLES, endpoint=False).astype(int).tolist():
        rows = [videos.video(k) for k in range(max(place, taken), min(place + 64, len(videos)))]
        group = next(groups([video for video, _ in rows]), [])
        if group:
            taken = max(place, taken) + len(group)
            path = scratch / f"shard-{len(tasks):06d}.h5"
            sizes = [size for _, size in rows[: len(group)]]
            tasks.append(ShardTask(path, group, settings.extraction, videos.source, "", sizes, last=True))
    return [tasks[k] for k in np.random.default_rng(0).permutation(len(tasks))]


def _decode(task: ShardTask) -> _Sample:
    began = time.perf_counter()
    make_shard(task)
    seconds = time.perf_counter() - began
    source = sum(max(size, 0) for size in task.sizes)
    rejected = shard_rejected(task.path) if task.path.is_file() else []
    made = task.path.stat().st_size if task.path.is_file() else 0
    return _Sample(seconds, len(task.videos), rejected, source, made)


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
