"""What makes shards: threads of this process for a few videos or workers, else Dask's workers, which are processes on
this machine or those of a running scheduler.

Of threads, too, each runs ffmpeg as a process of its own, with its limits. A crash of compiled code ends this process,
which the next run resumes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import current_process, forkserver, resource_tracker
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from gdt.common.errors import UserError, first_line
from gdt.preprocess.process import STOPPED
from gdt.preprocess.worker import REPORT

if TYPE_CHECKING:  # takes half a second to import, and a run with nothing to do does not need it
    import distributed

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_FEW = 128
_FEW_WORKERS = 2
"""Most videos, or else workers, for which threads decode, where there is no cluster. They share Python's lock, which a
video of 10 s takes for some 15 ms; processes cost some two seconds. So 2 threads are always faster, and 64 up to about
so many videos.
"""
_CONFIG: dict[str, Any] = {
    # the stage bounds its own memory; a worker paused or restarted because of page cache would lose its shard
    **{f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause", "terminate")},
    "distributed.worker.multiprocessing-method": "forkserver",
    # workers have the variables of their server. Dask's MALLOC_TRIM_THRESHOLD_ costs 5% of the speed: with it, every
    # larger array, in ffmpeg too, takes fresh pages from the kernel
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.worker.lifetime.duration": None,  # nobody replaces a worker that ends
    # Dask's monitors run a hundred times a second in every process, next to threads that wait for ffmpeg
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "30s",
    "distributed.admin.system-monitor.interval": "5s",
}
_ADVICE = (
    "check the free memory, 'ulimit -a' (processes, open files), variables DASK_*, the network interface lo, and that "
    "/dev/shm can be written to"
)


class Threads(ThreadPoolExecutor):
    """A context in which tasks run; in the end, and after an error or a signal, those that still run are stopped."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "decode", self._enter)
        self._stop = threading.Event()
        self._handle: Callable[[Any], object] = lambda event: None

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.shutdown(cancel_futures=True)

    def _enter(self) -> None:
        """Prepare a thread."""
        STOPPED.set(self._stop.is_set)
        REPORT.set(lambda videos: self._handle((None, videos)))

    def subscribe_topic(self, _: str, handle: Callable[[Any], object]) -> None:
        """Call a function with the number of videos just done, as Dask does: (time, number)."""
        self._handle = handle


@contextlib.contextmanager
def connect(scheduler: str, workers: int, videos: int) -> Iterator[distributed.Client | Threads]:
    """A Dask client, or threads that stand in for it; workers that it starts end with the context.

    `scheduler` is empty for this machine, or an address (tcp://host:8786). Raises UserError if it cannot be reached.
    """
    few = videos <= _FEW or workers <= _FEW_WORKERS
    if not scheduler and (few or current_process().daemon):  # which may have no processes
        with Threads(workers) as threads:
            yield threads
        return
    if not scheduler:
        _start_server()
    import dask
    import distributed

    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # `map_unordered` reports a lost scheduler in one sentence
    with dask.config.set(_CONFIG), contextlib.ExitStack() as stack:
        if scheduler:
            try:
                client = distributed.Client(scheduler, timeout=10, set_as_default=False)
            except (OSError, TimeoutError, ValueError, TypeError) as error:  # TypeError: tls:// without certificates
                raise UserError(
                    f"no Dask scheduler answers at {scheduler} ({first_line(error)}); start one with 'dask scheduler'"
                ) from error
        else:
            stack.enter_context(_hidden_script())
            cluster = stack.enter_context(_local(workers))
            client = distributed.Client(cluster, set_as_default=False)
        yield stack.enter_context(client)


@contextlib.contextmanager
def _hidden_script() -> Iterator[None]:
    """Keep worker processes from running the script of this process again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _local(workers: int) -> distributed.LocalCluster:
    """Worker processes on this machine; this process receives Ctrl-C and ends them."""
    import distributed

    with _explained():
        return distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # any port: 8787 may be another's
            silence_logs=logging.CRITICAL,
        )


def _start_server() -> None:
    """Start the process that workers are forked from, unless there is one; it imports what they need."""
    # blocked, not ignored: child processes inherit both, but this process must still receive the signals. A hang-up
    # must not end Python's process that tracks semaphores, nor Ctrl-C the workers
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    forkserver.set_forkserver_preload(["gdt.preprocess.preloaded"])
    try:
        with _explained():
            resource_tracker.ensure_running()  # which unblocks SIGINT
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn what keeps processes from starting into a UserError."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # a worker that dies at its start ends the whole cluster
        cause: BaseException = error  # the error of the operating system in the chain, else its origin
        while getattr(cause, "errno", None) is None and (cause.__cause__ or cause.__context__):
            cause = cause.__cause__ or cause.__context__ or error
        raise UserError(f"worker processes cannot be started ({first_line(cause)}); {_ADVICE}") from error


def map_unordered(
    client: distributed.Client | Threads,
    function: Callable[[_Task], _Result],
    tasks: Iterable[_Task],
    expected: int,
    fits: Callable[[Sequence[_Task]], bool] = lambda tasks: True,
) -> Iterator[_Result]:
    """Yield results in order of completion; at most two tasks per worker are submitted, to bound memory.

    One is submitted if it `fits` beside those whose results the caller has not yet dealt with, or is alone.
    Workers may come and go; at least `expected` are assumed. Raises UserError if the scheduler is lost, or if one task
    kills several workers, and what a task raises: only those of dead workers are repeated.
    """
    if isinstance(client, Threads):
        done = _keep_busy(lambda task: client.submit(function, task), tasks, lambda: expected, fits)
        yield from (future.result() for future, _ in done)
        return
    import distributed

    lost = (distributed.client.FutureCancelledError, distributed.comm.CommClosedError, TimeoutError, OSError)
    if not client.scheduler_info(n_workers=-1)["workers"]:
        print("waiting for workers", flush=True)
        client.wait_for_workers(1)

    def most() -> int:
        return 2 * max(expected, len(client.scheduler_info(n_workers=-1)["workers"]))

    try:
        for future, task in _keep_busy(partial(client.submit, function, pure=False), tasks, most, fits):
            try:
                yield future.result()
            except distributed.KilledWorker as error:
                raise UserError(
                    f"{error.allowed_failures + 1} workers died on {task}, the last at "
                    f"{error.last_worker.address}; check the free memory, then run the same command again: finished "
                    "shards are kept"
                ) from error
            future.release()
    except lost as error:
        raise UserError(
            f"the Dask scheduler was lost ({type(error).__name__}); run the same command again with --scheduler set to "
            "a running one: finished shards are kept"
        ) from error


def _keep_busy(
    submit: Callable[..., Any],
    tasks: Iterable[_Task],
    most: Callable[[], int],
    fits: Callable[[Sequence[_Task]], bool],
) -> Iterator[tuple[Any, _Task]]:
    """Submit tasks, and yield the future of each that is done: see `map_unordered`."""
    waiting = iter(tasks)
    coming = [*itertools.islice(waiting, 1)]
    task_of: dict[Any, _Task] = {}
    done: SimpleQueue[Any] = SimpleQueue()
    while True:
        while coming and len(task_of) < most() and (not task_of or fits([*task_of.values(), *coming])):
            future = submit(coming[0])
            task_of[future] = coming.pop()
            future.add_done_callback(done.put)
            coming += itertools.islice(waiting, 1)
        if not task_of:
            return
        future = done.get()
        yield future, task_of[future]
        del task_of[future]
