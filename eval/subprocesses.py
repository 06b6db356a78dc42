"""Commands as subprocesses in parallel: one per GPU, or one single-threaded per core."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from gdt.common.errors import UserError
from gdt.common.machine import cores, killed_with_parent
from gdt.common.wording import plural


class Task(NamedTuple):
    """Commands that run one after the other."""

    name: str
    folder: Path
    """Folder of their output, log.txt."""
    commands: Sequence[Sequence[str]]
    """Arguments of `gdt`."""


class _Running:
    """A task that has been started."""

    def __init__(self, task: Task, gpu: str) -> None:
        self.task = task
        self.gpu = gpu
        self._log = task.folder / "log.txt"
        self._left = [*task.commands]
        task.folder.mkdir(parents=True, exist_ok=True)
        self._start()

    def _start(self) -> None:
        """Start the next command on the GPU, or with one thread; it is killed when this process is."""
        limits = {"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {"OMP_NUM_THREADS": "1"}
        words = [*killed_with_parent(), sys.executable, "-P", "-m", "gdt", *self._left.pop(0)]
        with self._log.open("a") as file:
            self.process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=os.environ | limits)

    def has_ended(self) -> bool:
        """Whether all commands have ended. Raises UserError with the last line of the log if one has failed."""
        status = self.process.poll()
        if status:
            time.sleep(1.0)  # Ctrl-C reaches the command and this process, in any order
            lines = self._log.read_text(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"status {status}"
            raise UserError(f"{self.task.name} failed ({reason}); see {self._log}")
        if status is None or not self._left:
            return status == 0
        self._start()
        return False


def job_limit(jobs: int) -> int:
    """Number of parallel jobs; 0 gives one per GPU, or one per core. Raises UserError if there are fewer GPUs."""
    gpus = len(visible_gpus())
    if gpus and jobs > gpus:
        raise UserError(f"--jobs is {jobs}, more than the {plural(gpus, 'visible GPU')}; set it to {gpus} or less")
    return jobs or gpus or cores()


def run_parallel(tasks: Sequence[Task], limit: int, watch: Callable[[], None]) -> Iterator[Task]:
    """Run tasks, `limit` in parallel, and yield each that has finished.

    `watch` is called every second. After a UserError, which is printed immediately, no more tasks start; it is raised
    when the running ones have ended. Any other error and an interrupt stop these.
    """
    free = visible_gpus()[:limit] or [""] * limit
    waiting = [*tasks]
    running: list[_Running] = []
    failed: list[UserError] = []
    try:
        while running or waiting:
            while waiting and free:
                running.append(_Running(waiting.pop(0), free.pop(0)))
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].process.wait(1.0)
            for each in [*running]:
                try:
                    if not each.has_ended():
                        continue
                    yield each.task
                except UserError as error:
                    print(f"\n{error}; waiting for the other runs", file=sys.stderr, flush=True)
                    failed.append(error)
                    waiting.clear()
                running.remove(each)
                free.append(each.gpu)
            watch()
    finally:
        for each in running:
            each.process.terminate()
        for each in running:
            each.process.wait()
    if failed:
        raise failed[0]


def visible_gpus() -> list[str]:
    """GPUs of this process, in the notation of CUDA_VISIBLE_DEVICES."""
    if not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(gpu) for gpu in range(torch.cuda.device_count())]
