"""Runs in processes of their own, several at a time: one per GPU, or one single-threaded one per core."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import torch

from gdt.common.errors import UserError
from gdt.common.supervise import PARENT_PID

T = TypeVar("T")


def job_limit(jobs: int) -> int:
    """How many runs to have at a time: so many, or for 0 as many as have a GPU, or a core, each.

    Raises UserError where fewer GPUs are there.
    """
    gpus = torch.cuda.device_count()
    if gpus and jobs > gpus:
        raise UserError(f"--jobs is {jobs} but there are {gpus} GPUs")
    return jobs or gpus or len(os.sched_getaffinity(0))


def run_parallel(
    jobs: Sequence[T], run: Callable[[T, str], None], at_once: int, watch: Callable[[], None] = lambda: None,
    end: Callable[[], None] = lambda: None,
) -> Iterator[T]:  # fmt: skip
    """`run(job, gpu)` for every job; yields each as it is done. `watch` is called every second meanwhile.

    `end` is called last, also where an interrupt comes first, before the jobs that still run are waited for.

    What a job raises is printed at once and raised when those that run have ended; none of the others begins.
    """
    gpus: queue.Queue[str] = queue.Queue()
    for gpu in visible_gpus() or [""] * at_once:
        gpus.put(gpu)

    def place(job: T) -> T:
        gpu = gpus.get()
        try:
            run(job, gpu)
        except UserError as error:
            print(f"\n{error}; waiting for the other runs", file=sys.stderr, flush=True)
            raise
        finally:
            gpus.put(gpu)
        return job

    with ThreadPoolExecutor(at_once) as pool:
        waiting = [pool.submit(place, job) for job in jobs]
        try:
            while waiting:
                for future in [future for future in waiting if future.done()]:
                    waiting.remove(future)
                    yield future.result()
                watch()
                wait(waiting, 1.0, FIRST_COMPLETED)
        finally:
            end()
            pool.shutdown(wait=False, cancel_futures=True)


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(gpu) for gpu in range(torch.cuda.device_count())]


def run_command(command: Sequence[str], log: Path, gpu: str, what: str) -> None:
    """`gdt command` with one GPU, or one thread. Raises UserError, naming `what` and its log, where it fails."""
    if status := start(command, log, gpu).wait():
        raise command_error(what, log, status)


def start(command: Sequence[str], log: Path, gpu: str) -> subprocess.Popen[bytes]:
    """`gdt command` with one GPU, or one thread; it ends where this process does, or the thread that calls."""
    environment = os.environ | {PARENT_PID: str(os.getpid())}
    if gpu:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    else:
        environment["OMP_NUM_THREADS"] = "1"
    with log.open("a") as file:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "gdt", *command], stdout=file, stderr=subprocess.STDOUT, env=environment
        )


def command_error(what: str, log: Path, status: int) -> UserError:
    """What to raise where a command that was started has ended so: its last line, and where its log is."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return UserError(f"{what} failed ({lines[-1] if lines else f'status {status}'}); see {log}")


def to_arguments(settings: Any, base: Any) -> list[str]:
    """What to type so that a command with the settings `base` has these: the options whose values are others."""
    words = []
    for name, value in vars(settings).items():
        if value != getattr(base, name):
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else [value])]
    return words
