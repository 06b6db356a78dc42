"""Settings of the loader, without torch, so that command lines start fast."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from gdt.common.errors import require_positive


def _cores() -> int:
    """Cores per process of torchrun."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@dataclass(frozen=True)
class Loading:
    """These options do not change results, apart from --loading.damaged and rounding on GPUs."""

    threads: int = field(default_factory=_cores)
    """Decoding threads; by default the cores divided by the processes on this machine."""
    decoder: Literal["auto", "cpu", "gpu"] = "auto"
    """Decode and crop on the CPU cores or on the GPU; auto takes the GPU if one trains. Choose cpu if the cores are
    idle and the GPU is busy."""
    jpeg_hardware: bool = True
    """Decode on the GPU's JPEG engine, if it has one, rather than on its cores; pixels may differ by one grey level."""
    readers: int = 16
    """Threads per modality that read shards; more hide the latency of slow or remote disks."""
    read_ahead: int = 128
    """Clips to read in advance, across batches."""
    decode_batch_size: int = 16
    """Clips per DALI run or GPU upload; more suit a GPU, fewer a small cache."""
    prefetch: int = 2
    """Batches to make ahead of the training step."""
    damaged: Literal["stop", "skip"] = "stop"
    """stop: end the run; skip: leave damaged clips out of the loss and list them at the
    end."""

    def __post_init__(self) -> None:
        require_positive(self, "loading", "threads", "readers", "read_ahead", "decode_batch_size", "prefetch")
