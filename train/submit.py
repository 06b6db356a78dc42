"""gdt pretrain --nodes N --gpus N --scheduler slurm: pretrain on several machines as a SLURM job.

The job has one task per machine, which starts its ranks with --gpus. With one task per GPU, the GPUs and cores that a
task sees would depend on the configuration of the cluster.

Five minutes before the time limit, SLURM sends SIGUSR1 to the tasks. The ranks finish the step, write a checkpoint and
exit with 128 + SIGUSR1. The job is queued again only after this status and with a new checkpoint.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from gdt.common.errors import UserError, require_positive
from gdt.pipeline.shards.index import Index
from gdt.train.settings import CHECKPOINT, Pretrain

_SCRIPT = """\
#!/bin/bash
# One task per machine, which starts its {gpus} ranks; a minute after one fails, srun ends the others.
written() {{ stat --format=%i.%y -- {checkpoint} 2>/dev/null; }}
before=$(written)
srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --wait=60 \\
    {command}
status=$?
if [ $status -eq {stopped} ]; then
    if [ "$(written)" = "$before" ]; then
        echo "error: stopped before it wrote a checkpoint; give the job more --time in --sbatch" >&2
    elif scontrol requeue "$SLURM_JOB_ID"; then
        echo "job $SLURM_JOB_ID was stopped; it is queued again and resumes from its checkpoint"
    else
        echo "error: job $SLURM_JOB_ID cannot be queued again; submit it again to resume" >&2
    fi
fi
exit $status
"""
_SIGNAL = "--signal=USR1@300"
"""Leaves time for a step and a checkpoint. Without `B:`, SLURM signals the tasks on all machines, not the script."""


@dataclass(frozen=True)
class Job:
    """Machines and GPUs."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {"machine": ("gpus", "nodes", "scheduler", "sbatch")}
    """Groups of options in `--help`."""

    gpus: int = 1
    """GPUs per machine, each with its own process."""
    nodes: int = 1
    """Number of machines."""
    scheduler: str = ""
    """slurm: submit a job. Without it, --nodes above 1 prints the command for each machine."""
    sbatch: str = ""
    """Options of sbatch, in quotes: --sbatch="--partition=gpu --time=1-0 --cpus-per-task=64 --mem=0"."""

    def __post_init__(self) -> None:
        require_positive(self, "", "nodes", "gpus")


def parse_job(arguments: Sequence[str]) -> tuple[Job, list[str]]:
    """The job of a command line, and the remaining arguments."""
    return tyro.cli(Job, prog="gdt pretrain", args=arguments, return_unknown_args=True, add_help=False)


def submit(job: Job, settings: Pretrain, arguments: Sequence[str]) -> None:
    """Submit a job that pretrains with `arguments`. Raises UserError if SLURM rejects it or the shards do not fit."""
    if job.scheduler != "slurm":
        raise UserError(_explain_manual_start(job, arguments))
    if shutil.which("sbatch") is None:
        raise UserError(
            "--scheduler slurm needs sbatch, which this machine lacks; run this on a login node of the cluster"
        )
    index = Index.open(settings.shard_folder)
    settings.with_batch_size(index).tree(index)  # to fail now rather than in the job
    options = _sbatch_options(job, settings)
    number = _run_sbatch(options, _job_script(job, settings, arguments), settings.run_folder)
    log = settings.run_folder / f"slurm-{number}.log"
    print(
        f"job {number} is submitted: {job.gpus * job.nodes} ranks, {job.gpus} per machine; it is queued again when its "
        "time is up, and waits for earlier jobs of this run\n"
        f"  tail -F {shlex.quote(str(log))}\n"
        f"  squeue --job {number}\n"
        f"  scancel {number}"
    )


def _explain_manual_start(job: Job, arguments: Sequence[str]) -> str:
    """Message on how to start the ranks without SLURM."""
    if job.scheduler:
        return (
            f"unknown scheduler '{job.scheduler}'; available: slurm; or start the ranks with torchrun, srun or mpirun"
        )
    if job.nodes == 1:
        return "--sbatch has no effect without --scheduler slurm; add --scheduler slurm, or leave --sbatch out"
    torchrun = ["torchrun", "--nnodes", job.nodes, "--node-rank", 0, "--rdzv-endpoint", "host:port", "--nproc-per-node",
                job.gpus, "-m", "gdt", "pretrain", *arguments]  # fmt: skip
    node_ranks = "0 and 1" if job.nodes == 2 else f"0 to {job.nodes - 1}"
    return (
        f"--nodes {job.nodes} needs --scheduler slurm; without one, type this on each machine, with --node-rank "
        f"{node_ranks}, and the name of the first machine and a free port as host:port: "
        f"{shlex.join(map(str, torchrun))} "
        "(with srun or mpirun instead, start 'gdt pretrain' once per GPU, without --gpus)"
    )


def _sbatch_options(job: Job, settings: Pretrain) -> list[str]:
    """Options of sbatch; those of --sbatch come last, so they override the others."""
    try:
        typed = shlex.split(job.sbatch)
    except ValueError as error:
        raise UserError(
            f"--sbatch is {job.sbatch!r}, which a shell cannot split into words ({error}); check its quotes"
        ) from error
    folder = settings.run_folder.absolute()
    options = [
        f"--nodes={job.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={job.gpus}", "--requeue", "--open-mode=append",
        f"--output={str(folder).replace('%', '%%')}/slurm-%j.log",
        # with singleton, jobs of one name run one at a time: two jobs of one run would overwrite each other
        f"--job-name={folder.name}-{zlib.crc32(str(folder).encode()):08x}", "--dependency=singleton",
    ]  # fmt: skip
    if "SBATCH_SIGNAL" not in os.environ:
        options.append(_SIGNAL)
    given = [*typed, *(f"--{name[7:].lower()}" for name in os.environ if name.startswith("SBATCH_G"))]
    if settings.device != "cpu" and not any(word.startswith(("--gres", "--gpus", "-G")) for word in given):
        options.append(f"--gres=gpu:{job.gpus}")
    return [*options, *typed]


def _job_script(job: Job, settings: Pretrain, arguments: Sequence[str]) -> str:
    command = [sys.executable, "-P", "-m", "gdt", "pretrain", "--gpus", str(job.gpus), *arguments]
    checkpoint = shlex.quote(str(settings.run_folder.absolute() / CHECKPOINT))
    stopped = 128 + signal.SIGUSR1
    return _SCRIPT.format(**vars(job), checkpoint=checkpoint, command=shlex.join(command), stopped=stopped)


def _run_sbatch(options: Sequence[str], script: str, folder: Path) -> str:
    """Submit a job and return its number; makes `folder`, since its log is there."""
    there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    command = ["sbatch", "--parsable", *options]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        if not there:
            with contextlib.suppress(OSError):
                folder.rmdir()
        why = " ".join(line.removeprefix("sbatch: error: ").strip() for line in done.stderr.splitlines())
        raise UserError(f"sbatch rejects the job ({why or f'status {done.returncode}'}); set its options with --sbatch")
    sys.stderr.write(done.stderr)
    return done.stdout.strip().split(";")[0]  # a cluster's name may follow
