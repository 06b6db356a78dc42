"""The device: time, memory, streams and graphs of a CPU or a GPU."""

from __future__ import annotations

import contextlib
import gc
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, TypeVar

import torch
from torch import Tensor, cuda

from benchmarks.gpu import stubs
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.table import Rows, Values
from gdt.common.errors import UserError
from gdt.train.models.gdt import GDT
from gdt.train.provenance import device_name, git_commit

T = TypeVar("T")


def machine(settings: Settings, rows: Rows) -> None:
    """Device and versions."""

    def versions() -> Values:
        device = device_of(settings.device)
        dali = [one.version for one in metadata.distributions() if (one.name or "").startswith("nvidia-dali")]
        found: dict[str, float | str] = {
            "device": device_name(device), "commit": git_commit()[:12] or "unknown",
            "python": platform.python_version(), "torch": str(torch.__version__), "DALI": "".join(dali) or "none",
            "CUDA": torch.version.cuda or "none", "cuDNN": str(torch.backends.cudnn.version() or "none"),
            "threads": torch.get_num_threads(),
            "is": f"not installed: {', '.join(sorted(stubs.MISSING)) or 'nothing'}",
        }  # fmt: skip
        if on_gpu(device):
            found |= {"GPUs": cuda.device_count(), "GiB": cuda.get_device_properties(device).total_memory / 2**30}
        return found

    rows("versions", versions)


def device_of(name: str) -> torch.device:
    """The torch device. Raises UserError where there is none."""
    if name == "cuda" and not cuda.is_available():
        raise UserError(
            "torch finds no GPU; see nvidia-smi, or set --device cpu --size tiny to try the benchmark without one"
        )
    return torch.device("cuda", 0) if name == "cuda" else torch.device("cpu")


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def synchronize(device: torch.device) -> None:
    if on_gpu(device):
        cuda.synchronize(device)


def reset(device: torch.device) -> None:
    """Free memory, forget compiled code and reset the peak of memory."""
    if "torch._dynamo" in sys.modules:  # resetting would import it
        torch.compiler.reset()
    gc.collect()
    if on_gpu(device):
        cuda.empty_cache()
        cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> float:
    """GiB since `reset`; on a CPU since the process started."""
    if on_gpu(device):
        return float(cuda.max_memory_allocated(device)) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def seconds(step: Callable[[], Any], steps: int, device: torch.device) -> float:
    """Seconds per step, over some steps."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return (time.perf_counter() - start) / steps


@contextlib.contextmanager
def cudnn_settings(benchmark: bool, exact: bool = False) -> Iterator[None]:
    """Whether cuDNN benchmarks its kernels; `exact` turns TF32 off."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    cudnn.benchmark = benchmark
    if exact:
        cudnn.allow_tf32 = matmul.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


def as_graph(compute: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """Capture a function as a CUDA graph with its current inputs; on a CPU return it."""
    if not on_gpu(device):
        return compute
    aside, own = cuda.Stream(device), cuda.current_stream(device)
    aside.wait_stream(own)
    with cuda.stream(aside):  # lazy initialisation must not be captured
        for _ in range(3):
            compute()
    own.wait_stream(aside)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        output = compute()

    def replay() -> T:
        graph.replay()
        return output

    return replay


def use_side_stream(model: GDT, device: torch.device) -> None:
    """Embed audio on its own stream, in parallel with the video embedding that started before it."""
    if not on_gpu(device):
        return
    own, embed = cuda.Stream(device), model.embed
    started: list[Any] = []

    def aside(modality: str, inputs: Any, keys: Tensor | None = None) -> Tensor:
        first = cuda.current_stream(device)
        if modality != "audio":
            started[:] = [first.record_event()]
            return embed(modality, inputs, keys)
        for event in started:
            own.wait_event(event)
        with cuda.stream(own):
            output = embed(modality, inputs, keys)
        first.wait_stream(own)
        output.record_stream(first)
        return output

    model.embed = aside  # type: ignore[method-assign]
