"""The progress bar over several runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gdt.eval.progress import LogReader, Progress
from gdt.train.run import METRICS
from gdt.train.settings import SIZES


def write_log(folder: Path, steps: range, half: str = "") -> None:
    rows = [json.dumps({"step": step, "loss": 3.0 - step / 10}) + "\n" for step in steps]
    (folder / METRICS).write_text("".join(rows) + half)


def test_steps_losses_and_status_are_shown(tmp_path: Path, shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = replace(SIZES["tiny"], shards=shards, preset="e")
    runs = {tmp_path / "e-0": replace(base, steps=6), tmp_path / "e-1": replace(base, steps=0, epochs=2)}
    for folder in runs:
        folder.mkdir()
    write_log(tmp_path / "e-0", range(2))  # from an earlier call
    with Progress(runs) as bar:
        assert (bar._bar.n, bar._bar.total) == (2, 6 + 2 * (24 // 16))
        bar.refresh()
        assert bar._bar.postfix == ""  # no new step
        write_log(tmp_path / "e-0", range(4), half='{"step": 4, "lo')
        write_log(tmp_path / "e-1", range(2))
        bar.refresh()
        assert (bar._bar.n, bar._bar.postfix) == (6, "e-0: loss 2.70, e-1: evaluating")
        bar.finish(tmp_path / "e-1", "R@1 50.0 %")
        write_log(tmp_path / "e-0", range(6))
        bar.refresh()
        assert (bar._bar.n, bar._bar.postfix) == (8, "e-0: evaluating")
        bar.set_status(tmp_path / "e-0", "factors")
        bar.refresh()
        assert bar._bar.postfix == "e-0: factors"
    assert "R@1 50.0 %" in capsys.readouterr().out


def test_a_rewritten_log_is_read_from_its_start(tmp_path: Path) -> None:
    log = LogReader(tmp_path / METRICS)
    assert not log.read() and log.last == {}
    write_log(tmp_path, range(5))
    assert log.read() and log.last["step"] == 4
    assert not log.read()
    write_log(tmp_path, range(3))
    assert log.read() and log.last["step"] == 2
    row = {"step": 3, "loss": 1.0, "more": "x" * 300}  # longer, and other
    (tmp_path / METRICS).write_text(json.dumps(row) + "\n")
    assert not log.read()  # the middle of a line
    assert log.read() and log.last["loss"] == 1.0
