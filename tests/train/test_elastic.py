"""A killed run resumes on another number of ranks with the same losses."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import Run
from tests.train.runs import losses, start_gdt, starts, wait_for

STEPS, KILLED_AFTER = 10, 3


def arguments(shards: Path, run: Path, ranks: int, *more: object) -> list[str]:
    start = ["pretrain", "--gpus", str(ranks)] if ranks > 1 else ["pretrain"]
    # in float32, rounding differences grow within a few steps
    return [
        *start, "tiny", "--shards", str(shards), "--out", str(run), "--device", "cpu", "--threads", "1",
        "--preset", "l",
        "--batch-size", "8", "--steps", str(STEPS), "--network.dropout", "0.3", "--checkpoint-steps", "2",
        "--optimization.lr-decay", "0", "--precision", "float64", *map(str, more),
    ]  # fmt: skip


@pytest.mark.parametrize(("first", "then", "bn_group_size"), [(2, 1, 4), pytest.param(1, 2, 0, marks=pytest.mark.slow)])
def test_a_run_resumes_with_another_number_of_ranks(
    command: Run, shards: Path, tmp_path: Path, first: int, then: int, bn_group_size: int
) -> None:
    whole, run, norm = tmp_path / "whole", tmp_path / "run", ("--bn-group-size", bn_group_size)
    done = command(*arguments(shards, whole, 1, *norm))
    assert done.returncode == 0, done.stderr
    norm_over = f"groups of {bn_group_size} leaves" if bn_group_size else "the whole batch"
    assert f"batch norm over {norm_over}" in " ".join(done.stdout.split())
    process = start_gdt(arguments(shards, run, first, *norm), tmp_path)
    wait_for(run / "metrics.jsonl", KILLED_AFTER + 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert KILLED_AFTER < len(losses(run)) < STEPS
    done = command(*arguments(shards, run, then))  # without --bn-group-size: the run's is kept
    assert done.returncode == 0, done.stderr
    assert len(losses(run)) == STEPS and np.abs(np.subtract(losses(run), losses(whole))).max() < 1e-6
    one, other = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (run, whole))
    assert json.loads(one["settings"])["bn_group_size"] == bn_group_size
    assert all(torch.allclose(one["model"][name], other["model"][name], atol=1e-6) for name in other["model"])
    assert [start["ranks"] for start in starts(run)] == [first, then]
    refused = command(*arguments(shards, run, 1, "--bn-group-size", 2))
    assert refused.returncode == 2 and f"bn_group_size was {bn_group_size}, now 2" in refused.stderr
