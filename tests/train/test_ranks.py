"""Two ranks start equal and stop together."""

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gdt.pipeline.shards.index import Index
from gdt.train import checkpoint
from gdt.train.run import CHECKPOINT
from tests.conftest import Forked
from tests.tamper import annotate, changed
from tests.train import own_networks
from tests.train.runs import go_on, losses, of_ranks, paused, pausing

STEPS = 10
Ranks = list[Forked]
Start = Callable[..., Ranks]


@pytest.fixture
def start(shards: Path, tmp_path: Path) -> Iterator[Start]:
    """Start two ranks as a launcher does, each with its arguments, but without ending the others when one fails."""
    started: Ranks = []

    def ranks(*arguments: tuple[object, ...], **more_environment: str) -> Ranks:
        base = ["pretrain", "--size", "tiny", "--shards", shards, "--out", tmp_path / "run", "--batch-size", 4,
                "--threads", 1, "--device", "cpu", "--steps", STEPS, "--checkpoint-steps", 4,
                "--group-size", 4]  # fmt: skip
        for more, of_rank in zip(arguments, of_ranks(2), strict=True):
            environment = of_rank | {"CUDA_VISIBLE_DEVICES": ""} | more_environment
            started.append(Forked(tmp_path, [*map(str, [*base, *more])], environment))
        return started[-len(arguments) :]

    yield ranks
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def ended(ranks: Ranks) -> list[int]:
    """Exit statuses."""
    for process in ranks:
        process.wait()
    return [process.returncode for process in ranks]


def refusal(ranks: Ranks) -> str:
    """What rank 0 prints at its end; as torchrun does, ends the other then."""
    said = ranks[0].communicate()[1]
    assert ranks[0].returncode == 2 and "Traceback" not in said
    ranks[1].kill()
    assert "error" not in ranks[1].communicate()[1]
    return said


def test_a_signal_to_one_rank_stops_both_after_the_same_step(start: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks = start((), (), **pausing(1))
    first = paused(ranks[0].pid)
    ranks[1].send_signal(signal.SIGUSR1)  # rank 0 writes the checkpoint
    go_on(first)
    assert ended(ranks) == [128 + signal.SIGUSR1] * 2
    stopped = len(losses(run))
    assert checkpoint.read(run / CHECKPOINT).record.step == stopped < STEPS
    # a rank that does not see the checkpoint would train apart
    said = refusal(start((), ("--out", tmp_path / "elsewhere")))
    assert f"a different step from rank 0 (0, not {stopped})" in said


def test_ranks_that_differ_refuse_to_start(start: Start, shards: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(shards, other)
    splits = Index.open(shards).split.tolist()
    splits[splits.index("train")] = "test"
    annotate(other, split=splits)
    for difference, words in (
        (("--temperature", 0.2), "a different temperature from rank 0 (0.2, not 0.07)"),
        (("--shards", other, "--dataset", shards.name), "a different set of shards from rank 0"),
    ):
        said = refusal(start((), difference))
        assert f"error: rank 1 starts with {words}" in said and "; start all ranks with the same command" in said
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_damaged_clip_on_one_rank_ends_both_after_the_same_step(start: Start, shards: Path, tmp_path: Path) -> None:
    copy, run = tmp_path / "shards", tmp_path / "run"
    shutil.copytree(shards, copy)
    with changed(copy / "shard-000001.h5") as file:
        n = len(file["frames/jpeg"])
        file["frames/jpeg"][n * 9 // 20 : n * 11 // 20] = 0
    damaged = ("--shards", copy, "--steps", 200, "--loading.prefetch", 1)
    ranks = start(damaged, damaged)
    assert ended(ranks) == [2, 2]
    said = [rank.communicate()[1] for rank in ranks]
    assert "shard-000001.h5 is damaged: checksum mismatch in frame" in said[0], "whichever rank it was, rank 0 says it"
    assert "Traceback" not in said[0] + said[1]
    assert 0 < checkpoint.read(run / CHECKPOINT).record.step == len(losses(run)) < 200


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_on_one_rank_ends_both_and_keeps_the_checkpoint(
    start: Start, tmp_path: Path
) -> None:
    own = ("--video-network", f"{own_networks.__file__}:Breaking(at=22)")  # it passes four times per step and rank
    ranks = start(own, own)
    assert ended(ranks) == [2, 2]
    said = ranks[0].communicate()[1]
    assert "and the norm of its gradient nan at step 5, which is not saved; lower --lr" in said
    assert "Traceback" not in said
    assert checkpoint.read(tmp_path / "run" / CHECKPOINT).record.step == 4
