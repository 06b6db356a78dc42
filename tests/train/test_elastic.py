"""A run that is killed on one number of ranks goes on with another, to the same losses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT, Run

STEPS, KILLED_AFTER = 10, 3


def arguments(shards: Path, run: Path, ranks: int, *more: object) -> list[str]:
    start = ["pretrain", "--gpus", str(ranks)] if ranks > 1 else ["pretrain"]
    # in float32 rounding decides, after some steps, where training goes
    return [
        *start, "tiny", "--shards", str(shards), "--out", str(run), "--device", "cpu", "--threads", "1",
        "--preset", "l",
        "--videos-per-batch", "8", "--steps", str(STEPS), "--network.dropout", "0.3", "--checkpoint-steps", "2",
        "--optimization.decay", "0", "--precision", "float64", *map(str, more),
    ]  # fmt: skip


def losses(run: Path) -> torch.Tensor:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return torch.tensor([row["loss"] for row in rows], dtype=torch.float64)


@pytest.mark.parametrize(("first", "then", "norm_leaves"), [(2, 1, 4), pytest.param(1, 2, 0, marks=pytest.mark.slow)])
def test_a_run_goes_on_with_another_number_of_ranks(
    command: Run, shards: Path, tmp_path: Path, first: int, then: int, norm_leaves: int
) -> None:
    whole, run, norm = tmp_path / "whole", tmp_path / "run", ("--norm-leaves", norm_leaves)
    done = command(*arguments(shards, whole, 1, *norm))
    assert done.returncode == 0, done.stderr
    assert f"batch norm over {f'groups of {norm_leaves} leaves' if norm_leaves else 'the whole batch'}" in done.stdout
    process = subprocess.Popen(
        [sys.executable, "-m", "gdt", *arguments(shards, run, first, *norm)], cwd=tmp_path, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.is_file() and metrics.read_text().count("\n") > KILLED_AFTER) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert KILLED_AFTER < len(losses(run)) < STEPS
    done = command(*arguments(shards, run, then))  # without a word of the groups, which are the run's
    assert done.returncode == 0, done.stderr
    assert len(losses(run)) == STEPS and (losses(run) - losses(whole)).abs().max() < 1e-6
    one, other = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (run, whole))
    assert json.loads(one["settings"])["norm_leaves"] == norm_leaves
    assert all(torch.allclose(one["model"][name], other["model"][name], atol=1e-6) for name in other["model"])
    starts = json.loads((run / "run.json").read_text())
    assert [start["ranks"] for start in starts] == [first, then]
    refused = command(*arguments(shards, run, 1, "--norm-leaves", 2))
    assert refused.returncode == 2 and f"norm_leaves was {norm_leaves}, now 2" in refused.stderr
