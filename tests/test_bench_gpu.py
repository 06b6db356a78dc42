"""The benchmark of GPUs, on a processor: all of it runs to its end, and what breaks leaves the rest alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as bench
from benchmarks.gpu import absent, section
from benchmarks.gpu.device import Gpu, Processor
from benchmarks.gpu.settings import SECTIONS, Settings, parsed
from benchmarks.gpu.step import Step, disagreement, run_settings
from benchmarks.gpu.table import AGAIN, ROWS, TEXT, Row, Rows, read, text
from benchmarks.gpu.ways import IDEAS, Way
from gdt.common.errors import UserError
from tests.conftest import ROOT

TINY = Settings(
    device="cpu", size="tiny", leaves=(8,), leaves_of_ideas=8, steps=1, warm=1, rows=("l", "a"), videos=16, frames=40,
    training_steps=3, loading_seconds=0.1, ranks_videos=4, threads=1, processes=1,
    ideas=("float32", "channels-first", "recompute-3", "side-stream", "forward-per-branch", "padded-folded", "graph"),
)  # fmt: skip
CPU = Processor(torch.device("cpu"))
EAGER = Way(bfloat16=False, compiled=False)


def test_every_section_runs_to_its_end(tmp_path: Path) -> None:
    """In this process, but for those that start others."""
    settings = replace(TINY, out=tmp_path)
    for name in SECTIONS:
        if name != "ranks":
            section.measure(name, settings, time.time() + 300)
    rows = read(tmp_path / ROWS)
    assert {row.section for row in rows} == set(SECTIONS) - {"ranks"}
    assert not [row for row in rows if row.failed]
    found = {row.what: row.values for row in rows}
    assert set(TINY.ideas) < set(found)
    # what computes the same has the same losses
    first = found["best way, 8 clips"]
    for name in TINY.ideas:
        if IDEAS[name].same and "loss" in found[name]:
            assert found[name]["last loss"] == pytest.approx(first["last loss"], rel=1e-3), name
    assert found["embedded once, 8 clips in groups of 2"]["last loss"] == pytest.approx(
        found["gradient caching, 8 clips in groups of 2"]["last loss"], rel=1e-3
    )
    assert "100 epochs x 240000 videos x 4 clips of row l" in str(found["row l, 16 videos"]["arithmetic"])
    written = text(rows)
    assert "350 clips/s on an H200" in written and all(row.what in written for row in rows)


@pytest.mark.slow
def test_one_command_leaves_a_table(tmp_path: Path) -> None:
    """As a user types it, with those sections that start processes of their own."""
    arguments = ["--device", "cpu", "--size", "tiny", "--sections", "ranks", "--ranks-videos", "4", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments, "--out", str(tmp_path)], cwd=ROOT, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    table = (tmp_path / TEXT).read_text()
    assert done.stdout.endswith(f"{table}\nthe table is in {tmp_path}\n")
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["section"] for row in rows] == ["machine", "ranks"]
    assert max(rows[1]["values"][f"off, {norm}"] for norm in ("groups", "the whole batch")) < 1e-4
    assert "gloo, both on one device" in table


def test_a_row_that_raises_is_a_row_with_its_reason_and_others_go_on(tmp_path: Path) -> None:
    cleaned, shaken = [], []
    rows = Rows(tmp_path, time.time() + 100, lambda: cleaned.append(1), lambda: shaken.append(1))

    def bad(error: Exception) -> Any:
        raise error

    for error in (UserError("no shards"), RuntimeError("CUDA out of memory"), RuntimeError("illegal access\nmore")):
        assert rows("s", str(error), lambda error=error: bad(error)) is None
    assert rows("s", "good", lambda: {"clips/s": 2.0}) == {"clips/s": 2.0}
    told = ["no shards", "out of memory: RuntimeError: CUDA out of memory", "RuntimeError: illegal access", ""]
    assert [row.failed for row in read(tmp_path / ROWS)] == told
    # an error of the device asks for another process, which measures nothing twice
    assert (len(cleaned), len(shaken)) == (3, 1)
    again = Rows(tmp_path, time.time() + 100)
    assert again("s", "good", lambda: bad(ValueError())) == {"clips/s": 2.0}
    assert again("s", "no shards", lambda: bad(ValueError())) is None
    assert len(read(tmp_path / ROWS)) == 4


def test_what_does_not_fit_into_the_time_is_told(tmp_path: Path) -> None:
    rows = Rows(tmp_path, time.time() + 20)
    assert rows("s", "long", lambda: {"a": 1.0}, expected=60) is None
    assert rows("s", "short", lambda: {"a": 1.0}, expected=5) == {"a": 1.0}
    first, second = read(tmp_path / ROWS)
    assert first.failed.startswith("skipped: it needs about 60 s, and ") and not second.failed


def process(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let sections be this code, with `rows`, and `name`, the section's."""
    head = (
        "import json, os, sys, time; from benchmarks.gpu.table import AGAIN, Rows; from pathlib import Path; "
        "name, deadline, told = sys.argv[-3:]; out = Path(json.loads(told)['out']);"
        "rows = Rows(out, float(deadline), shaken=lambda: sys.exit(int(AGAIN)))\n"
    )
    popen = subprocess.Popen

    def started(command: list[str], **others: Any) -> Any:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return popen([sys.executable, "-c", head + code, *command[-3:]], env=environment, **others)

    monkeypatch.setattr(bench.subprocess, "Popen", started)


CRASHES = f"""
def bad(): raise RuntimeError("an error of the device")
rows(name, "first", lambda: {{"a": 1.0}})
rows(name, "dies", lambda: os.kill(os.getpid(), {int(signal.SIGKILL)}))
rows(name, "breaks", bad)
rows(name, "last", lambda: {{"a": 2.0}})
"""


