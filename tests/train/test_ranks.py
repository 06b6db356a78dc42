"""Two ranks start equal, stop together, and do not wait for a dead one."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from gdt.train import checkpoint
from tests.tamper import changed
from tests.train.runs import Forked, losses, wait_until

STEPS = 10
Ranks = list[Forked]
Start = Callable[..., Ranks]


@pytest.fixture
def start(server: subprocess.Popen[str], shards: Path, tmp_path: Path) -> Iterator[Start]:
    """Start two ranks as a launcher does, each with its arguments, but without ending the others when one fails."""
    started: Ranks = []

    def ranks(*arguments: tuple[object, ...]) -> Ranks:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        base = ["pretrain", "tiny", "--shards", shards, "--out", tmp_path / "run", "--batch-size", 4, "--threads",
                1, "--device", "cpu", "--steps", STEPS, "--checkpoint-steps", 4]  # fmt: skip
        for rank, more in enumerate(arguments):
            of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
            environment = {name: str(value) for name, value in of_rank.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "CUDA_VISIBLE_DEVICES": ""}
            started.append(Forked(server, tmp_path, [*map(str, [*base, *more])], environment))
        return started[-len(arguments) :]

    yield ranks
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def ended(ranks: Ranks) -> tuple[list[int], list[str]]:
    """Exit statuses, and stderr without progress bars."""
    said = [process.communicate()[1] for process in ranks]
    lines = [
        "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("step ")) for text in said
    ]
    return [process.returncode for process in ranks], lines


def test_a_signal_to_one_rank_stops_both_after_the_same_step_and_they_resume(start: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    often = ("--checkpoint-minutes", 1e-6)  # only rank 0 looks at the clock
    ranks = start(often, often)
    wait_until(lambda: len(losses(run)) >= 3)
    ranks[1].send_signal(signal.SIGUSR1)  # rank 0 writes the checkpoint
    codes, _ = ended(ranks)
    assert codes == [128 + signal.SIGUSR1] * 2
    stopped = len(losses(run))
    assert torch.load(run / checkpoint.NAME, weights_only=True)["step"] == stopped < STEPS
    half = losses(run)
    assert ended(start((), ()))[0] == [0, 0]
    assert losses(run)[:stopped] == half and len(losses(run)) == STEPS
    straight = tmp_path / "straight"
    assert ended(start(("--out", straight), ("--out", straight)))[0] == [0, 0]
    assert losses(straight) == losses(run)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_ends_the_other_with_a_reason(start: Start, tmp_path: Path, victim: int) -> None:
    ranks = start((), ())
    wait_until(lambda: len(losses(tmp_path / "run")) >= 2)
    (child,) = psutil.Process(ranks[victim].pid).children()
    began = time.monotonic()
    child.kill()
    codes, said = ended(ranks)
    assert time.monotonic() - began < 30
    assert codes[victim] == 128 + signal.SIGKILL and codes[1 - victim] == 2
    why = "it was killed or crashed, or its machine is gone; run the same command to resume from the last checkpoint"
    assert said[1 - victim] == f"error: rank {victim} ended without a message, so all ranks end: {why}"
    assert "Traceback" not in "".join(said)


def test_ranks_that_differ_refuse_to_start(start: Start, shards: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(shards, other)
    with changed(other / "index.h5", hidden=True) as file:
        split = file["video/split"]
        split[split.asstr()[:].tolist().index("train")] = "test"
    for difference, words in (
        (("--temperature", 0.2), "a different --temperature from rank 0 (0.2, not 0.07)"),
        (("--shards", other, "--dataset", shards.name), "a different set of shards from rank 0"),
    ):
        codes, said = ended(start((), difference))
        assert codes == [2, 2]
        assert f"error: rank 1 starts with {words}" in said[0]
        assert "; start all ranks with the same command" in said[0]
        assert said[1] == ""  # printed once
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_ranks_that_resume_from_different_steps_refuse_to_start(start: Start, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    assert ended(start(("--steps", 4), ("--steps", 4)))[0] == [0, 0]
    codes, said = ended(start(("--steps", 4), ("--steps", 4, "--out", elsewhere)))  # as if the disk were not shared
    assert codes == [2, 2]
    assert "error: rank 1 starts with a different step from rank 0 (0, not 4); the folder" in said[0]
    assert "must be on a disk that all ranks share" in said[0]
    assert len(losses(run)) == 4


def test_the_error_of_one_rank_ends_both_and_is_printed_once(start: Start, tmp_path: Path) -> None:
    codes, said = ended(start((), ("--shards", tmp_path / "nowhere")))
    assert codes == [2, 2]
    assert said[0].count("error: there are no shards in") == 1 and said[1] == ""
    assert "Traceback" not in said[0]
