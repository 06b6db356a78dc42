"""gdt pretrain --gpus N {paper,tiny}: pretrain in N processes on this machine, one per GPU.

They are what `torchrun --standalone --nproc-per-node N -m gdt pretrain` starts. Here they alone speak, and what is
wrong with the command is said before any of them starts; the exit status is theirs.

Started once on each of several machines, by srun or mpirun, it starts the ranks of its machine.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from gdt.common.errors import UserError
from gdt.common.supervise import DIES_WITH, WATCHED, from_terminal
from gdt.train.launchers import ranks, require_meeting
from gdt.train.local import require_gpus


def launch(number: int, arguments: Sequence[str]) -> None:
    """Start the processes, and exit with their status. Raises UserError where the settings or the GPUs will not do."""
    from gdt.train.command import settings_of

    settings = settings_of(arguments)
    if settings is not None:
        require_gpus(number, settings.device)
        sys.exit(run([sys.executable, "-m", "gdt", "pretrain", *arguments], number, machine=_machine(number)))


def _machine(number: int) -> dict[str, str]:
    """What this process is told as one of several machines; empty where there is only this one."""
    found = ranks(os.environ)
    require_meeting(found)
    if found and int(found["LOCAL_WORLD_SIZE"]) > 1:
        raise UserError(
            f"this command was started {found['LOCAL_WORLD_SIZE']} times on one machine, to start {number} processes "
            "each time; start it once on each (srun --ntasks-per-node=1), or gdt pretrain once per GPU, without --gpus"
        )
    return found


def run(command: Sequence[str], number: int, patience: float = 10.0, machine: Mapping[str, str] | None = None) -> int:
    """Start a command in so many ranks, pass signals on to them, and wait; the status of the first that failed.

    `patience` is in seconds: the others know of its end where they have met, and are ended where they have not.
    `machine` says which one this is of several that do so: RANK, WORLD_SIZE, and where all ranks meet.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    started = [_start(command, environment, before) for environment in _environments(number, machine or {})]
    status, failed, ending = 0, 0.0, [signal.SIGTERM, signal.SIGKILL]
    while running := [rank for rank in started if rank.poll() is None]:
        told = signal.sigtimedwait(WATCHED, 1.0)
        if told is not None and told.si_signo != signal.SIGCHLD and not from_terminal(told):
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


def _environments(number: int, machine: Mapping[str, str]) -> list[dict[str, object]]:
    """What the ranks of this machine are told."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    told = machine or alone
    first, world = (int(told[name]) * number for name in ("RANK", "WORLD_SIZE"))
    meeting = {name: told[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    return [
        {"RANK": first + local, "WORLD_SIZE": world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": number, **meeting}
        for local in range(number)
    ]


def _start(
    command: Sequence[str], environment: Mapping[str, object], mask: set[signal.Signals | int]
) -> subprocess.Popen[bytes]:
    told = {name: str(value) for name, value in environment.items()} | {DIES_WITH: str(os.getpid())}
    return subprocess.Popen(
        command,
        # with all cores for each, they would be in each other's way
        env={"OMP_NUM_THREADS": "1"} | os.environ | told,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
