"""Settings of the loader, in a module that needs no torch: command lines read it before anything is computed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from gdt.common.errors import require_positive


def _cores() -> int:
    """Cores of this machine per process that torchrun started on it."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@dataclass(frozen=True)
class Loading:
    """Where loading is done, how it is spread over threads and buffers, and what it does about damage; of undamaged
    shards no value changes what is loaded, but for the rounding of a GPU's decoders.
    """

    threads: int = field(default_factory=_cores)
    """Threads that decode on this machine's cores, and those of DALI; by default this process's share of the cores."""
    decoder: Literal["auto", "cpu", "gpu"] = "auto"
    """Where frames are decoded and cropped: on this machine's cores, from where a GPU gets bytes, or on the GPU; auto
    takes the GPU where one trains. Cores are better where they are idle and the GPU is not."""
    jpeg_hardware: bool = True
    """Whether a GPU decodes on its JPEG engine, where it has one, and not on what trains; all frames or none, since the
    two may differ by a grey level."""
    readers: int = 16
    """Threads that read shards, for each modality; more hide the latency of slow or remote disks."""
    read_ahead: int = 128
    """Clips whose bytes are read before they are needed, in as many batches as they take."""
    clips_at_once: int = 16
    """Decoded clips per run of DALI, or per upload to a GPU; larger ones suit a GPU, smaller ones a small cache."""
    prefetch: int = 2
    """Batches made ahead of the training step."""
    damaged: Literal["stop", "skip"] = "stop"
    """What a clip does that is not what was written into its shard: it ends the run with its name, or its leaves count
    for nothing in the loss, and are counted, and named at the end."""

    def __post_init__(self) -> None:
        require_positive(self, "loading", "threads", "readers", "read_ahead", "clips_at_once", "prefetch")
