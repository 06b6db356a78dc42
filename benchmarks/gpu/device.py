"""Where it is measured: a processor, or a GPU. All that is asked of CUDA is asked here."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

from gdt.common.errors import UserError
from gdt.train.provenance import device_name

T = TypeVar("T")
_GIB = 2**30


class Processor:
    """What is called is done when the call returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def facts(self) -> dict[str, str]:
        """What figures depend on."""
        return {"device": device_name(self.device)}

    def number(self) -> int:
        """How many of them there are."""
        return 1

    def synchronize(self) -> None:
        """Wait until all is done."""

    def fresh(self) -> None:
        """Give memory back, forget what was compiled, and count the most that is held from now on."""
        if "torch._dynamo" in sys.modules:  # else nothing was compiled, and to reset it would import it
            torch.compiler.reset()
        gc.collect()

    def most(self) -> float:
        """GiB that were held at most."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    def beside(self) -> Beside:
        """A second stream."""
        return Beside()

    def graph(self, compute: Callable[[], T]) -> Callable[[], T]:
        """The same as one graph, with what it was given when it was made."""
        return compute

    def seconds(self, step: Callable[[], Any], steps: int) -> float:
        """Of one step, over some."""
        self.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        self.synchronize()
        return (time.perf_counter() - began) / steps

    @contextlib.contextmanager
    def numbers(self, benchmark: bool, exact: bool = False) -> Iterator[None]:
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


class Beside:
    """A second stream, where there is one."""

    def begin(self) -> None:
        """What comes on it now may begin at this point of the first one."""

    def on(self) -> AbstractContextManager[Any]:
        """Within it, work is on the second stream."""
        return nullcontext()

    def join(self, made: torch.Tensor) -> None:
        """The first stream goes on with what the second one made."""


class Gpu(Processor):
    """A GPU; `cuda` has what of torch.cuda is used."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        super().__init__(device)
        self._cuda = cuda

    def facts(self) -> dict[str, str]:
        properties = self._cuda.get_device_properties(self.device)
        return super().facts() | {
            "GPUs": str(self.number()), "GPU memory": f"{properties.total_memory / _GIB:.1f} GiB",
            "multiprocessors": str(properties.multi_processor_count),
            "capability": f"{properties.major}.{properties.minor}",
        }  # fmt: skip

    def number(self) -> int:
        return int(self._cuda.device_count())

    def synchronize(self) -> None:
        self._cuda.synchronize(self.device)

    def fresh(self) -> None:
        super().fresh()
        self._cuda.empty_cache()
        self._cuda.reset_peak_memory_stats(self.device)

    def most(self) -> float:
        return float(self._cuda.max_memory_allocated(self.device)) / _GIB

    def beside(self) -> Beside:
        return _Stream(self.device, self._cuda)

    def graph(self, compute: Callable[[], T]) -> Callable[[], T]:
        aside, own = self._cuda.Stream(self.device), self._cuda.current_stream(self.device)
        aside.wait_stream(own)
        with self._cuda.stream(aside):  # what is made once must not be made while it is captured
            for _ in range(3):
                compute()
        own.wait_stream(aside)
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            made = compute()

        def replay() -> T:
            graph.replay()
            return made

        return replay


class _Stream(Beside):
    def __init__(self, device: torch.device, cuda: Any) -> None:
        self._device, self._cuda = device, cuda
        self._own = cuda.Stream(device)
        self._from: Any = None

    def begin(self) -> None:
        self._from = self._cuda.current_stream(self._device).record_event()

    def on(self) -> AbstractContextManager[Any]:
        if self._from is not None:
            self._own.wait_event(self._from)
        context: AbstractContextManager[Any] = self._cuda.stream(self._own)
        return context

    def join(self, made: torch.Tensor) -> None:
        first = self._cuda.current_stream(self._device)
        first.wait_stream(self._own)
        made.record_stream(first)


def device_of(name: str) -> Processor:
    """Raises UserError where it is not there."""
    if name == "cpu":
        return Processor(torch.device("cpu"))
    if not torch.cuda.is_available():
        raise UserError(
            "torch finds no GPU; see nvidia-smi, or pass --device cpu --size tiny, which shows that everything runs"
        )
    return Gpu(torch.device("cuda", 0))