def test_what_crashes_in_a_row_fails_that_row_and_the_next_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(monkeypatch, "if name != 'machine':" + CRASHES.replace("\n", "\n    "))
    said: list[str] = []
    bench.run(replace(TINY, out=tmp_path, sections=("step", "ideas")), said.append)
    rows = [(row.section, row.what, row.failed) for row in read(tmp_path / ROWS)]
    told = ["", f"ended with status -9; see {tmp_path / 'step.log'}", "RuntimeError: an error of the device", ""]
    names = ["first", "dies", "breaks", "last"]
    assert rows[:4] == [("step", name, failed) for name, failed in zip(names, told, strict=True)]
    assert [what for _, what, _ in rows[4:]] == names
    assert "[step] last: a 2" in "\n".join(said)


def test_what_hangs_is_ended_and_what_has_no_time_left_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(monkeypatch, "if name == 'step': rows(name, 'hangs', lambda: time.sleep(600), expected=0)")
    monkeypatch.setattr(bench, "_GRACE", 0.5)
    table = bench.run(replace(TINY, out=tmp_path, sections=("step", "ideas"), minutes=2 / 60), lambda text: None)
    assert [(row.what, row.failed.split(";")[0]) for row in read(tmp_path / ROWS)] == [
        ("hangs", "ended, as its time was up"), ("ideas", "skipped: no time is left")
    ]  # fmt: skip
    assert "skipped: no time is left" in table


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: torch finds no GPU") and "Traceback" not in done.stderr


def test_settings_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({"sections": ("steps",)}, {"ideas": ("magic",)}, {"leaves": (10,)}, {"ranks_videos": 6}):
        with pytest.raises(UserError, match="--"):
            replace(TINY, **wrong)
    arguments = ["--device", "cpu", "--leaves", "8", "16", "--minutes", "3", "--out", "x"]
    with_tyro = parsed(arguments)
    monkeypatch.setitem(sys.modules, "tyro", None)  # which is as if it were not installed
    assert parsed(arguments) == with_tyro == Settings(device="cpu", leaves=(8, 16), minutes=3.0, out=Path("x"))
    with pytest.raises(UserError, match="device is 'tpu'"):
        parsed(["--device", "tpu"])


@pytest.mark.parametrize("change", [{"padded": True}, {"folded": True}, {"padded": True, "folded": True}])
def test_padded_and_folded_convolutions_compute_the_same(change: dict[str, bool]) -> None:
    run = run_settings(TINY, "l", 8)
    assert disagreement(replace(EAGER, **change), run, CPU) < 1e-5
    # also after a few updates: what was added has no gradient
    steps = [Step(way, run, CPU) for way in (EAGER, replace(EAGER, **change))]
    losses = [[float(step().loss) for _ in range(4)] for step in steps]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


class Cuda:
    """What of torch.cuda is used, on a processor; it writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def told(*arguments: Any) -> Cuda:
            self.said.append(name)
            return self

        return told

    def __enter__(self) -> Cuda:
        return self

    def __exit__(self, *error: object) -> None:
        self.said.append("end")


def test_streams_and_graphs_of_a_gpu_with_its_parts_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[object] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append(stream))
    cuda, run = Cuda(), run_settings(TINY, "l", 8)
    device = Gpu(torch.device("cpu"), cuda)
    way = replace(EAGER, side_stream=True)
    assert float(Step(way, run, device)().loss) == float(Step(EAGER, run, CPU)().loss)
    # begun before the pictures, on a stream of its own, and waited for
    told = [said for said in cuda.said if said not in ("Stream", "synchronize")]
    assert told == ["current_stream", "record_event", "wait_event", "stream", "end", "current_stream", "wait_stream"]
    assert len(recorded) == 1
    step = Step(replace(EAGER, graph=True), run, device)
    step.settle(1)
    cuda.said.clear()
    step()
    assert cuda.said == ["replay"]


def test_where_dali_is_absent_rows_say_so_and_training_goes_on_without_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absent, "MISSING", {"nvidia.dali"})
    settings = replace(TINY, out=tmp_path)
    section.measure("shards", settings, time.time() + 100)
    section.measure("training", replace(settings, rows=("l",)), time.time() + 300)
    row = read(tmp_path / ROWS)[-2]
    assert not row.failed and "nothing was loaded, as DALI is not installed" in str(row.values["is"])


BARE = """
import sys
from benchmarks.gpu import absent
absent.stand_in(("tqdm", "no_such.dali", "not_there", "numba"))
assert absent.MISSING == {"no_such.dali", "not_there"}
import no_such.dali.fn as fn
from no_such.dali import pipeline_def

@pipeline_def
def graph(size):
    return fn.decode(size)

for what in (lambda: graph(3), lambda: fn.decode(3), lambda: __import__("not_there").thing(1)):
    try:
        what()
    except ModuleNotFoundError as error:
        print(error)
"""


def test_a_package_that_is_not_there_can_be_imported_and_says_so_when_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "no_such.dali is not installed, and graph needs it",
        "no_such.dali is not installed, and no_such.dali.fn.decode needs it",
        "not_there is not installed, and not_there.thing needs it",
    ]


def test_a_table_has_a_column_for_every_figure_and_reasons_at_the_end() -> None:
    rows = [Row("s", "a", {"x": 1.0, "is": "so"}), Row("s", "b", {"y": 1234.5}), Row("s", "c", failed="no")]
    lines = text(rows).splitlines()
    assert lines[0].split() == ["s", "x", "y"] and lines[2].split() == ["a", "1", "so"]
    assert lines[3].split() == ["b", "1234"] and lines[4].split() == ["c", "no"] and AGAIN.isdecimal()
