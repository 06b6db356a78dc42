"""gdt pretrain --gpus N {paper,tiny}: pretrain in N processes on this machine, one per GPU.

They are what `torchrun --standalone --nproc-per-node N -m gdt pretrain` starts. Here they alone speak, what is wrong
with the command is said before any of them starts, a checkpoint is waited for however long it takes, and the exit
status is theirs. Started once on each of several machines, by srun or mpirun, it starts the ranks of its machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from gdt.common.errors import UserError
from gdt.common.supervise import PARENT_PID, WATCHED, is_ctrl_c
from gdt.train.launchers import ranks, require_meeting
from gdt.train.settings import Pretrain


def launch(number: int, settings: Pretrain, arguments: Sequence[str]) -> None:
    """Start the processes, and exit with their status; `settings` are those of the arguments.

    Raises UserError where the GPUs will not do.
    """
    require_gpus(number, settings.device)
    machine = ranks(os.environ)
    require_meeting(machine)
    if machine and int(machine["LOCAL_WORLD_SIZE"]) > 1:
        raise UserError(
            f"this command was started {machine['LOCAL_WORLD_SIZE']} times on one machine, to start {number} processes "
            "each time; start it once on each (srun --ntasks-per-node=1), or gdt pretrain once per GPU, without --gpus"
        )
    sys.exit(run([sys.executable, "-m", "gdt", "pretrain", *arguments], number, machine=machine))


def run(command: Sequence[str], number: int, patience: float = 10.0, machine: Mapping[str, str] | None = None) -> int:
    """Start a command in so many ranks, pass signals on to them, and wait; the status of the first that failed.

    `patience` is in seconds: the others know of its end where they have met, and are ended where they have not.
    `machine` says which one this is of several that do so: RANK, WORLD_SIZE, and where all ranks meet.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    started = [
        subprocess.Popen(
            command,
            # with all cores for each, they would be in each other's way
            env={"OMP_NUM_THREADS": "1"} | os.environ | told | {PARENT_PID: str(os.getpid())},
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
        for told in _environments(number, machine)
    ]
    status, failed, ending = 0, 0.0, [signal.SIGTERM, signal.SIGKILL]
    while running := [rank for rank in started if rank.poll() is None]:
        told = signal.sigtimedwait(WATCHED, 1.0)
        if told is not None and told.si_signo != signal.SIGCHLD and not is_ctrl_c(told):
            for rank in running:
                rank.send_signal(told.si_signo)
        if not status:
            status = next((rank.returncode for rank in started if rank.poll()), 0)
            failed = time.monotonic()
        elif time.monotonic() > failed + patience:
            for rank in running:
                rank.send_signal(ending[0])
            ending, failed = ending[-1:], time.monotonic()
    status = status or next((rank.returncode for rank in started if rank.returncode), 0)
    return status if status >= 0 else 128 - status


def _environments(number: int, machine: Mapping[str, str] | None) -> list[dict[str, str]]:
    """What the ranks of this machine are told."""
    if not machine:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        machine = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    first, world = (int(machine[name]) * number for name in ("RANK", "WORLD_SIZE"))
    alike = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(number)}
    alike |= {name: machine[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    return [{"RANK": str(first + local), "LOCAL_RANK": str(local)} | alike for local in range(number)]


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Around what ranks with one command line do alike, before they know of each other: but for the first, in silence.

    Launchers that start ranks alike say how many of them there are on this machine.
    """
    if "LOCAL_WORLD_SIZE" not in os.environ or os.environ.get("LOCAL_RANK", "0") == "0":
        yield
        return
    with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        try:
            yield
        except UserError as error:
            raise SystemExit(2) from error


def require_gpus(ranks: int, device: Literal["auto", "cpu", "cuda"]) -> None:
    """Raise UserError where this machine has no GPU for each of several ranks, unless they are meant for the CPU."""
    if ranks == 1 or device == "cpu":
        return
    import torch

    found = torch.cuda.device_count()
    if ranks <= found:
        return
    instead = "leave GPUS out" if found < 2 else f"set GPUS to {found} or less"
    there = f"only {found} GPU{'s' if found > 1 else ''} here" if found else "no GPU here"
    raise UserError(
        f"{ranks} processes were asked for and torch finds {there}; {instead}, or pass --device cpu "
        f'(ARGS="--device cpu"), which trains in {ranks} processes without a GPU'
    )
