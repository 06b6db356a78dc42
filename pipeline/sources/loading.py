"""Settings of the loader, in a module that needs no torch: command lines read it before anything is computed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from pipeline.errors import require_positive


def _cores() -> int:
    """Cores of this machine per process that torchrun started on it."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@dataclass(frozen=True)
class Loading:
    """How loading is spread over threads and buffers, and what it does about damage; no value changes what is loaded
    from undamaged shards.
    """

    threads: int = field(default_factory=_cores)
    """DALI worker threads; by default this process's share of the cores."""
    readers: int = 4
    """Threads that read shards; more hide the latency of slow or remote disks."""
    clips_at_once: int = 16
    """Decoded clips per DALI run; larger ones suit a GPU, smaller ones a small cache."""
    prefetch: int = 2
    """Batches made ahead of the training step."""
    damaged: Literal["stop", "skip"] = "stop"
    """What a clip does that is not what was written into its shard: it ends the run with its name, or its leaves count
    for nothing in the loss, and are counted, and named at the end."""

    def __post_init__(self) -> None:
        require_positive(self, "loading", "threads", "readers", "clips_at_once", "prefetch")
