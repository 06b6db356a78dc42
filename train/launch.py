"""gdt pretrain --gpus N {paper,tiny}: pretrain in N processes on this machine, one per GPU.

They are what `torchrun --standalone --nproc-per-node N -m gdt pretrain` starts. Here they alone speak, what is wrong
with the command is said before any of them starts, a checkpoint is waited for however long it takes, and the exit
status is theirs. Started once on each of several machines, by srun or mpirun, it starts the ranks of its machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from gdt.common.errors import UserError
from gdt.common.supervise import PARENT_PID, WATCHED, is_ctrl_c
from gdt.train.settings import Pretrain

_COUNTS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
"""Rank and number of ranks, over all and on this machine: of Open MPI, of MPICH and Intel MPI, of srun.

mpirun comes first, as in a job of SLURM its ranks are children of daemons that srun started. Of srun, the step's number
of tasks counts: the job's, SLURM_NTASKS, is told to job scripts and shells, too, each of which is one process.
"""
_TERMINAL = "SLURM_PTY_PORT"
"""What srun sets with --pty: a person types at one task, and nobody at the others."""
_PORTS = range(10_000, 30_000)
"""Above those of services, below those that systems hand out."""


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
    sys.exit(run([sys.executable, "-P", "-m", "gdt", "pretrain", *arguments], number, machine=machine))


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
def silence_other_ranks() -> Iterator[None]:
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


def ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for a process of mpirun or srun.

    Empty where they are there already, and for a process that is alone. Without the last two where the launcher does
    not tell it: see `require_meeting`.
    """
    names = next((names for names in _COUNTS if all(name in environment for name in names)), None)
    if "RANK" in environment or names is None or int(environment[names[1]]) < 2:
        return {}
    srun = names == _COUNTS[-1]
    if srun and _TERMINAL in environment:
        return {}
    rank, world, local, here = (environment[name] for name in names)
    if srun:
        here = _counts(here)[int(environment.get("SLURM_NODEID", "0"))]
    found = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": here}
    job = environment.get("SLURM_JOB_ID", "")
    nodes = environment.get("SLURM_STEP_NODELIST" if srun else "SLURM_JOB_NODELIST", "")
    run = f"{job}.{environment.get('SLURM_STEP_ID', '')}" if srun else environment.get("PMIX_NAMESPACE", job)
    address = "127.0.0.1" if here == world else first_host(nodes)
    port = str(_PORTS[zlib.crc32(run.encode()) % len(_PORTS)]) if run else ""  # the same for all ranks of a run
    meeting = [("MASTER_ADDR", address), ("MASTER_PORT", port)]
    return found | {name: value for name, other in meeting if (value := environment.get(name, other))}


def require_meeting(environment: Mapping[str, str]) -> None:
    """Raise UserError where several processes are not told at which one they meet."""
    world = int(environment.get("WORLD_SIZE", "1"))
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if world > 1 and lacking:
        raise UserError(
            f"{world} processes were started and not told where they meet (no {' and no '.join(lacking)}); set "
            "MASTER_ADDR to the machine of rank 0 and MASTER_PORT to a free port there, for all of them"
        )


def sees_one_gpu(environment: Mapping[str, str]) -> bool:
    """Whether this is one of several tasks of srun on a machine, each of which sees its own GPU and no other."""
    here, given = environment.get("LOCAL_WORLD_SIZE", "1"), environment.get("SLURM_GPUS_ON_NODE", "")
    seen = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return len(seen) == 1 and given.isdecimal() and int(given) >= int(here) > 1


def first_host(nodes: str) -> str:
    """The first machine of SLURM's list of them, as `scontrol show hostnames` has it: of `a[03-05,9]x,b`, a03x.

    Containers on a cluster have no scontrol.
    """
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)  # up to the first comma that is not in brackets
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", found[0]) if found else ""


def _counts(tasks: str) -> list[str]:
    """Tasks of each machine, as SLURM writes them: of `8(x2),4`, 8, 8 and 4."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)
    return [count for count, times in parts for _ in range(int(times or 1))]
