"""What launchers tell the processes that they start, in torchrun's words: who they are and where they meet."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from gdt.common.errors import UserError

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


def has_own_gpu(environment: Mapping[str, str]) -> bool:
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
