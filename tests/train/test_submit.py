"""SLURM jobs: submitted, stopped before their time limit, queued again and resumed.

`sbatch`, `srun` and `scontrol` are stand-ins that start the job script and its tasks on this machine, with variables
that SLURM sets. SLURM itself is not tested.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gdt.train.submit import parse_job
from tests.conftest import Run
from tests.test_mistakes import make, sentence, tiny
from tests.train.runs import losses, starts, wait_until

SBATCH = """#!/bin/bash
# Stores the options and the script, and starts it
printf '%s\\n' "$@" >{state}/options
[[ " $* " == *" --partition=nowhere "* ]] && {{ echo "sbatch: error: invalid partition: nowhere" >&2; exit 1; }}
cat >{state}/script
env -i HOME="$HOME" PATH="$PATH" PYTHONPATH="$PYTHONPATH" setsid {state}/bin/started >/dev/null 2>&1 &
echo "7;cluster"
"""
STARTED = """#!/bin/bash
# Runs the job as a node does
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=localhost,other SLURM_NNODES=2 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0
log=$(sed -n s/--output=//p {state}/options | sed 's/%%/%/g; s/%j/7/')
bash {state}/script >>"$log" 2>&1
echo $? >>{state}/ended
"""
SRUN = """#!/bin/bash
# Two machines, both of them this one
echo "$@" >>{state}/steps
while [[ $1 == --* ]]; do [[ $1 == --ntasks=* ]] && tasks=${{1#*=}}; shift; done
for ((task = 0; task < tasks; task++)); do
    SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_NODELIST=localhost,other \\
        SLURM_STEP_TASKS_PER_NODE="1(x$tasks)" SLURM_PROCID=$task SLURM_NODEID=$task SLURM_LOCALID=0 "$@" &
    pids+=($!)
done
echo "${{pids[@]}}" >{state}/tasks
status=0
for pid in "${{pids[@]}}"; do
    wait "$pid"; code=$?
    ((code > status)) && status=$code
done
exit $status
"""
SCONTROL = """#!/bin/bash
echo "$@" >>{state}/requeued
[ -e {state}/full ] && exit 1
setsid {state}/bin/started >/dev/null 2>&1 &
"""


class Cluster:
    """A fake cluster of two machines, both of them this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "slurm"
        (self.folder / "bin").mkdir(parents=True)
        scripts = {"sbatch": SBATCH, "started": STARTED, "srun": SRUN, "scontrol": SCONTROL}
        for name, text in scripts.items():
            path = self.folder / "bin" / name
            path.write_text(text.format(state=self.folder))
            path.chmod(0o755)
        self.path = f"{self.folder}/bin:{os.environ['PATH']}"

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.is_file() else []

    def send(self, number: int) -> None:
        """Send a signal to the tasks as SLURM does."""
        for pid in self.lines("tasks")[-1].split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def wait(self, ends: int) -> list[str]:
        """Wait until the job script has ended `ends` times; returns the statuses."""
        wait_until(lambda: len(self.lines("ended")) >= ends)
        return self.lines("ended")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    there = Cluster(tmp_path)
    yield there
    if there.lines("tasks"):
        there.send(signal.SIGKILL)


def submit(shards: Path, run: Path, *more: object) -> tuple[object, ...]:
    """Arguments for a job of two machines with a rank each."""
    name, *arguments = tiny(shards, run, "--device", "cpu", *more)
    return (name, "--nodes", 2, "--scheduler", "slurm", *arguments)


def test_a_job_is_stopped_before_its_time_limit_and_resumes(
    command: Run, shards: Path, cluster: Cluster, tmp_path: Path
) -> None:
    run, steps = tmp_path / "a run", 20
    done = command(*submit(shards, run, "--steps", steps), PATH=cluster.path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("job 7 is submitted: 2 ranks, 1 per machine; it is queued again when its time is up")
    assert said[1:] == [f"  tail -F {shlex.quote(f'{run}/slurm-7.log')}", "  squeue --job 7", "  scancel 7"]
    wait_until(lambda: len(losses(run)) > 2)
    cluster.send(signal.SIGUSR1)
    first, *_ = cluster.wait(1)
    assert first == str(128 + signal.SIGUSR1) and cluster.lines("requeued") == ["requeue 7"]
    assert cluster.wait(2)[1] == "0"
    first, second = (start["step"] for start in starts(run))
    assert first == 0 and 2 < second < steps
    log = (run / "slurm-7.log").read_text()  # log of both starts
    assert f"stopped after step {second} of {steps}; run the same command to resume" in log
    assert "job 7 was stopped; it is queued again and resumes from its checkpoint" in log
    assert f"the trained model is in {run}/checkpoint.pt" in log and "rror" not in log
    assert len(cluster.lines("requeued")) == 1 and len(cluster.lines("steps")) == 2
    assert len(losses(run)) == steps  # tests of ranks compare their values
    assert torch.load(run / "checkpoint.pt", weights_only=True)["step"] == steps


@pytest.mark.parametrize(
    ("more", "stop", "status", "said"),
    [
        (("--optimization.lr", 1e9), False, "2", "error: the loss is nan at step"),  # failed
        pytest.param(("--steps", 4000), signal.SIGTERM, "143", "stopped after step", marks=pytest.mark.slow),  # scancel
    ],
)
def test_failed_and_cancelled_jobs_are_not_queued_again(
    command: Run, shards: Path, cluster: Cluster, tmp_path: Path, more: tuple[object, ...], stop: int, status: str,
    said: str,
) -> None:  # fmt: skip
    run = tmp_path / "run"
    done = command(*submit(shards, run, "--steps", 4, *more), PATH=cluster.path)
    assert done.returncode == 0, done.stderr
    if stop:
        wait_until(lambda: losses(run))
        cluster.send(stop)
    assert cluster.wait(1) == [status]
    assert said in (run / "slurm-7.log").read_text()
    assert not cluster.lines("requeued")


def test_a_job_without_a_new_checkpoint_is_not_queued_again(
    command: Run, shards: Path, cluster: Cluster, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert command(*submit(shards, run, "--steps", 4000), PATH=cluster.path).returncode == 0
    wait_until(lambda: cluster.lines("tasks"))
    cluster.send(signal.SIGUSR1)  # while the ranks start
    assert cluster.wait(1) == ["138"]
    assert "stopped before it wrote a checkpoint; give the job more --time" in (run / "slurm-7.log").read_text()
    assert not cluster.lines("requeued")


@pytest.mark.slow
def test_a_failed_requeue_is_reported(command: Run, shards: Path, cluster: Cluster, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (cluster.folder / "full").touch()
    assert command(*submit(shards, run, "--steps", 4000), PATH=cluster.path).returncode == 0
    wait_until(lambda: losses(run))
    cluster.send(signal.SIGUSR1)
    assert cluster.wait(1) == ["138"]
    said = (run / "slurm-7.log").read_text()
    assert "error: job 7 cannot be queued again; submit it again to resume" in said


def test_options_of_sbatch(command: Run, shards: Path, cluster: Cluster, tmp_path: Path) -> None:
    (cluster.folder / "bin" / "started").write_text("#!/bin/sh\n")

    def options(*more: object, device: str = "auto", **environment: str) -> list[str]:
        arguments = (*submit(shards, tmp_path / "100%", *more, "--device", device), "--gpus", 8)
        done = command(*arguments, PATH=cluster.path, **environment)
        assert done.returncode == 0, done.stderr
        return cluster.lines("options")

    plain = options()
    assert plain[:6] == [
        "--parsable", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--requeue", "--open-mode=append",
    ]  # fmt: skip
    assert plain[6] == f"--output={tmp_path}/100%%/slurm-%j.log"
    name, *rest = plain[7:]
    assert name.startswith("--job-name=100%-")
    assert rest == ["--dependency=singleton", "--signal=USR1@300", "--gres=gpu:8"]
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1" in (script := (cluster.folder / "script").read_text())
    assert " -P -m gdt pretrain --gpus 8 tiny --shards " in script
    assert options(device="cpu") == plain[:-1]
    assert options(SBATCH_SIGNAL="USR1@60") == [*plain[:-2], plain[-1]]
    assert options(SBATCH_GPUS_PER_NODE="h100:8") == plain[:-1]
    typed = options("--sbatch=--partition=gpu --gpus-per-node=h100:8 --comment='a b'")
    assert typed == [*plain[:-1], "--partition=gpu", "--gpus-per-node=h100:8", "--comment=a b"]


def test_mistakes_are_reported_before_submission(command: Run, shards: Path, cluster: Cluster, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = submit(shards, run)

    def said(*arguments: object, path: str = cluster.path) -> str:
        return sentence(command(*arguments, PATH=path))

    assert said(*job, path="/usr/bin:/bin") == (
        "--scheduler slurm needs sbatch, which this machine lacks; run this on a login node of the cluster"
    )
    assert said(*job, "--sbatch=--partition=nowhere") == (
        "sbatch rejects the job (invalid partition: nowhere); set its options with --sbatch"
    )
    assert said(*job, "--sbatch=--comment='a").startswith('--sbatch is "--comment=\'a", which a shell cannot split')
    assert said(*submit(tmp_path / "nowhere", run)).startswith("there are no shards in")
    assert "unknown preset 'z'" in said(*submit(shards, run, "--preset", "z"))
    assert "takes 99 videos but only 24 can be used" in said(*submit(shards, run, "--batch-size", 99))
    assert said("pretrain", "--nodes", 0, "tiny") == "--nodes is 0; it must be 1 or more"
    assert said("pretrain", "--scheduler", "pbs", "tiny").startswith(
        "unknown scheduler 'pbs'; available: slurm; or start"
    )
    assert (
        said("pretrain", "--sbatch=-p gpu", "tiny")
        == "--sbatch has no effect without --scheduler slurm; add --scheduler slurm, or leave --sbatch out"
    )
    assert said("pretrain", "--nodes", 4, "--gpus", 8, "tiny", "--preset", "e", "--out", "a b") == (
        "--nodes 4 needs --scheduler slurm; without one, type this on each machine, with --node-rank 0 to 3, "
        "and the name of the first machine and a free port as host:port: torchrun --nnodes 4 --node-rank 0 "
        "--rdzv-endpoint host:port --nproc-per-node 8 -m gdt pretrain tiny --preset e --out 'a b' (with srun or "
        "mpirun instead, start 'gdt pretrain' once per GPU, without --gpus)"
    )
    assert not run.exists() and not cluster.lines("script")


def test_help_shows_the_options_of_the_job(command: Run) -> None:
    for arguments in (("--help",), ("paper", "--help")):
        text = command("pretrain", *arguments).stdout
        assert all(option in text for option in ("--nodes", "--gpus", "--scheduler", "--sbatch", "paper"))
    assert len(text.splitlines()) <= 100 and "--clip.size" not in text and "--help-all lists more options" in text
    order = ["main options", "--dataset", "--batch-size", "machine options", "--gpus", "--optimization.lr"]
    assert sorted(order, key=text.index) == order
    everything = command("pretrain", "paper", "--help-all").stdout
    order += ["--clip.size", "--network.dropout", "advanced options", "--temperature"]
    assert sorted(order, key=everything.index) == order


def test_make_submits_the_job(tmp_path: Path) -> None:
    def made(*typed: str) -> str:
        return make("pretrain", "SIZE=tiny", *typed, stamp=tmp_path / "stamp").stdout.strip()

    rest = "gdt pretrain tiny --dataset synthetic"
    assert made() == rest
    slurm = made("NODES=4", "GPUS=8", "SCHEDULER=slurm", "SBATCH=--partition=gpu --mem=0", "ARGS=--seed 1")
    words = {"--nodes=4", "--gpus=8", "--scheduler=slurm", "--sbatch=--partition=gpu --mem=0", "--seed", "1"}
    assert {*shlex.split(slurm)} == {*rest.split(), *words}
    job, arguments = parse_job(shlex.split(slurm)[2:])
    assert (job.nodes, job.gpus, job.scheduler, job.sbatch) == (4, 8, "slurm", "--partition=gpu --mem=0")
    assert arguments == ["tiny", "--dataset", "synthetic", "--seed", "1"]
