"""Threads of this process that decode a few videos, without the seconds in which worker processes start.

ffmpeg is a process of its own, with its limits. A crash of compiled code ends this process, which the next run resumes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from gdt.preprocess.process import STOPPED
from gdt.preprocess.worker import REPORT

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class Threads:
    """A context in which tasks run; in the end, and after an error or a signal, those that still run are stopped."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._handle: Callable[[Any], object] = lambda event: None
        self._pool = ThreadPoolExecutor(number, "decode", self._enter)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

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

    def map_unordered(
        self,
        function: Callable[[_Task], _Result],
        tasks: Iterable[_Task],
        fits: Callable[[Sequence[_Task]], bool] = lambda tasks: True,
    ) -> Iterator[_Result]:
        """Yield results in order of completion; `fits` as in `cluster.map_unordered`. Raises what a task raises."""
        waiting = iter(tasks)
        coming = [*itertools.islice(waiting, 1)]
        task_of: dict[Future[_Result], _Task] = {}
        while True:
            while coming and len(task_of) < self._number and (not task_of or fits([*task_of.values(), *coming])):
                task = coming.pop()
                coming += itertools.islice(waiting, 1)
                task_of[self._pool.submit(function, task)] = task
            if not task_of:
                return
            future = wait(task_of, return_when=FIRST_COMPLETED).done.pop()
            yield future.result()
            del task_of[future]
