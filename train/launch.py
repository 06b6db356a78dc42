"""python -m train.launch N {paper,tiny}: pretrain in N processes on this machine, one per GPU.

They are what `torchrun --standalone --nproc-per-node N -m train` starts. Here they alone speak, and what is wrong with
the command is said before any of them starts; the exit status is theirs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from pipeline.errors import UserError, exit_with_message, quiet_until_ready
from pipeline.supervise import DIES_WITH, WATCHED, from_terminal
from train.local import require_gpus


def main() -> None:
    exit_with_message(_launch)


def _launch() -> None:
    from train.command import settings_of

    number, arguments = next(iter(sys.argv[1:]), ""), sys.argv[2:]
    if not number.isdecimal() or int(number) < 1:
        raise UserError(
            f"the number of processes is '{number}'; it must be 1 or more, as in python -m train.launch 2 tiny"
        )
    settings = settings_of(arguments)
    if settings is not None:
        require_gpus(int(number), settings.device)
        sys.exit(run([sys.executable, "-m", "train", *arguments], int(number)))


def run(command: Sequence[str], world: int, patience: float = 10.0) -> int:
    """Start a command in so many ranks, pass signals on to them, and wait; the status of the first that failed.

    `patience` is in seconds: the others know of its end where they have met, and are ended where they have not.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    port = _free_port()
    ranks = [_start(command, rank, world, port, before) for rank in range(world)]
    status, failed, ending = 0, 0.0, [signal.SIGTERM, signal.SIGKILL]
    while running := [rank for rank in ranks if rank.poll() is None]:
        told = signal.sigtimedwait(WATCHED, 1.0)
        if told is not None and told.si_signo != signal.SIGCHLD and not from_terminal(told):
            for rank in running:
                rank.send_signal(told.si_signo)
        if not status:
            status = next((rank.returncode for rank in ranks if rank.poll()), 0)
            failed = time.monotonic()
        elif time.monotonic() > failed + patience:
            for rank in running:
                rank.send_signal(ending[0])
            ending, failed = ending[-1:], time.monotonic()
    status = status or next((rank.returncode for rank in ranks if rank.returncode), 0)
    return status if status >= 0 else 128 - status


def _start(
    command: Sequence[str], rank: int, world: int, port: int, mask: set[signal.Signals | int]
) -> subprocess.Popen[bytes]:
    environment = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, DIES_WITH: os.getpid(),
    }  # fmt: skip
    return subprocess.Popen(
        command,
        # with all cores for each, they would be in each other's way
        env={"OMP_NUM_THREADS": "1"} | os.environ | {name: str(value) for name, value in environment.items()},
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


if __name__ == "__main__":
    quiet_until_ready()
    main()
