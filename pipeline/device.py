"""Device of the loader: a CPU, or a GPU with its streams."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class DaliDevice:
    """Where DALI's operators run."""

    operators: str
    """cpu or gpu."""
    decoder: str
    """cpu, or mixed: bytes of the CPU to pixels of the GPU."""
    number: int | None
    """Number of the GPU."""


@dataclass(frozen=True)
class Canvas:
    """CPU memory into which crops are drawn."""

    pixels: np.ndarray
    """uint8 [n, frames, size, size, 3]."""
    rows: np.ndarray
    """Row in `pixels` of each leaf of a run: int64, in the shape of the run's rows."""
    done: Callable[[], None]
    """Call this once all crops are drawn."""


class Device:
    """A CPU: work is complete when a call returns."""

    is_gpu = False
    CANVASES = 3
    """Maximum number of canvases in use."""

    def __init__(self, device: torch.device, dali: DaliDevice = DaliDevice("cpu", "cpu", None)) -> None:
        self.device, self.dali = device, dali

    def loader_stream(self) -> AbstractContextManager[Any]:
        """Run the work of this thread on the loader's stream."""
        return nullcontext()

    def record(self) -> Any:
        """Record an event in the current stream."""
        return None

    def wait(self, event: Any) -> None:
        """Let the following work of the current stream wait for an event."""

    def outputs(self, graph: Any) -> Sequence[Any]:
        """Outputs of a DALI graph for the current stream, valid until released."""
        return graph.share_outputs()

    def canvas(self, crops: torch.Tensor, rows: np.ndarray) -> Canvas:
        """Memory to draw the `rows` of `crops` into."""
        return Canvas(crops.numpy(), rows, lambda: None)


class Gpu(Device):
    """A GPU, on which the loader has a high-priority stream: its short kernels run before those of training."""

    is_gpu = True

    def __init__(
        self, device: torch.device, dali: DaliDevice | None = None, cuda: Any = torch.cuda, pinned: bool = True
    ) -> None:
        """`cuda` stands for torch.cuda, and upload memory is `pinned`; tests without a GPU replace both."""
        super().__init__(device, dali or DaliDevice("gpu", "mixed", device.index or 0))
        self._cuda, self._pinned = cuda, pinned
        self._stream = cuda.Stream(device, priority=-1)
        self._uploads: list[tuple[torch.Tensor, Any]] = [(torch.empty(0, dtype=torch.uint8), None)] * self.CANVASES
        self._turn = itertools.cycle(range(self.CANVASES))

    def loader_stream(self) -> AbstractContextManager[Any]:
        return self._cuda.stream(self._stream)

    def record(self) -> Any:
        return self._cuda.current_stream(self.device).record_event()

    def wait(self, event: Any) -> None:
        if event is not None:
            self._cuda.current_stream(self.device).wait_event(event)

    def outputs(self, graph: Any) -> Sequence[Any]:
        return graph.share_outputs(cuda_stream=self._cuda.current_stream(self.device))

    def canvas(self, crops: torch.Tensor, rows: np.ndarray) -> Canvas:
        turn = next(self._turn)
        memory, uploaded = self._uploads[turn]
        if uploaded is not None:
            uploaded.synchronize()
        shape = (rows.size, *crops.shape[1:])
        if memory.shape != shape:
            memory = torch.empty(shape, dtype=torch.uint8, pin_memory=self._pinned)

        def upload() -> None:
            crops[torch.from_numpy(rows.reshape(-1)).to(self.device)] = memory.to(self.device, non_blocking=True)
            self._uploads[turn] = (memory, self.record())

        return Canvas(memory.numpy(), np.arange(rows.size).reshape(rows.shape), upload)


def loader_device(device: torch.device | Device) -> Device:
    """The loader's view of a torch device, unless it is one already."""
    if isinstance(device, Device):
        return device
    return Gpu(device) if device.type == "cuda" else Device(device)
