"""Traces of torch's profiler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

SKIPPED = 5
"""Steps before the trace, in which caches are filled and code is compiled."""
NAME = "trace.json"


@contextlib.contextmanager
def traced(folder: Path, steps: int) -> Iterator[Callable[[], None]]:
    """While entered, writes a trace of some steps into a folder, which chrome://tracing and Perfetto show.

    Gives what is to be called after each step. 0 steps for none.
    """
    if not steps:
        yield lambda: None
        return
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=SKIPPED, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(folder / NAME)),
    ) as profile:
        yield profile.step
