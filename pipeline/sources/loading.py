"""Settings of the loader, without torch, so that command lines start fast."""

import contextlib
import importlib.util
import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, get_args

from gdt.common.errors import UserError, require_range, unknown
from gdt.common.machine import cores

Decoder = Literal["auto", "cpu", "gpu"]
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
    decoder: Decoder = "auto"
    """What decodes frames: the cores, or DALI, on the GPU if there is one; auto: as the environment variable
    GDT_DECODER says, else DALI beside a GPU, if installed."""
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
    """Settings with decoder and threads chosen for a type of device.

    Raises UserError for DALI where it is missing, and for an unknown GDT_DECODER.
    """
    gpu = device == "cuda"
    option = "--loading.decoder"
    decoder: str = loading.decoder
    if decoder == "auto":
        option = "GDT_DECODER"
        decoder = os.environ.get(option) or "auto"
    if decoder not in get_args(Decoder):
        raise unknown(f"value of {option}", decoder, get_args(Decoder))
    if decoder == "auto":
        decoder = "gpu" if gpu and has_dali() else "cpu"
        if gpu and decoder == "cpu":
            advise_dali()
    elif decoder == "gpu" and not has_dali():
        raise UserError(f"{option} gpu needs DALI; {_GET_DALI}, or leave it out")
    share = max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # of each process by torchrun
    most = min(share, _BESIDE_GPU) if gpu and decoder == "cpu" else share
    chosen: Any = decoder
    return replace(loading, decoder=chosen, threads=loading.threads or most)
