"""Settings of the loader, without torch, so that command lines start fast."""

import contextlib
import importlib.util
import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from gdt.common.errors import UserError, require_range
from gdt.common.machine import cores

_BESIDE_GPU = 4
"""Decoding threads that feed a GPU. The thread that trains waits for their GIL: 378 clips/s with 4, 308 with 16 (row l
on an H200)."""
_GET_DALI = "run pip install 'gdt-video[gpu]'"


def has_dali() -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec("nvidia.dali") is not None
    return False


@cache
def advise_dali() -> None:
    """Say once that the cores decode for a GPU, and how to change it."""
    print(f"DALI is not installed, so the cores decode frames; to decode on the GPU, {_GET_DALI}", file=sys.stderr)


@dataclass(frozen=True)
class Loading:
    """These options do not change results, apart from rounding on GPUs."""

    threads: int = 0
    """Decoding threads; 0: the cores divided by the processes on this machine, but 4 if the cores decode for a GPU."""
    decoder: Literal["auto", "cpu", "gpu"] = "auto"
    """What decodes frames: the cores, or DALI, on the GPU if there is one; auto: DALI beside a GPU, if installed."""
    readers: int = 16
    """Threads per modality that read shards; more hide the latency of slow or remote disks."""
    read_ahead: int = 128
    """Clips to read in advance, across batches."""
    decode_batch_size: int = 16
    """Clips per DALI run or GPU upload; raise it for a GPU, lower it for a small CPU cache."""
    prefetch: int = 2
    """Batches to make ahead of the training step."""

    def __post_init__(self) -> None:
        require_range(self, "readers", "read_ahead", "decode_batch_size", "prefetch", group="loading")
        require_range(self, "threads", least=0, group="loading")


def loading_on(device: str, loading: Loading) -> Loading:
    """Settings with decoder and threads chosen for a type of device. Raises UserError for DALI where it is missing."""
    gpu = device == "cuda"
    decoder = loading.decoder
    if decoder == "auto":
        decoder = "gpu" if gpu and has_dali() else "cpu"
        if gpu and decoder == "cpu":
            advise_dali()
    elif decoder == "gpu" and not has_dali():
        raise UserError(f"--loading.decoder gpu needs DALI; {_GET_DALI}, or leave the option out")
    share = max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # of each process by torchrun
    most = min(share, _BESIDE_GPU) if gpu and decoder == "cpu" else share
    return replace(loading, decoder=decoder, threads=loading.threads or most)
