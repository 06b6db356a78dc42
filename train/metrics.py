"""Metrics of steps, read one step late, so that the device never waits for the host."""

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
"""Steps before the trace, which fill caches and compile code."""
TRACE = "trace.json"


class Metrics(NamedTuple):
    """Metrics of a step, equal on every rank; every field is logged."""

    loss: Any
    """Scalar: a tensor on the device, a number in reports."""
    top1: Any
    """Top-1 accuracy, as in `loss.Outcome`."""
    gradient_norm: Any


class Report(NamedTuple):
    """Report of a step; equal on every rank, except for times and memory."""

    step: int
    metrics: Metrics
    signal: int
    """Signal that any rank has received by the end of the step; 0 if none."""
    seconds: float
    """Duration of the step, including the wait for its batch, but not checkpoints and probes."""
    waiting: float
    """Seconds of the wait for the batch."""
    memory: float
    """Peak memory so far, GiB: of the GPU, or of the process on a CPU."""


class Reports:
    """Returns the report of a step once the next one has started."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":  # do not count the trials before the run
            torch.cuda.reset_peak_memory_stats(device)
        self._pending: tuple[int, torch.Tensor, list[Any]] | None = None
        self._marks = [mark(device)]

    def begin(self) -> None:
        """Mark the start of the wait for the next batch."""
        self._marks = [mark(self._device)]

    def loaded(self) -> None:
        """Mark the arrival of the batch."""
        self._marks.append(mark(self._device))

    def add(self, step: int, metrics: Metrics, signal: int) -> Report | None:
        """Record a step that runs on the device; returns the report of the previous step, None if it was read."""
        before = self.last()
        received = torch.full((), signal, device=self._device)
        if dist.is_initialized():
            dist.all_reduce(received, dist.ReduceOp.MAX)
        values = torch.stack([value.float() for value in (*metrics, received)])
        host = torch.empty(values.shape, pin_memory=self._device.type != "cpu")
        host.copy_(values, non_blocking=True)
        self._pending = (step, host, [*self._marks, mark(self._device)])
        return before

    def last(self) -> Report | None:
        """Wait for the newest step and return its report; None if it was read."""
        if self._pending is None:
            return None
        (step, host, (began, ready, done)), self._pending = self._pending, None
        done.synchronize()
        *metrics, signal = host.tolist()
        seconds, waiting = began.elapsed_time(done) / 1000, began.elapsed_time(ready) / 1000
        return Report(step, Metrics(*metrics), int(signal), seconds, waiting, memory(self._device))


class HostMark:
    """Host time, with the interface of torch.Event."""

    def __init__(self) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, later: HostMark) -> float:
        """Milliseconds until a later mark."""
        return 1000 * (later.time - self.time)

    def synchronize(self) -> None:
        return


def mark(device: torch.device) -> Any:
    """Event at which the device has finished its work so far."""
    if device.type == "cpu":
        return HostMark()
    event = torch.Event(device, enable_timing=True)
    event.record()
    return event


def memory(device: torch.device) -> float:
    """Peak memory, GiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@contextlib.contextmanager
def trace_steps(folder: Path, steps: int) -> Iterator[Callable[[], None]]:
    """Trace `steps` steps for Perfetto; yields a function to call after each step of the run."""
    if not steps:
        yield lambda: None
        return
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=TRACE_SKIPS, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(folder / TRACE)),
    ) as profile:
        yield profile.step
