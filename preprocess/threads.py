"""Threads of this process that decode videos, without the seconds in which worker processes start.

ffmpeg is a process of its own, with its limits. A crash of compiled code ends this process, which the next run resumes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gdt.preprocess.process import STOPPED
from gdt.preprocess.worker import REPORT


class Threads(ThreadPoolExecutor):
    """A context in which tasks run; in the end, and after an error or a signal, those that still run are stopped."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "decode", self._enter)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._handle: Callable[[Any], object] = lambda event: None

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.shutdown(cancel_futures=True)

    def _enter(self) -> None:
        """Prepare a thread."""
        STOPPED.set(self._stop.is_set)
        REPORT.set(self._report)

    def _report(self, videos: int) -> None:
        with self._lock:
            self._handle((None, videos))

    def subscribe_topic(self, _: str, handle: Callable[[Any], object]) -> None:
        """Call a function with the number of videos just done, as Dask does: (time, number)."""
        self._handle = handle

    def unsubscribe_topic(self, _: str) -> None:
        self._handle = lambda event: None
