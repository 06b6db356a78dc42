"""gdt pretrain --gpus N: N ranks on this machine, one per GPU; and ranks that srun or mpirun start.

Like `torchrun --standalone --nproc-per-node N -m gdt pretrain`, but mistakes in the command are reported once, before
the ranks start; after a signal, ranks have time to write a checkpoint; and the exit status is that of the ranks. If
srun or mpirun runs this command once per machine, it starts the ranks of that machine.
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
from gdt.common.gpu import require_no_gpu
from gdt.common.supervise import PARENT_PID, WATCHED, is_ctrl_c
from gdt.train.settings import Pretrain

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
"""Rank, world size, local rank and local world size of Open MPI, of MPICH and Intel MPI, and of srun.

mpirun comes first, since in a SLURM job its ranks are children of daemons that srun started. The world size of srun is
that of the job step: SLURM_NTASKS is also set in job scripts and shells, which are one process.
"""
_SRUN_PTY = "SLURM_PTY_PORT"
"""Set by srun --pty, which starts a shell, not a rank."""
_PORTS = range(10_000, 30_000)
"""Above the ports of services, below ephemeral ports."""


def launch(number: int, settings: Pretrain, arguments: Sequence[str]) -> None:
    """Start `number` ranks with `arguments`, from which `settings` were parsed, and exit with their status.

    Raises UserError if there are too few GPUs.
    """
    require_gpus(number, settings.device)
    machine = rank_variables(os.environ)
    require_master_address(machine)
    if machine and int(machine["LOCAL_WORLD_SIZE"]) > 1:
        raise UserError(
            f"this command was started {machine['LOCAL_WORLD_SIZE']} times on one machine, and each would start "
            f"{number} ranks; start it once per machine (srun --ntasks-per-node=1), or leave out --gpus"
        )
    sys.exit(run_ranks([sys.executable, "-P", "-m", "gdt", "pretrain", *arguments], number, machine=machine))


def run_ranks(
    command: Sequence[str], number: int, patience: float = 10.0, machine: Mapping[str, str] | None = None
) -> int:
    """Run a command as `number` ranks, forwarding signals; returns the status of the first that failed.

    After a failure, the other ranks are terminated after `patience` seconds, and killed after as many more. `machine`:
    RANK and WORLD_SIZE of this machine among several, MASTER_ADDR and MASTER_PORT.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    started = [
        subprocess.Popen(
            command,
            # ranks that use all cores slow each other down
            env={"OMP_NUM_THREADS": "1"} | os.environ | rank | {PARENT_PID: str(os.getpid())},
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
        for rank in _rank_environments(number, machine)
    ]
    status, failed, ending = 0, 0.0, [signal.SIGTERM, signal.SIGKILL]
    while running := [process for process in started if process.poll() is None]:
        received = signal.sigtimedwait(WATCHED, 1.0)
        if received is not None and received.si_signo != signal.SIGCHLD and not is_ctrl_c(received):
            for process in running:
                process.send_signal(received.si_signo)
        if not status:
            status = next((process.returncode for process in started if process.poll()), 0)
            failed = time.monotonic()
        elif time.monotonic() > failed + patience:
            for process in running:
                process.send_signal(ending[0])
            ending, failed = ending[-1:], time.monotonic()
    status = status or next((process.returncode for process in started if process.returncode), 0)
    return status if status >= 0 else 128 - status


def _rank_environments(number: int, machine: Mapping[str, str] | None) -> list[dict[str, str]]:
    """Environment variables of the ranks of this machine."""
    if not machine:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        machine = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    first, world = (int(machine[name]) * number for name in ("RANK", "WORLD_SIZE"))
    shared = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(number)}
    shared |= {name: machine[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    return [{"RANK": str(first + local), "LOCAL_RANK": str(local)} | shared for local in range(number)]


@contextlib.contextmanager
def silence_other_ranks() -> Iterator[None]:
    """Context in which only local rank 0 prints; for messages before the ranks are connected."""
    if "LOCAL_WORLD_SIZE" not in os.environ or os.environ.get("LOCAL_RANK", "0") == "0":
        yield
        return
    with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        try:
            yield
        except UserError as error:
            raise SystemExit(2) from error


def require_gpus(ranks: int, device: Literal["auto", "cpu", "cuda"]) -> None:
    """Raise UserError if this machine has fewer GPUs than ranks, or a GPU that torch cannot use."""
    if device == "cpu":
        return
    import torch

    # device_count alone also counts GPUs that an old driver makes unusable
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if ranks <= found:
        return
    if not found:
        require_no_gpu()
    if ranks == 1:
        if device == "cuda":
            raise UserError("--device cuda: torch finds no GPU; use --device cpu, or check the driver with nvidia-smi")
        return
    there = f"only {found} GPU{'s' if found > 1 else ''}" if found else "no GPU"
    given, instead = f"--gpus is {ranks}", "leave --gpus out" if found < 2 else f"set --gpus to {found} or less"
    if "LOCAL_WORLD_SIZE" in os.environ:
        given, instead = f"there are {ranks} ranks on this machine", "start as many as it has GPUs"
    raise UserError(f"{given}, but torch finds {there}; {instead}, or train on the CPU with --device cpu")


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for a process of mpirun or srun.

    Empty for a single process, or if they are set already. Without the last two if the launcher does not tell them; see
    `require_master_address`.
    """
    names = next((names for names in _LAUNCHERS if all(name in environment for name in names)), None)
    if "RANK" in environment or names is None or int(environment[names[1]]) < 2:
        return {}
    srun = names == _LAUNCHERS[-1]
    if srun and _SRUN_PTY in environment:
        return {}
    rank, world, local, here = (environment[name] for name in names)
    if srun:
        here = _tasks_per_machine(here)[int(environment.get("SLURM_NODEID", "0"))]
    found = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": here}
    job = environment.get("SLURM_JOB_ID", "")
    nodes = environment.get("SLURM_STEP_NODELIST" if srun else "SLURM_JOB_NODELIST", "")
    run = f"{job}.{environment.get('SLURM_STEP_ID', '')}" if srun else environment.get("PMIX_NAMESPACE", job)
    address = "127.0.0.1" if here == world else first_host(nodes)
    port = str(_PORTS[zlib.crc32(run.encode()) % len(_PORTS)]) if run else ""  # equal for all ranks of a run
    meeting = [("MASTER_ADDR", address), ("MASTER_PORT", port)]
    return found | {name: value for name, other in meeting if (value := environment.get(name, other))}


def require_master_address(environment: Mapping[str, str]) -> None:
    """Raise UserError if several ranks lack MASTER_ADDR or MASTER_PORT."""
    world = int(environment.get("WORLD_SIZE", "1"))
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if world > 1 and lacking:
        raise UserError(
            f"{world} processes were started without {' and '.join(lacking)}; set MASTER_ADDR to the machine of rank 0 "
            "and MASTER_PORT to a free port there, for all of them"
        )


def sees_one_gpu(environment: Mapping[str, str]) -> bool:
    """Whether this is one of several srun tasks on a machine, each of which sees only its own GPU."""
    here, given = environment.get("LOCAL_WORLD_SIZE", "1"), environment.get("SLURM_GPUS_ON_NODE", "")
    seen = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return len(seen) == 1 and given.isdecimal() and int(given) >= int(here) > 1


def first_host(nodes: str) -> str:
    """First machine of a SLURM list: a03x for `a[03-05,9]x,b`. Does not call scontrol, which containers lack."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)  # up to the first comma outside brackets
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", found[0]) if found else ""


def _tasks_per_machine(tasks: str) -> list[str]:
    """Tasks per machine from a SLURM list: 8, 8, 4 for `8(x2),4`."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)
    return [count for count, times in parts for _ in range(int(times or 1))]
