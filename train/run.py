"""Around the loop: where a run takes place, when it is told to stop, and what it writes down."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from gdt.common.errors import UserError, first_line
from gdt.common.files import write_text
from gdt.train.figures import Report
from gdt.train.launchers import has_own_gpu
from gdt.train.local import require_gpus, told_once
from gdt.train.settings import METRICS, PROBES, SETTINGS, Pretrain, to_json


def precision(settings: Pretrain, device: torch.device) -> Literal["float32", "bfloat16", "float64"]:
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
        torch.backends.cudnn.benchmark = True  # shapes stay the same from step to step
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

    def __init__(
        self, settings: Pretrain, first: int, steps: int, rate: Callable[[int], float], rank: int,
        flops: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        """Of steps first..steps-1; `rate` gives the learning rate of a step, `flops` the FLOPs of one on each GPU, and
        those per second that its maker states.
        """
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
        self._rate, self._flops = rate, flops
        self._wandb = _weights_and_biases(settings) if settings.wandb else None

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        if self._active:
            self._bar.close()
            self._board.close()
            self._file.close()
            if self._wandb:
                self._wandb.finish()

    def say(self, text: str, file: TextIO | None = None) -> None:
        """A line above the progress bar, on every rank."""
        tqdm.write(text, file=file or sys.stderr)

    def probed(self, done: int, figures: dict[str, float]) -> None:
        """What a probe after `done` steps has found, in percent."""
        if not self._active:
            return
        with self._probes.open("a") as file:
            file.write(json.dumps({"step": done} | figures) + "\n")
        for name, value in figures.items():
            # at the step before, as one at the first step of a run that goes on would be purged with those after it
            self._board.add_scalar(f"probe/{name}", value, max(done - 1, 0))
        if self._wandb:
            self._wandb.log({f"probe/{name}": value for name, value in figures.items()}, step=max(done - 1, 0))
        name, value = next(iter(figures.items()))
        self._probed = f", {name} {value:.1f} %"

    def stepped(self, report: Report, clips: int) -> None:
        """A step is done, over `clips` video clips on all ranks."""
        if not self._active:
            return
        speed, waiting = clips / report.seconds, report.waiting / report.seconds
        row = {
            "step": report.step, "loss": report.loss, "accuracy": report.accuracy, "rate": self._rate(report.step),
            "gradient_norm": report.gradient_norm, "clips_per_second": speed, "waiting": waiting,
            "memory_gib": report.memory,
        }  # fmt: skip
        if self._flops:
            row["mfu"] = self._flops[0] / report.seconds / self._flops[1]
        self._file.write(json.dumps(row) + "\n")
        figures = {name: value for name, value in row.items() if name != "step"}
        for name, value in figures.items():
            self._board.add_scalar(name, value, report.step)
        if self._wandb:
            self._wandb.log(figures, step=report.step)
        mfu = f", MFU {row['mfu']:.0%}" if "mfu" in row else ""
        self._bar.set_postfix_str(
            f"loss {report.loss:.3f}, {report.accuracy:.0%} right, {speed:.0f} clips/s, {waiting:.0%} waiting, "
            f"{report.memory:.1f} GiB{mfu}{self._probed}",
            False,
        )
        self._bar.update()


def _weights_and_biases(settings: Pretrain) -> Any:
    """A run of Weights & Biases, which goes on where there is one of this folder."""
    try:
        import wandb  # type: ignore[import-not-found]
    except ImportError as error:
        raise UserError("--wandb needs a package that is not installed: pip install wandb; or leave it out") from error
    folder = settings.run_folder.resolve()
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return wandb.init(
        project=settings.wandb, id=name, name=folder.name, dir=str(folder), resume="allow",
        config=json.loads(to_json(settings)),
    )  # fmt: skip


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

    def _remember(self, number: int, frame: Any) -> None:
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number


class Trace:
    """While entered, writes a trace of some steps into the run's folder, which chrome://tracing and Perfetto show."""

    SKIPPED = 5
    """Steps before it, in which caches are filled and code is compiled."""
    NAME = "trace.json"

    def __init__(self, settings: Pretrain, rank: int) -> None:
        self._profile: torch.profiler.profile | None = None
        if settings.profile and rank == 0:
            path = settings.run_folder / self.NAME
            self._profile = torch.profiler.profile(
                schedule=torch.profiler.schedule(wait=self.SKIPPED, warmup=1, active=settings.profile, repeat=1),
                on_trace_ready=lambda profile: profile.export_chrome_trace(str(path)),
            )

    def __enter__(self) -> Trace:
        if self._profile:
            self._profile.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._profile:
            self._profile.stop()

    def step(self) -> None:
        """A step is done."""
        if self._profile:
            self._profile.step()
