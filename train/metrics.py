"""What steps have come to, read once the next one has been started, so that a device never waits for its host."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_GIB = 2**30
TRACE_SKIPS = 5
"""Steps before the trace, in which caches are filled and code is compiled."""
TRACE = "trace.json"


class Metrics(NamedTuple):
    """Of a step, the same on every rank; a field more is logged like these."""

    loss: Any
    """Scalars: tensors on the device, and in reports numbers."""
    top1: Any
    """Share of the leaves whose most similar one, of those with weight, is a positive."""
    gradient_norm: Any


class Report(NamedTuple):
    """Of one step, the same on every rank but for its times and its memory."""

    step: int
    metrics: Metrics
    signal: int
    """The signal that any rank had got when the step was done; 0 for none."""
    seconds: float
    """From the end of the step before, without what came between the two, such as checkpoints."""
    waiting: float
    """Of these, until the batch was there, on the device."""
    memory: float
    """Most that was held until then, GiB: of the device's memory, or of the process where the device is the CPU."""


class Reports:
    """Reports of the steps before the newest one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":  # what was tried before the run is not its memory
            torch.cuda.reset_peak_memory_stats(device)
        self._pending: tuple[int, torch.Tensor, list[Any]] | None = None
        self._marks = [mark(device)]

    def begin(self) -> None:
        """What comes now is waiting for the next batch."""
        self._marks = [mark(self._device)]

    def loaded(self) -> None:
        """The batch has arrived; what comes now is computing."""
        self._marks.append(mark(self._device))

    def add(self, step: int, metrics: Metrics, signal: int) -> Report | None:
        """A step has been started on the device; the report of the one before it, if it has not been read."""
        before = self.last()
        told = torch.full((), signal, device=self._device)
        if dist.is_initialized():
            dist.all_reduce(told, dist.ReduceOp.MAX)
        values = torch.stack([value.float() for value in (*metrics, told)])
        host = torch.empty(values.shape, pin_memory=self._device.type != "cpu")
        host.copy_(values, non_blocking=True)
        self._pending = (step, host, [*self._marks, mark(self._device)])
        return before

    def last(self) -> Report | None:
        """The report of the newest step, for which this waits; None where it has been read."""
        if self._pending is None:
            return None
        (step, host, (began, ready, done)), self._pending = self._pending, None
        done.synchronize()
        *metrics, signal = host.tolist()
        seconds, waiting = began.elapsed_time(done) / 1000, began.elapsed_time(ready) / 1000
        return Report(step, Metrics(*metrics), int(signal), seconds, waiting, memory(self._device))


class HostMark:
    """A moment on the host, like torch's events on a device."""

    def __init__(self) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, later: HostMark) -> float:
        """Milliseconds until a later one."""
        return 1000 * (later.time - self.time)

    def synchronize(self) -> None:
        return


def mark(device: torch.device) -> Any:
    """The moment at which a device has done what it was given until now."""
    if device.type == "cpu":
        return HostMark()
    event = torch.Event(device, enable_timing=True)
    event.record()
    return event


def memory(device: torch.device) -> float:
    """GiB at most until now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@contextlib.contextmanager
def traced(folder: Path, steps: int) -> Iterator[Callable[[], None]]:
    """While entered, writes a trace of some steps into a folder, which chrome://tracing and Perfetto show.

    Gives what is to be called after each step. 0 steps for none.
    """
    if not steps:
        yield lambda: None
        return
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=TRACE_SKIPS, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(folder / TRACE)),
    ) as profile:
        yield profile.step
