"""gdt pretrain --nodes N --gpus N --scheduler slurm {paper,tiny}: pretrain on several machines, by SLURM.

The job has one task per machine, which starts the ranks there with --gpus. Tasks per GPU would depend on how a cluster
shares GPUs and cores among tasks: where each sees its own GPU alone, and one core. One task has all that the
job has of a machine, and the ranks are started, stopped and waited for as they are by GPUS= on one machine.

Some minutes before its time is up, SLURM sends SIGUSR1 to the tasks. The ranks stop after the step, with a checkpoint
and status 128 + SIGUSR1; then, and only then, the job is queued again. Where no checkpoint was written since it began,
it would stop there again for ever, and it ends.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from gdt.common.errors import UserError, require_positive
from gdt.pipeline.shards.index import Index
from gdt.train.settings import CHECKPOINT, Pretrain

_SCRIPT = """\
#!/bin/bash
# One task per machine, which starts its {gpus} ranks; the others of a job that has failed are ended after a minute.
written() {{ stat --format=%i.%y -- {checkpoint} 2>/dev/null; }}
before=$(written)
srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --wait=60 \\
    {command}
status=$?
if [ $status -eq {stopped} ]; then
    if [ "$(written)" = "$before" ]; then
        echo "error: told to stop before the first checkpoint; give the job more time, or --signal less" >&2
    elif scontrol requeue "$SLURM_JOB_ID"; then
        echo "job $SLURM_JOB_ID was told to stop; it is queued again, and goes on from its checkpoint"
    else
        echo "error: job $SLURM_JOB_ID is not queued again; the command that submitted it goes on from here" >&2
    fi
fi
exit $status
"""
_SIGNAL = "--signal=USR1@300"
"""Time for a step and a checkpoint. Without B:, it goes to the tasks on all machines, and not to the script."""


@dataclass(frozen=True)
class Job:
    """Machines and GPUs."""

    gpus: int = 1
    """GPUs per machine, each with its own process."""
    nodes: int = 1
    """Machines."""
    scheduler: str = ""
    """slurm, or empty to be told the commands to type on each machine."""
    sbatch: str = ""
    """Options of sbatch, in quotes: --sbatch="--partition=gpu --time=1-0 --cpus-per-task=64 --mem=0"."""

    def __post_init__(self) -> None:
        require_positive(self, "", "nodes", "gpus")


def parsed(arguments: Sequence[str]) -> tuple[Job, list[str]]:
    """The job that a command line describes, and what is left of it, for train.command."""
    return tyro.cli(Job, prog="gdt pretrain", args=arguments, return_unknown_args=True, add_help=False)


def submit(job: Job, settings: Pretrain, arguments: Sequence[str]) -> None:
    """Have SLURM start the job, with the settings of these arguments. Raises UserError where it or the shards will not
    do.
    """
    if job.scheduler != "slurm":
        raise UserError(_by_hand(job, arguments))
    if shutil.which("sbatch") is None:
        raise UserError("SCHEDULER=slurm needs SLURM's commands, and there is no sbatch on this machine")
    index = Index.open(settings.shard_folder)
    settings.with_batch_size(index).tree(index)  # what is wrong with them is better said now than in the job
    options = _options(job, settings)
    number = _submitted(options, _script(job, settings, arguments), settings.run_folder)
    log = settings.run_folder / f"slurm-{number}.log"
    print(
        f"job {number} is submitted: {job.gpus * job.nodes} processes, {job.gpus} on each machine; it is queued again "
        "where its time does not suffice, and waits for earlier jobs of this run\n"
        f"  tail -F {shlex.quote(str(log))}\n"
        f"  squeue --job {number}\n"
        f"  scancel {number}"
    )


def _by_hand(job: Job, arguments: Sequence[str]) -> str:
    """What to do without SLURM."""
    if job.scheduler:
        return (
            f"SCHEDULER is '{job.scheduler}'; pretraining is submitted to slurm, or started by any launcher that says "
            "which rank a process is (torchrun, srun, mpirun)"
        )
    if job.nodes == 1:
        return "SBATCH has no effect without SCHEDULER=slurm"
    torchrun = ["torchrun", "--nnodes", job.nodes, "--node-rank", 0, "--rdzv-endpoint", "host:port", "--nproc-per-node",
                job.gpus, "-m", "gdt", "pretrain", *arguments]  # fmt: skip
    last = f"{'0 and 1' if job.nodes == 2 else f'0 to {job.nodes - 1}'}"
    return (
        f"NODES={job.nodes} needs SCHEDULER=slurm, which submits a job; with no scheduler, type this on each machine, "
        f"with --node-rank {last}, and the first one's name and a free port: {shlex.join(map(str, torchrun))} "
        "(srun and mpirun start gdt pretrain as it is, without --gpus, once per GPU)"
    )


def _options(job: Job, settings: Pretrain) -> list[str]:
    """Of sbatch; those that were typed come last, and so they count."""
    try:
        typed = shlex.split(job.sbatch)
    except ValueError as error:
        raise UserError(f"SBATCH is {job.sbatch!r}, which are no words for a shell ({error})") from error
    folder = settings.run_folder.absolute()
    options = [
        f"--nodes={job.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={job.gpus}", "--requeue", "--open-mode=append",
        f"--output={str(folder).replace('%', '%%')}/slurm-%j.log",
        # of jobs with one name, only one runs: two of one run would write over each other
        f"--job-name={folder.name}-{zlib.crc32(str(folder).encode()):08x}", "--dependency=singleton",
    ]  # fmt: skip
    if "SBATCH_SIGNAL" not in os.environ:
        options.append(_SIGNAL)
    said = [*typed, *(f"--{name[7:].lower()}" for name in os.environ if name.startswith("SBATCH_G"))]
    if settings.device != "cpu" and not any(word.startswith(("--gres", "--gpus", "-G")) for word in said):
        options.append(f"--gres=gpu:{job.gpus}")
    return [*options, *typed]


def _script(job: Job, settings: Pretrain, arguments: Sequence[str]) -> str:
    command = [sys.executable, "-P", "-m", "gdt", "pretrain", "--gpus", str(job.gpus), *arguments]
    checkpoint = shlex.quote(str(settings.run_folder.absolute() / CHECKPOINT))
    stopped = 128 + signal.SIGUSR1
    return _SCRIPT.format(**vars(job), checkpoint=checkpoint, command=shlex.join(command), stopped=stopped)


def _submitted(options: Sequence[str], script: str, folder: Path) -> str:
    """The number of the job, once sbatch has it; its log needs the folder."""
    there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    command = ["sbatch", "--parsable", *options]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        if not there:
            with contextlib.suppress(OSError):
                folder.rmdir()
        said = " ".join(line.removeprefix("sbatch: error: ").strip() for line in done.stderr.splitlines())
        raise UserError(f"sbatch refuses the job ({said or f'status {done.returncode}'}); SBATCH= has its options")
    sys.stderr.write(done.stderr)
    return done.stdout.strip().split(";")[0]  # a cluster's name may follow
