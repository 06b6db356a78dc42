"""Where it is measured: a processor, or a GPU. Time, memory, streams and graphs."""

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

from benchmarks.gpu import absent
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.table import Rows, Values
from gdt.common.errors import UserError
from gdt.train.models.gdt import GDT
from gdt.train.provenance import device_name, git_commit

T = TypeVar("T")


def machine(settings: Settings, rows: Rows) -> None:
    """What figures depend on."""

    def versions() -> Values:
        device = device_of(settings.device)
        dali = [one.version for one in metadata.distributions() if (one.name or "").startswith("nvidia-dali")]
        found: dict[str, float | str] = {
            "device": device_name(device), "commit": git_commit()[:12] or "unknown",
            "python": platform.python_version(), "torch": str(torch.__version__), "DALI": "".join(dali) or "none",
            "CUDA": torch.version.cuda or "none", "cuDNN": str(torch.backends.cudnn.version() or "none"),
            "threads": torch.get_num_threads(),
            "is": f"stood in for: {', '.join(sorted(absent.MISSING)) or 'nothing'}",
        }  # fmt: skip
        if on_gpu(device):
            found |= {"GPUs": cuda.device_count(), "GiB": cuda.get_device_properties(device).total_memory / 2**30}
        return found

    rows("versions", versions)


def device_of(name: str) -> torch.device:
    """Raises UserError where it is not there."""
    if name == "cuda" and not cuda.is_available():
        raise UserError(
            "torch finds no GPU; see nvidia-smi, or pass --device cpu --size tiny, which shows that everything runs"
        )
    return torch.device("cuda", 0) if name == "cuda" else torch.device("cpu")


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def synchronize(device: torch.device) -> None:
    """Wait until all is done."""
    if on_gpu(device):
        cuda.synchronize(device)


def fresh(device: torch.device) -> None:
    """Give memory back, forget what was compiled, and count the most that is held from now on."""
    if "torch._dynamo" in sys.modules:  # else nothing was compiled, and to reset it would import it
        torch.compiler.reset()
    gc.collect()
    if on_gpu(device):
        cuda.empty_cache()
        cuda.reset_peak_memory_stats(device)


def most_held(device: torch.device) -> float:
    """GiB, at any time since `fresh`; of a processor, since the process began."""
    if on_gpu(device):
        return float(cuda.max_memory_allocated(device)) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def seconds(step: Callable[[], Any], steps: int, device: torch.device) -> float:
    """Of one step, over some."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return (time.perf_counter() - began) / steps


@contextlib.contextmanager
def numbers(benchmark: bool, exact: bool = False) -> Iterator[None]:
    """How cuDNN chooses its kernels, and whether float32 is computed in full."""
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
    """The same as one CUDA graph, with what it was given when it was made; on a processor, as it is."""
    if not on_gpu(device):
        return compute
    aside, own = cuda.Stream(device), cuda.current_stream(device)
    aside.wait_stream(own)
    with cuda.stream(aside):  # what is made once must not be made while it is captured
        for _ in range(3):
            compute()
    own.wait_stream(aside)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        made = compute()

    def replay() -> T:
        graph.replay()
        return made

    return replay


def side_stream(model: GDT, device: torch.device) -> None:
    """Let sound be embedded on a stream of its own, beside the pictures that were begun before it."""
    if not on_gpu(device):
        return
    own, embed = cuda.Stream(device), model.embed
    begun: list[Any] = []

    def aside(modality: str, inputs: Any, keys: Tensor | None = None) -> Tensor:
        first = cuda.current_stream(device)
        if modality != "audio":
            begun[:] = [first.record_event()]
            return embed(modality, inputs, keys)
        for event in begun:
            own.wait_event(event)
        with cuda.stream(own):
            made = embed(modality, inputs, keys)
        first.wait_stream(own)
        made.record_stream(first)
        return made

    model.embed = aside  # type: ignore[method-assign]
