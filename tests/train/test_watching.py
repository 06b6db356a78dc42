"""Logs of a run, and a full disk."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from gdt.common.errors import UserError
from gdt.pipeline.shards.index import Index
from gdt.train import checkpoint
from gdt.train.experiment import resolve
from gdt.train.log import Log
from gdt.train.pretrain import pretrain
from gdt.train.run import CHECKPOINT, METRICS, keep_until, logged
from gdt.train.settings import SIZES, Pretrain
from gdt.train.step import Metrics
from tests.conftest import few

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def settings(drawn: tuple[Path, Path]) -> Pretrain:
    return replace(SIZES["tiny"], preset="e", shards=drawn[0], batch_size=4, steps=8, device="cpu", threads=1)


GONE = OSError("the service is gone")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Weights & Biases, whose run is itself."""
    service = MagicMock()
    service.__spec__ = object()
    service.init.return_value = service
    monkeypatch.setitem(sys.modules, "wandb", service)
    return service


def test_every_step_is_logged_with_all_metrics(settings: Pretrain, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pretrain(replace(settings, out=run))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(8))
    for row in rows:
        assert row.keys() == {
            "step", "loss", "chance", "least", "top1", "lr", "gradient_norm", "clips_per_second", "data_wait",
            "memory_gib", *(["rank"] if row["step"] == 0 else []),
        }  # fmt: skip
        assert 0 <= row["top1"] <= 1 and row["gradient_norm"] > 0 and row["memory_gib"] > 0.05


def test_damaged_lines_of_a_log_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / METRICS
    log.write_bytes(b'{"step": 0}\n\0\0\0\n5\n{"step": 1}\n{"step": 2}\n{"st')
    assert [row["step"] for row in logged(log)] == [0, 1, 2]
    keep_until(log, 1)
    assert log.read_text() == '{"step": 0}\n{"step": 1}\n'


def test_mfu_is_flops_over_peak_flops(settings: Pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(settings, out=tmp_path / "run")
    monkeypatch.setattr("gdt.train.log.peak_flops", lambda device: 6e12)
    experiment = resolve(run, Index.open(run.shard_folder), torch.device("cpu"))
    with Log(experiment, 0, world=2, flops=6e12) as log:
        log.add_step(0, Metrics(1.0, 0.5, 1.4, 0.0, 2.0, None), seconds=2.0, waiting=0.5)
    (row,) = [json.loads(line) for line in (run.run_folder / "metrics.jsonl").read_text().splitlines()]
    assert (row["mfu"], row["clips_per_second"], row["data_wait"], row["lr"]) == (0.25, 2.0, 0.25, run.optimization.lr)


def test_weights_and_biases_get_the_same_metrics(
    settings: Pretrain, tmp_path: Path, wandb: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain(replace(settings, out=tmp_path / "run", steps=3, wandb="mine"))
    started = wandb.init.call_args.kwargs
    assert (started["project"], started["resume"], wandb.finish.call_count) == ("mine", "allow", 1)
    assert started["config"]["batch_size"] == 4
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged: dict[int, dict[str, float]] = {}
    for (metrics,), named in wandb.log.call_args_list:
        logged.setdefault(named["step"], {}).update(metrics)
    assert [{"step": step} | metrics for step, metrics in logged.items()] == rows
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(UserError, match="--wandb needs the package wandb; run 'pip install wandb'"):
        pretrain(replace(settings, out=tmp_path / "other", steps=3, wandb="mine"))
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_its_curves_and_a_new_one_starts_its_own(
    settings: Pretrain, tmp_path: Path, wandb: MagicMock
) -> None:
    """Also a new one in the same folder, as with --overwrite or in another container."""
    short = replace(
        settings, out=tmp_path / "run", wandb="mine", optimization=replace(settings.optimization, lr_decay=0.0)
    )
    for steps in (2, 3):
        pretrain(replace(short, steps=steps))
    pretrain(replace(short, steps=2, overwrite=True))
    pretrain(replace(short, steps=3))
    ids = [call.kwargs["id"] for call in wandb.init.call_args_list]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    pretrain(replace(short, steps=2))
    assert wandb.init.call_args.kwargs["id"] not in ids


@pytest.mark.parametrize("moment", few(["log", "finish", "add_scalar", "close"]))
def test_a_logger_that_fails_costs_a_warning(
    settings: Pretrain, tmp_path: Path, wandb: MagicMock, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, moment: str,
) -> None:  # fmt: skip
    theirs = moment in ("log", "finish")
    monkeypatch.setattr(wandb if theirs else SummaryWriter, moment, MagicMock(side_effect=GONE))
    path = pretrain(replace(settings, out=tmp_path / "run", wandb="mine", steps=3))
    name = "Weights & Biases" if theirs else "TensorBoard"
    assert capsys.readouterr().err.count(f"warning: {name} has failed (the service is gone)") == 1
    assert path.is_file() and [row["step"] for row in logged(path.with_name(METRICS))] == [0, 1, 2]


def test_a_logger_that_refuses_costs_no_earlier_run(settings: Pretrain, tmp_path: Path, wandb: MagicMock) -> None:
    finished = replace(settings, out=tmp_path / "run", steps=2)
    path = pretrain(finished)
    before = {name: path.with_name(name).read_bytes() for name in (CHECKPOINT, METRICS)}
    wandb.init.side_effect = GONE
    with pytest.raises(UserError, match="Weights & Biases does not start"):
        pretrain(replace(finished, wandb="mine", overwrite=True))
    assert {name: path.with_name(name).read_bytes() for name in before} == before


def test_a_reader_of_the_bar_that_has_ended_does_not_end_the_run(
    settings: Pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tee, by the same Ctrl-C."""

    class Ended(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Ended())
    assert pretrain(replace(settings, out=tmp_path / "run", steps=2)).is_file()


def test_a_full_disk_ends_the_run_and_keeps_the_previous_checkpoint(
    settings: Pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save
    saved: list[int] = []

    def full(state: dict, file: object) -> None:
        saved.append(json.loads(state["record"])["step"])
        if saved[-1] >= 4:
            file.write(b"half of it")  # type: ignore[attr-defined]
            raise OSError(28, "No space left on device")
        save(state, file)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left on device: .*checkpoint.pt"):
        pretrain(replace(settings, out=tmp_path, checkpoint_steps=2))
    assert saved == [2, 4]
    assert checkpoint.read(tmp_path / CHECKPOINT).record.step == 2
    assert not list(tmp_path.glob("*.partial"))
    monkeypatch.setattr(torch, "save", save)
    pretrain(replace(settings, out=tmp_path, checkpoint_steps=2))
    assert checkpoint.read(tmp_path / CHECKPOINT).record.step == 8
