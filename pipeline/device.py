"""The device on which batches are made: a processor, or a GPU with its streams. What they do differently is here."""

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
    """cpu, or mixed: what comes in as bytes leaves on the GPU."""
    number: int | None
    """Of the GPU."""


@dataclass(frozen=True)
class Canvas:
    """Memory of this machine into which crops are drawn."""

    pixels: np.ndarray
    """uint8 [n, frames, size, size, 3]."""
    rows: np.ndarray
    """Which of these n each leaf of a run is: int64, in the shape of the run's rows."""
    done: Callable[[], None]
    """To be called when all is drawn."""


class Device:
    """A processor: what was called there is done when the call returns."""

    is_gpu = False
    CANVASES = 3
    """As many as there may be at once."""

    def __init__(self, device: torch.device, dali: DaliDevice = DaliDevice("cpu", "cpu", None)) -> None:
        self.device, self.dali = device, dali

    def aside(self) -> AbstractContextManager[Any]:
        """Within it, work of this thread is on the loader's own stream."""
        return nullcontext()

    def mark(self) -> Any:
        """The point that the work of this thread's stream has reached."""
        return None

    def wait(self, mark: Any) -> None:
        """Let the work of this thread's stream that comes now begin after that point."""

    def outputs(self, graph: Any) -> Sequence[Any]:
        """The outputs of a DALI graph, for this thread's stream; they hold until it is told to release them."""
        shared: Sequence[Any] = graph.share_outputs()
        return shared

    def canvas(self, crops: torch.Tensor, rows: np.ndarray) -> Canvas:
        """Memory to draw some rows of `crops` into, which have them once it is done."""
        return Canvas(crops.numpy(), rows, lambda: None)


class Gpu(Device):
    """A GPU, on which the loader has a stream of high priority: its short kernels go before those of training."""

    is_gpu = True

    def __init__(
        self, device: torch.device, dali: DaliDevice | None = None, cuda: Any = torch.cuda, pinned: bool = True
    ) -> None:
        """`cuda` has what of torch.cuda is used; memory for uploads is `pinned`, or is not where there is no GPU."""
        super().__init__(device, dali or DaliDevice("gpu", "mixed", device.index or 0))
        self._cuda, self._pinned = cuda, pinned
        self._stream = cuda.Stream(device, priority=-1)
        self._uploads: list[tuple[torch.Tensor, Any]] = [(torch.empty(0, dtype=torch.uint8), None)] * self.CANVASES
        self._turn = itertools.cycle(range(self.CANVASES))

    def aside(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._cuda.stream(self._stream)
        return context

    def mark(self) -> Any:
        return self._cuda.current_stream(self.device).record_event()

    def wait(self, mark: Any) -> None:
        if mark is not None:
            self._cuda.current_stream(self.device).wait_event(mark)

    def outputs(self, graph: Any) -> Sequence[Any]:
        shared: Sequence[Any] = graph.share_outputs(cuda_stream=self._cuda.current_stream(self.device))
        return shared

    def canvas(self, crops: torch.Tensor, rows: np.ndarray) -> Canvas:
        turn = next(self._turn)
        held, sent = self._uploads[turn]
        if sent is not None:
            sent.synchronize()  # what was drawn there before has left
        shape = (rows.size, *crops.shape[1:])
        if held.shape != shape:
            held = torch.empty(shape, dtype=torch.uint8, pin_memory=self._pinned)

        def send() -> None:
            places = torch.from_numpy(rows.reshape(-1)).to(self.device)
            crops[places] = held.to(self.device, non_blocking=True)
            self._uploads[turn] = (held, self.mark())

        return Canvas(held.numpy(), np.arange(rows.size).reshape(rows.shape), send)


def loader_device(device: torch.device) -> Device:
    """What the loader needs of a device of torch."""
    return Gpu(device) if device.type == "cuda" else Device(device)
