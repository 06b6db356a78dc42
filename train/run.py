"""Around the loop: where a run takes place, when it is told to stop, and what it writes down."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from pipeline.errors import UserError, first_line
from pipeline.files import write_text
from train.launchers import has_own_gpu
from train.local import require_gpus, told_once
from train.settings import METRICS, PROBES, SETTINGS, Pretrain, to_json


def precision(settings: Pretrain, device: torch.device) -> Literal["float32", "bfloat16"]:
    if settings.precision == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    return settings.precision


def place(settings: Pretrain) -> tuple[int, int, torch.device]:
    """Rank, number of ranks, device; joins the process group where a launcher has started several ranks."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU; use --device cpu, or check the driver with nvidia-smi")
    cuda = torch.cuda.is_available() and settings.device != "cpu"
    rank, world, local = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    own_gpu = has_own_gpu(os.environ)
    if world > 1 and not own_gpu:
        with told_once():
            require_gpus(int(os.environ.get("LOCAL_WORLD_SIZE", local + 1)), settings.device)
    device = torch.device("cuda", 0 if own_gpu else local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if world > 1 and not dist.is_initialized():
        try:
            dist.init_process_group("nccl" if cuda else "gloo")
        except dist.DistError as error:
            where = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
            raise UserError(
                f"rank {rank} does not meet the others at {where} ({first_line(error)}); see that all {world} were "
                "started and can reach it, or set MASTER_PORT to another port"
            ) from error
    return rank, world, device


def what_next(settings: Pretrain, path: Path) -> str:
    """Where the trained model is, and the commands that one wants then."""
    runs = settings.run_folder if settings.out else settings.run_folder.parent
    return (
        f"the trained model is in {path}\n"
        f"  make eval CKPT={shlex.quote(str(path))}\n"
        f"  {_typed('tensorboard')} --logdir {shlex.quote(str(runs))}"
    )


def _typed(program: str) -> str:
    """How to call a program that is installed beside this Python."""
    beside = Path(sys.executable).with_name(program)
    if not beside.is_file() or shutil.which(program) == str(beside):
        return program
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)


def leave_without_teardown(status: int = 0) -> NoReturn:
    """End a rank whose work is on disk.

    Threads of torch's communication that still run while the interpreter is torn down now and then abort the process
    ("terminate called without an active exception"), and torchrun would call a finished run a failed one.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Log:
    """Progress bar, TensorBoard and metrics.jsonl of one run, on the first rank."""

    def __init__(self, settings: Pretrain, first: int, steps: int, rate: Callable[[int], float], rank: int) -> None:
        """Of steps first..steps-1; `rate` gives the learning rate of a step."""
        self._active = rank == 0
        if not self._active:
            return
        folder = settings.run_folder
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / SETTINGS, json.dumps(json.loads(to_json(settings)), indent=2) + "\n")
        path = folder / METRICS
        _keep_until(path, first - 1)
        self._file = path.open("a", buffering=1)
        self._probes = folder / PROBES
        if self._probes.is_file():
            _keep_until(self._probes, first)
        self._probed = ""
        self._board = SummaryWriter(str(folder), purge_step=first)
        self._bar = tqdm(
            total=steps, initial=first, unit="step", desc=f"pretrain {settings.name}",
            mininterval=0.5 if sys.stderr.isatty() else 30.0,
        )  # fmt: skip
        self._start = self._ready = time.perf_counter()
        self._rate = rate

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        if self._active:
            self._bar.close()
            self._board.close()
            self._file.close()

    def say(self, text: str, file: TextIO | None = None) -> None:
        """A line above the progress bar, on every rank."""
        tqdm.write(text, file=file or sys.stderr)

    def next(self) -> None:
        """What comes now is waiting for the next batch."""
        self._start = time.perf_counter()

    def loaded(self) -> None:
        """The batch has arrived; what comes now is computing."""
        self._ready = time.perf_counter()

    def probed(self, done: int, figures: dict[str, float]) -> None:
        """What a probe after `done` steps has found, in percent."""
        if not self._active:
            return
        with self._probes.open("a") as file:
            file.write(json.dumps({"step": done} | figures) + "\n")
        for name, value in figures.items():
            # at the step before, as one at the first step of a run that goes on would be purged with those after it
            self._board.add_scalar(f"probe/{name}", value, max(done - 1, 0))
        name, value = next(iter(figures.items()))
        self._probed = f", {name} {value:.1f} %"

    def stepped(self, step: int, value: float, clips: int) -> None:
        """The step is done, over `clips` video clips on all ranks."""
        if not self._active:
            return
        now = time.perf_counter()
        waiting, total = self._ready - self._start, now - self._start
        row = {
            "step": step, "loss": value, "rate": self._rate(step), "clips_per_second": clips / total,
            "waiting": waiting / total,
        }  # fmt: skip
        self._file.write(json.dumps(row) + "\n")
        for name in ("loss", "rate", "clips_per_second", "waiting"):
            self._board.add_scalar(name, row[name], step)
        self._bar.set_postfix_str(
            f"loss {value:.3f}, {clips / total:.0f} clips/s, {waiting / total:.0%} waiting{self._probed}", False
        )
        self._bar.update()


def _keep_until(path: Path, last: int) -> None:
    """Leave the lines of a log up to a step; those after the checkpoint's are done again.

    A line that was cut off by a crash is one of them.
    """
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    write_text(path, "".join(line + "\n" for line in lines if _step_of(line) <= last))


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return np.inf


class StopSignal:
    """While entered, remembers SIGTERM, SIGUSR1 or Ctrl-C until the step is done; Ctrl-C twice stops at once."""

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # no other can say what becomes of signals
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self, device: torch.device) -> int:
        """The signal that any rank got, so that all stop after the same step; 0 for none."""
        if not dist.is_initialized():
            return self.signal
        signalled = torch.tensor(self.signal, device=device)
        dist.all_reduce(signalled, dist.ReduceOp.MAX)
        return int(signalled)

    def _remember(self, number: int, frame: Any) -> None:
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
