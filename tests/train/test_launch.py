"""Runs that torchrun starts, and runs that signals stop."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gdt.train import checkpoint
from tests.conftest import ROOT, Forked, Run, commands_in
from tests.train.drawn import draw
from tests.train.runs import go_on, losses, paused, pausing

STEPS = 20
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("drawn"), 16)[0]


def arguments(shards: Path, run: Path, *more: object) -> list[str]:
    # in float32, rounding differences between numbers of ranks grow within a few steps
    options = [
        "--size", "tiny", "--shards", shards, "--out", run, "--device", "cpu", "--threads", 1, "--preset", "e",
        "--batch-size", 8, "--steps", STEPS, "--network.dropout", 0.3, "--lr-decay", 0, "--precision", "float64", *more,
    ]  # fmt: skip
    return ["pretrain", *map(str, options)]


GROUPS = ("--group-size", 4)


@pytest.fixture(scope="module")
def whole(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of one process that nothing stops."""
    folder = tmp_path_factory.mktemp("whole")
    commands_in(folder)(*arguments(drawn, folder / "run", *GROUPS), check=True)
    return losses(folder / "run")


def torchrun(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    """Start two ranks as `make pretrain GPUS=2` does, in a new session."""
    stopping = {"PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGUSR1,SIGHUP", "PET_SHUTDOWN_TIMEOUT": "600"}
    ranks = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", *ranks, "-m", "gdt", *arguments], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")} | stopping | environment,
    )  # fmt: skip


def stopped_at(run: Path) -> int:
    """The step of the checkpoint, which is that of the log."""
    step = checkpoint.read(run / "checkpoint.pt").record.step
    assert step == len(losses(run)) < STEPS
    return step


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.slow) for each in SIGNALS if each != signal.SIGINT)],
)
def test_a_signal_stops_the_ranks_of_torchrun_and_one_process_goes_on_with_the_same_numbers(
    command: Run, drawn: Path, whole: list[float], tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = torchrun(arguments(drawn, run, *GROUPS, "--checkpoint-steps", 2), **pausing(1))
    first = paused(process.pid)  # rank 0
    if number == signal.SIGINT:  # as a terminal does: to torchrun and its ranks, to which torchrun sends it again
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    go_on(first)
    said, errors = process.communicate()  # after a hang-up, it says nothing more
    assert process.returncode not in (0, -number), errors
    assert said.count("stopped after step") == (number != signal.SIGHUP) and "interrupted" not in errors
    step = stopped_at(run)
    assert json.loads((run / "run.json").read_text())["ranks"] == 2
    command(*arguments(drawn, run), check=True)  # without --group-size: the run's is kept
    assert len(losses(run)) == STEPS and np.abs(np.subtract(losses(run), whole)).max() < 1e-6
    start = json.loads((run / "run.json").read_text())
    assert (start["ranks"], start["step"]) == (1, step)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.slow) for each in SIGNALS[1:])]
)
def test_a_signal_stops_a_run_cleanly_and_the_same_command_resumes(
    command: Run, drawn: Path, whole: list[float], tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = Forked(tmp_path, arguments(drawn, run, *GROUPS, "--checkpoint-steps", 2), pausing(1))
    paused(process.pid)
    for _ in range(1 + (number == signal.SIGINT)):  # a repeated SIGINT counts once
        process.send_signal(number)
        go_on([process.pid])
        time.sleep(0.01)
    said, errors = process.communicate()
    assert process.returncode == 128 + number, errors
    assert said.count("run the same command to resume") == 1
    stopped_at(run)
    assert command(*arguments(drawn, run)).returncode == 0
    assert losses(run) == whole
