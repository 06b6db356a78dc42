"""Dask: worker processes on this machine, a scheduler that is running, or SLURM; and tasks a few at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from gdt.common.errors import UserError, require_positive

if TYPE_CHECKING:  # half a second, which a run without anything to do need not wait for
    import distributed

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_STARTS = 3
_SHORT_WALLTIME = "00:30:00"
"""What dask-jobqueue asks for where nobody has said anything."""
_CONFIG: dict[str, Any] = {
    # the stage bounds its own memory, and a worker that pauses or restarts over page cache would lose its shard
    **{f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause", "terminate")},
    # one thread each for ffmpeg and log-mel. Dask's own MALLOC_TRIM_THRESHOLD_ is left out: with it every larger array,
    # in ffmpeg too, is fresh pages from the kernel, which costs a twentieth of the speed
    "distributed.nanny.pre-spawn-environ": {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")},
    # what Dask watches a hundred times a second, in every process, beside threads that wait for ffmpeg
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "30s",
    "distributed.admin.system-monitor.interval": "5s",
}


def one_per_core() -> int:
    """How many workers there are unless somebody says it."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Settings of every command that has workers."""

    workers: int = field(default_factory=one_per_core)
    """Worker processes on this machine, of one thread each; default one per core. SLURM jobs with --scheduler slurm;
    unused with an address."""
    scheduler: str = ""
    """Address of a running Dask scheduler (tcp://host:8786), or slurm; empty starts workers on this machine."""

    def __post_init__(self) -> None:
        require_positive(self, "", "workers")


@contextlib.contextmanager
def connect(scheduler: str, workers: int) -> Iterator[distributed.Client]:
    """A client of worker processes, one ffmpeg each, that end with it unless their scheduler was running before.

    `scheduler` is empty for this machine, an address (tcp://host:8786), or `slurm` for jobs of one worker each.
    Raises UserError where it cannot be reached.
    """
    import dask
    import distributed

    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # of a lost scheduler, `unordered` tells in one sentence
    with dask.config.set(_CONFIG), contextlib.ExitStack() as stack:
        if scheduler and scheduler != "slurm":
            try:
                client = distributed.Client(scheduler, timeout=10, set_as_default=False)
            except (OSError, TimeoutError, ValueError) as error:
                raise UserError(f"no Dask scheduler answers at {scheduler}; start one with 'dask scheduler'") from error
        else:
            stack.enter_context(_script_left_alone())
            cluster = stack.enter_context(_slurm(workers) if scheduler else _local(workers))
            client = distributed.Client(cluster, set_as_default=False)
        yield stack.enter_context(client)


@contextlib.contextmanager
def _script_left_alone() -> Iterator[None]:
    """Worker processes would run the script again that this process runs, unless it guards against that."""
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _local(workers: int) -> distributed.LocalCluster:
    """Worker processes on this machine that leave Ctrl-C to this one, which ends them."""
    import distributed

    main = threading.current_thread() is threading.main_thread()
    told: list[int] = []
    resource_tracker.ensure_running()  # its start would unblock what is blocked next
    # blocked, not ignored: child processes inherit either, and this one still wants to know
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = signal.signal(signal.SIGINT, lambda number, _: told.append(number)) if main else None
    try:
        starts = 0
        while True:
            try:
                return distributed.LocalCluster(
                    n_workers=workers, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                )  # fmt: skip
            except RuntimeError as error:  # a worker that dies while it starts takes the whole cluster with it
                starts += 1
                if starts == _STARTS:
                    raise UserError(
                        f"worker processes die while they start ({error}); look for a lack of memory"
                    ) from error
    finally:
        if main:
            signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if told:
            raise KeyboardInterrupt


def _slurm(workers: int) -> Any:
    """Jobs of one worker; queue, account and the like come from dask-jobqueue's own file of settings."""
    import dask

    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise UserError("SCHEDULER=slurm needs dask-jobqueue: pip install dask-jobqueue") from error
    if shutil.which("sbatch") is None:
        raise UserError("SCHEDULER=slurm needs SLURM's commands, and there is no sbatch on this machine")
    given = dask.config.get("jobqueue.slurm", {})
    job: dict[str, Any] = {"cores": given.get("cores") or 1, "memory": given.get("memory") or "8GB"}
    if given.get("walltime") in (None, _SHORT_WALLTIME):
        job["walltime"] = "24:00:00"
    cluster: Any = SLURMCluster
    cluster = cluster(processes=1, **job)
    cluster.adapt(minimum=workers, maximum=workers)  # jobs that end are submitted again
    return cluster


def unordered(
    client: distributed.Client, function: Callable[[_Task], _Result], tasks: Iterable[_Task], expected: int
) -> Iterator[_Result]:
    """Results as they come, with two tasks per worker on the scheduler: memory stays bounded for any number of tasks.

    Workers may come and go; `expected` are counted before they have come. Raises UserError if the scheduler is lost,
    or one task ends several workers.
    """
    import distributed

    lost = (distributed.client.FutureCancelledError, distributed.comm.CommClosedError, TimeoutError, OSError)
    if not client.scheduler_info(n_workers=-1)["workers"]:
        print("waiting for workers", flush=True)
        client.wait_for_workers(1)
    waiting = iter(tasks)
    running = distributed.as_completed(loop=client.loop)
    task_of: dict[str, _Task] = {}
    try:
        while True:
            wanted = 2 * max(expected, len(client.scheduler_info(n_workers=-1)["workers"]))
            while len(task_of) < wanted and (task := next(waiting, None)) is not None:
                # again elsewhere where an ffmpeg was stopped with its worker
                future = client.submit(function, task, pure=False, retries=2)
                task_of[future.key] = task
                running.add(future)
            if not task_of:
                return
            future = next(running)
            try:
                yield future.result()
            except distributed.KilledWorker as error:
                raise UserError(
                    f"{error.allowed_failures + 1} workers died on {task_of[future.key]}; look for a lack of memory, "
                    "then run the same command again: finished shards are kept"
                ) from error
            del task_of[future.key]
            future.release()
    except lost as error:
        raise UserError(
            "the Dask scheduler was lost; run the same command again (finished shards are kept), with SCHEDULER set to "
            f"one that runs ({type(error).__name__})"
        ) from error


def unseen(path: Path, host: str, disk: str) -> str:
    """What to do where a file is there and a worker's machine, `host`, does not see it; `disk` is what it lies on."""
    return (
        f"{path} is there, and {host} does not see it; mount {disk} on every machine, then run the same command again"
    )
