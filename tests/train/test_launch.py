"""Several ranks started by one command: checked first, ended together, with errors printed once."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import sys
from pathlib import Path

import pytest
import torch

from gdt.eval import processes
from tests.conftest import ROOT, Run
from tests.test_mistakes import make, sentence, tiny
from tests.train.runs import wait_for


class Terminal:
    """A command in the foreground of its own terminal, so that Ctrl-C reaches all its processes."""

    def __init__(self, *command: object, folder: Path) -> None:
        self.pid, self._file = pty.fork()
        if not self.pid:
            os.chdir(folder)
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            os.execve(sys.executable, [sys.executable, *map(str, command)], environment)

    def interrupt(self) -> None:
        os.write(self._file, b"\x03")

    def ended(self) -> tuple[int, str]:
        """Exit status and output."""
        said = b""
        with contextlib.suppress(OSError):  # a closed terminal raises it
            while True:
                said += os.read(self._file, 1 << 16)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), said.decode()


def launch(shards: Path, run: Path, *more: object) -> tuple[object, ...]:
    """Arguments that start two ranks."""
    return (*tiny(shards, run, "--device", "cpu", *more), "--gpus", 2)


def test_more_ranks_than_gpus_are_refused_before_the_start(command: Run, shards: Path, tmp_path: Path) -> None:
    for number, device in ((2, "auto"), (8, "cuda")):
        arguments = ("pretrain", "--gpus", number, *tiny(shards, tmp_path / "run", "--device", device)[1:])
        said = sentence(command(*arguments, CUDA_VISIBLE_DEVICES=""))
        assert said == (
            f"--gpus is {number}, but torch finds no GPU; leave --gpus out, or train on the CPU with --device cpu"
        )
    assert sentence(command("pretrain", "--gpus", 0, "tiny")) == "--gpus is 0; it must be 1 or more"
    assert "--gpus=2" in make("pretrain", "GPUS=2", stamp=tmp_path / "stamp").stdout


def test_errors_of_several_ranks_are_printed_once(
    command: Run, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to a gdt.py, which ranks and other child processes ignore."""
    (tmp_path / "gdt.py").write_text("raise SystemExit('the wrong gdt')")
    for more, message in (
        (("--preset", "z"), "unknown preset 'z'; --preset help lists them"),  # found before the ranks start
        (("--batch-size", 5), "5 videos per batch cannot be split over 2 GPUs"),  # found by all ranks
    ):
        assert message in sentence(command(*launch(shards, tmp_path / "run", *more)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert processes.start(["--help"], tmp_path / "log.txt", "").wait() == 0
    assert (tmp_path / "log.txt").read_text().startswith("usage: gdt ")


@pytest.mark.slow  # tests/train/test_ranks.py sends a signal to one of two
def test_one_ctrl_c_stops_all_ranks_and_they_resume(command: Run, shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    constant = ("--device", "cpu", "--optimization.lr-decay", 0)
    ranks = Terminal("-m", "gdt", *launch(shards, run, "--steps", 200, *constant), folder=tmp_path)
    wait_for(run / "metrics.jsonl")
    ranks.interrupt()
    status, said = ranks.ended()
    assert status == 130 and said.count("stopped after step") == 1
    assert "rror" not in said and "Traceback" not in said and "interrupted" not in said
    step = torch.load(run / "checkpoint.pt", weights_only=True)["step"]
    assert 0 < step < 200
    done = command(*tiny(shards, run, "--steps", step + 2, *constant))
    assert done.returncode == 0, done.stderr
    assert torch.load(run / "checkpoint.pt", weights_only=True)["step"] == step + 2


RANKS = "import sys; from gdt.train.launch import run_ranks; sys.exit(run_ranks([sys.executable, 'rank.py'], 2, 0.5))"
RANK = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def wait():
    [time.sleep(0.05) for _ in range(1200)]
def tell(number, frame):
    os.write(1, f"rank {rank}: {number}\\n".encode())
    sys.exit(128 + number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, tell)
open(f"ready{rank}", "w").write("x")
while not os.path.exists(f"ready{1 - rank}"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("pass", 0, []),
        ("sys.exit(2) if rank else wait()", 2, ["rank 0: 15"]),  # the other rank gets a signal
        ("os.kill(os.getpid(), 9) if rank == 0 else wait()", 137, ["rank 1: 15"]),
        ("signal.signal(15, signal.SIG_IGN); sys.exit(3) if rank else wait()", 3, []),  # or is killed
        ("time.sleep(0.2 * rank); sys.exit(7 * rank)", 7, []),  # the launcher waits for all
    ],
)
def test_the_status_is_that_of_the_first_rank_that_fails(
    tmp_path: Path, body: str, status: int, said: list[str]
) -> None:
    (tmp_path / "rank.py").write_text(RANK + body)
    ended, text = Terminal("-c", RANKS, folder=tmp_path).ended()
    assert (ended, text.splitlines()) == (status, said)


def test_a_signal_reaches_every_rank_once(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK + "wait()")
    for interrupt, number in ((True, signal.SIGINT), (False, signal.SIGINT), (False, signal.SIGUSR1)):
        for path in tmp_path.glob("ready?"):
            path.unlink()
        ranks = Terminal("-c", RANKS, folder=tmp_path)
        for rank in (0, 1):
            wait_for(tmp_path / f"ready{rank}")
        ranks.interrupt() if interrupt else os.kill(ranks.pid, number)
        status, text = ranks.ended()
        assert status == 128 + number
        assert sorted(text.removeprefix("^C").splitlines()) == [f"rank {rank}: {int(number)}" for rank in (0, 1)]
