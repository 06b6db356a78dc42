"""Commands as subprocesses in parallel: one per GPU, or one single-threaded per core."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

import torch

from gdt.common.errors import UserError
from gdt.common.machine import cores, killed_with_parent
from gdt.common.wording import plural

T = TypeVar("T")


class StoppedError(Exception):
    """A command was stopped because this process was interrupted."""


def job_limit(jobs: int) -> int:
    """Number of parallel jobs; 0 gives one per GPU, or one per core. Raises UserError if there are fewer GPUs."""
    gpus = len(visible_gpus())
    if gpus and jobs > gpus:
        raise UserError(f"--jobs is {jobs}, more than the {plural(gpus, 'visible GPU')}; set it to {gpus} or less")
    return jobs or gpus or cores()


def run_parallel(
    jobs: Sequence[T], run: Callable[[T, str, threading.Event], None], limit: int, watch: Callable[[], None]
) -> Iterator[T]:
    """Call `run(job, gpu, stop)` for every job, `limit` in parallel, and yield each finished job.

    `watch` is called every second. After a UserError, which is printed immediately, no more jobs start; it is raised
    when the running ones have ended. Any other error and an interrupt set `stop`, which jobs must obey soon.
    """
    stop = threading.Event()
    gpus: queue.Queue[str] = queue.Queue()
    for gpu in visible_gpus() or [""] * limit:
        gpus.put(gpu)

    def run_on_free_gpu(job: T) -> T:
        gpu = gpus.get()
        try:
            run(job, gpu, stop)
        except UserError as error:
            print(f"\n{error}; waiting for the other runs", file=sys.stderr, flush=True)
            raise
        finally:
            gpus.put(gpu)
        return job

    with ThreadPoolExecutor(limit) as pool:
        waiting = [pool.submit(run_on_free_gpu, job) for job in jobs]
        try:
            while waiting:
                for future in [future for future in waiting if future.done()]:
                    waiting.remove(future)
                    yield future.result()
                watch()
                wait(waiting, 1.0, FIRST_COMPLETED)
        except UserError:
            raise
        except BaseException:
            stop.set()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def visible_gpus() -> list[str]:
    """GPUs of this process, in the notation of CUDA_VISIBLE_DEVICES."""
    if not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(gpu) for gpu in range(torch.cuda.device_count())]


def run_command(command: Sequence[str], log: Path, gpu: str, name: str, stop: threading.Event) -> None:
    """Run `gdt command` on one GPU, or with one thread, until it ends or `stop` is set; killed when this process is.

    Raises UserError with `name` and the last line of the log if it fails, and StoppedError if it was stopped.
    """
    if stop.is_set():
        raise StoppedError
    limits = {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {"OMP_NUM_THREADS": "1"}
    words = [*killed_with_parent(), sys.executable, "-P", "-m", "gdt", *command]
    with log.open("a") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=os.environ | limits)
    while process.poll() is None and not stop.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    process.terminate()  # has no effect if it has ended
    status = process.wait()
    if status:
        if stop.wait(1.0):  # Ctrl-C reaches the command and this process, in any order
            raise StoppedError
        lines = log.read_text(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"status {status}"
        raise UserError(f"{name} failed ({reason}); see {log}")
