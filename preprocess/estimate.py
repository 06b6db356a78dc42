"""`--dry-run`: what the whole would take, from a few videos."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import numpy as np

from pipeline.errors import UserError
from pipeline.shards.layout import shard_rejected
from preprocess.ffmpeg import require_ffmpeg
from preprocess.plan import ShardTask, VideoList
from preprocess.stage import Preprocess, described, make_shard

_SAMPLES = 16


def estimate(settings: Preprocess) -> str:
    """Make shards of a few videos, spread over the list, in a temporary folder, and scale time and size up by bytes."""
    require_ffmpeg()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gdt-estimate-")))
        items, _ = described(settings, scratch, stack)
        videos = stack.enter_context(VideoList(items, settings.source_folder, scratch))
        if not len(videos):
            raise UserError(f"there are no videos in {settings.source_folder}")
        make_shard(_task(videos, 0, scratch / "shard-000000.h5", settings))  # not timed: it pays for the imports
        places = np.unique(np.linspace(0, len(videos) - 1, _SAMPLES).round().astype(int))
        seconds, made, source, rejected = [], [], [], 0
        for number, place in enumerate(places):
            path = scratch / f"shard-{number:06d}.h5"
            task = _task(videos, int(place), path, settings)
            began = time.perf_counter()
            make_shard(task)
            seconds.append(time.perf_counter() - began)
            made.append(path.stat().st_size)
            source.append(max(task.sizes[0], 0))
            rejected += len(shard_rejected(path))
        scale = videos.source_bytes / max(sum(source), 1)
        core_hours = sum(seconds) * scale / 3600
        return (
            f"{len(places)} of {len(videos)} videos decoded, {rejected} of them unusable; {videos.missing} missing\n"
            f"about {_size(sum(made) * scale)} of shards from {_size(videos.source_bytes)} of videos\n"
            f"about {core_hours:.2f} core hours: {core_hours / settings.workers:.2f} hours with {settings.workers} "
            "workers on cores like this machine's"
        )


def _task(videos: VideoList, place: int, path: Path, settings: Preprocess) -> ShardTask:
    video, size = videos.video(place)
    return ShardTask(path, [video], settings.extraction, videos.source, content="", sizes=[size])


def _size(count: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9)):
        if count >= one:
            return f"{count / one:.1f} {unit}"
    return f"{count / 1e6:.1f} MB"
