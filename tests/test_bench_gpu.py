"""The GPU benchmark on a CPU: every section runs, and a failure does not affect the others."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as bench
from benchmarks.gpu import convolutions, device, section, smoke
from benchmarks.gpu.settings import IDEAS, SECTIONS, SIZES, Settings, Way, parse_arguments
from benchmarks.gpu.step import Step, batch_of, model_of, run_settings, tree_of
from benchmarks.gpu.table import Row, Rows, read, text
from gdt.common.errors import UserError
from gdt.pipeline.groups import take_rank
from tests.conftest import ROOT
from tests.train.test_fake_cuda import fake_cuda

TINY = ["--device", "cpu", "--size", "tiny"]
RUN = run_settings(parse_arguments(TINY), "l", 8)
CPU = torch.device("cpu")
EAGER = Way(bfloat16=False, compiled=False)


def tiny(out: Path) -> tuple[Settings, Path]:
    return parse_arguments([*TINY, "--out", str(out)]), out / "rows.jsonl"


def test_every_section_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in this process, except `ranks` and one row of `smoke`, which start others."""
    settings, path = tiny(tmp_path)
    monkeypatch.setattr(smoke, "synchronised", lambda settings, device: {})
    for name in SECTIONS:
        if name != "ranks":
            section.measure(name, settings, time.time() + 300)
    rows = read(path)
    assert {row.section.partition(":")[0] for row in rows} == set(SECTIONS) - {"ranks"}
    assert not [row for row in rows if row.failed]
    found = {row.what: row.values for row in rows}
    assert found["what is wrong"] == {"is": "nothing"} and found["driver"] == {"is": "needs a GPU"}
    assert found["all"]["times"] == 2 + 4 + 5 and float(found["all"]["off"]) < 1e-5
    assert float(found["8 clips in one pass"]["off"]) < 1e-5
    assert len(str(found["20 longest"]["is"]).splitlines()) == 20
    assert set(IDEAS) < set(found)
    # equivalent ways have equal losses
    for name in IDEAS:
        if IDEAS[name].same and "loss" in found[name]:
            assert found[name]["last loss"] == pytest.approx(found["best way, 8 clips"]["last loss"], rel=1e-3), name
    assert found["forward-per-branch"]["last loss"] == pytest.approx(found["gradient-caching"]["last loss"], rel=1e-3)
    assert "100 epochs x 240000 videos x 4 clips / (8 GPUs" in str(found["row l, 2 videos, as on each of 8"]["is"])
    written = text(rows)
    assert "350 clips/s on an H200" in written and all(row.what in written for row in rows)


@pytest.mark.slow
def test_command_writes_a_table(tmp_path: Path) -> None:
    """With the sections that start processes."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *TINY, "--sections", "smoke", "ranks", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    table = (tmp_path / "table.txt").read_text()
    assert done.stdout.endswith(f"{table}\ntable.txt is in {tmp_path}\n")
    machine, *checked, ranks = read(tmp_path / "rows.jsonl")
    assert (machine.section, ranks.section) == ("machine", "ranks")
    assert not [row for row in checked if row.failed]
    values = next(row.values for row in checked if row.what == "batch norm over ranks")
    assert (values["graphs"], values["graph breaks"]) == (1, 0)
    assert max(ranks.values[f"off, {norm}"] for norm in ("groups", "the whole batch")) < 1e-4
    assert "gloo, both on one device" in table


def throw(error: Exception) -> Any:
    raise error


def test_a_failed_row_has_its_reason_and_others_continue(tmp_path: Path) -> None:
    cleaned, path = [], tmp_path / "rows.jsonl"
    rows = Rows(path, "s", time.time() + 100, lambda: cleaned.append(1))
    for error in (UserError("no shards"), RuntimeError("CUDA out of memory")):
        assert rows(str(error), lambda error=error: throw(error)) is None
    assert rows("good", lambda: {"clips/s": 2.0}) == {"clips/s": 2.0}
    assert len(cleaned) == 3
    with pytest.raises(SystemExit):  # after a device error another process continues
        rows("device", lambda: throw(RuntimeError("illegal access\nmore")))
    expected = ["no shards", "out of memory: RuntimeError: CUDA out of memory", "", "RuntimeError: illegal access"]
    assert [row.failed for row in read(path)] == expected
    again = Rows(path, "s", time.time() + 100)  # it measures nothing twice
    assert again("good", lambda: throw(ValueError())) == {"clips/s": 2.0}
    assert again("no shards", lambda: throw(ValueError())) is None
    assert len(read(path)) == 4


HEAD = """
import os, sys, time
from benchmarks.gpu.settings import parse_arguments
from benchmarks.gpu.table import Rows
name, deadline, *arguments = sys.argv[1:]
rows = Rows(parse_arguments(arguments).out / "rows.jsonl", name, float(deadline))
def fail(): raise RuntimeError("an error of the device")
if name == "ideas": rows("fine", dict)
if name != "step": sys.exit()
"""
CRASHES = """
rows("first", lambda: {"a": 1.0})
rows("dies", lambda: os.kill(os.getpid(), 9))
rows("breaks", fail)
rows("last", lambda: {"a": 2.0})
"""
HANGS = "rows('hangs', lambda: time.sleep(600), {limit})"
FINE = ("ideas", "fine", "")
BROKEN: dict[str, tuple[str, dict[str, float], list[tuple[str, str, str]]]] = {
    "a process dies, and a device fails": (CRASHES, {}, [
        ("step", "first", ""), ("step", "dies", "ended with status -9; see {log}"),
        ("step", "breaks", "RuntimeError: an error of the device"), ("step", "last", ""), FINE,
    ]),
    "a section cannot start": ("sys.exit(3)", {}, [("step", "step", "ended with status 3; see {log}"), FINE]),
    "a row hangs": (HANGS.format(limit=4), {}, [
        ("step", "hangs", "stopped: took more than 4 s; see {log}"), FINE,
    ]),
    "time runs out": (HANGS.format(limit=600), {"GRACE": 0.5, "minutes": 0.1}, [
        ("step", "hangs", "stopped: out of time; see {log}"), ("ideas", "ideas", "skipped: no time left"),
    ]),
}  # fmt: skip
"""Failures: code of the section `step`, limits, and expected rows."""


@pytest.mark.parametrize("what", BROKEN)
def test_a_failure_fails_its_row_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    code, limits, expected = BROKEN[what]
    monkeypatch.setattr(bench, "COMMAND", [sys.executable, "-c", HEAD + code])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in limits.keys() - {"minutes"}:
        monkeypatch.setattr(bench, name, limits[name])
    printed: list[str] = []
    arguments = ["--out", str(tmp_path), "--sections", "step", "ideas", "--minutes", str(limits.get("minutes", 5))]
    table = bench.run([*TINY, *arguments], printed.append)
    rows = read(tmp_path / "rows.jsonl")
    expected = [(section, name, why.format(log=tmp_path / f"{section}.log")) for section, name, why in expected]
    assert [(row.section, row.what, row.failed) for row in rows] == expected
    assert all(str(row) in printed and row.failed in table for row in rows)


def test_every_row_of_smoke_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, path = tiny(tmp_path)
    rows = Rows(path, "smoke", time.time() + 300)
    checks = smoke.checks(settings, rows, CPU)
    names = [what for own in checks.values() for what in own]
    assert len(names) == len(set(names)) > 25
    good = smoke.Check(lambda: {"times": 1, "plain ms": 1.0, "off": 0.0})
    bad = smoke.Check(lambda: throw(RuntimeError("illegal access")))
    for failing in names:
        now = {  # rows that take no time; those that sum up others are real
            part: {
                what: bad if what == failing else one if what in ("all", "what is wrong") else good
                for what, one in own.items()
            }
            for part, own in checks.items()
        }
        monkeypatch.setattr(smoke, "checks", lambda *given, now=now: now)
        path.unlink(missing_ok=True)
        with pytest.raises(SystemExit):
            smoke.smoke(settings, rows, CPU)
        smoke.smoke(settings, rows, CPU)  # as the next process
        found = read(path)
        assert [row.what for row in found] == names
        assert [row.what for row in found if row.failed] == [failing]
        assert failing == names[-1] or found[-1].values["is"] == f"{failing}: RuntimeError: illegal access"


KILLED = """
import os, sys
from benchmarks.gpu import section, smoke
from benchmarks.gpu.settings import parse_arguments
one = smoke.Check(lambda: {"a": 1.0})
parts = {"machine": {"first": one, "dies": smoke.Check(lambda: os.kill(os.getpid(), 9))}, "steps": {"last": one}}
smoke.checks = lambda *given: parts
section.measure(sys.argv[1], parse_arguments(sys.argv[3:]), float(sys.argv[2]))
"""


def test_smoke_goes_on_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "COMMAND", [sys.executable, "-c", KILLED])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    bench.run([*TINY, "--out", str(tmp_path), "--sections", "smoke"], lambda text: None)
    _, *rows = read(tmp_path / "rows.jsonl")
    assert [(row.section, row.what, row.failed) for row in rows] == [
        ("smoke: machine", "first", ""),
        ("smoke: machine", "dies", f"ended with status -9; see {tmp_path / 'smoke.log'}"),
        ("smoke: steps", "last", ""),
    ]


def test_a_wrong_convolution_is_reported() -> None:
    class Flawed(torch.nn.Conv3d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1.1 * super().forward(x)

    shape = torch.Size([1, 8, 4, 8, 8])
    ways = {name: (kind(8, 8, 3, bias=False, device="meta"), shape) for name, kind in
            (("plain", torch.nn.Conv3d), ("folded", Flawed))}  # fmt: skip
    values = convolutions.measure(ways, 1, SIZES["tiny"], CPU)
    assert values["is"] == "WRONG: folded forward by 0.1, folded dgrad by 0.1, folded wgrad by 0.1"


def test_convolutions_of_the_paper_on_tensors_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, pairs = torch.device("cuda", 0), []

    def difference(found: torch.Tensor, right: torch.Tensor) -> float:
        pairs.append((found.shape == right.shape, found.device == right.device == gpu, found.dtype))
        return 0.0

    monkeypatch.setattr(convolutions, "difference", difference)
    monkeypatch.setattr(device, "synchronize", lambda device: None)
    by_shape = convolutions.trunk_convolutions(SIZES["paper"])
    every = [ways for same in by_shape.values() for ways in same]
    assert len(every) == 37 and sum("padded" in ways for ways in every) == 14
    with fake_cuda():
        for same in by_shape.values():
            convolutions.measure(same[0], len(same), SIZES["paper"], gpu)
        beyond = [float(smoke.one_pass(Settings(), gpu, n)["elements / 2**31"]) > 1 for n in (128, 256)]
    assert beyond == [False, True]
    assert set(pairs) == {(True, True, torch.bfloat16)}


def test_a_row_without_time_is_skipped(tmp_path: Path) -> None:
    assert Rows(tmp_path / "rows.jsonl", "s", time.time() - 1)("late", lambda: {"a": 1.0}) is None
    assert [row.failed for row in read(tmp_path / "rows.jsonl")] == ["skipped: no time left"]


def test_a_machine_without_a_gpu_is_refused(tmp_path: Path) -> None:
    """Also with the arguments as make hands them over."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    out = tmp_path / "a `b` $(c)"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--args", f"--out '{out}'"], cwd=ROOT, capture_output=True, text=True
    )
    assert (out / "rows.jsonl").is_file()
    assert done.returncode == 2
    assert done.stderr.startswith("error: torch finds no GPU") and "Traceback" not in done.stderr


def test_arguments_are_checked_and_bring_the_sections_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--sections", "steps"], ["--ideas", "magic"], ["--device", "tpu"], ["--size", "huge"]):
        with pytest.raises(SystemExit):
            parse_arguments(wrong)
        assert f"argument {wrong[0]}: invalid choice" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
    assert parse_arguments(["--sections", "training", "step"]).sections == ("machine", "shards", "step", "training")
    assert parse_arguments(["--minutes", "3", "--out", "x", "--ideas"]) == Settings(Path("x"), 3.0, ideas=())


@pytest.mark.parametrize("change", [{"padded": True}, {"folded": True}, {"padded": True, "folded": True}])
def test_padded_and_folded_convolutions_compute_the_same(change: dict[str, bool]) -> None:
    clips = batch_of(take_rank(tree_of(RUN).plan(0, 0), 0, 1), RUN, CPU).inputs["video"].floats()
    way = replace(EAGER, **change)
    plain, other = (model_of(one, RUN, CPU).train().video_network(clips) for one in (EAGER, way))
    assert (plain - other).norm() < 1e-5 * plain.norm()
    # also after a few updates: added channels have no gradient
    steps = [Step(one, RUN, CPU) for one in (EAGER, way)]
    losses = [[float(step().loss) for _ in range(4)] for step in steps]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


class Cuda:
    """A torch.cuda that records its calls, on a CPU."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Cuda:
            self.calls.append(name)
            return self

        return call

    def __enter__(self) -> Cuda:
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.append("end")


def test_streams_and_graphs_call_cuda_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = float(Step(EAGER, RUN, CPU)().loss)
    recorded, cuda = [], Cuda()
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append(stream))
    monkeypatch.setattr(device, "cuda", cuda)
    monkeypatch.setattr(device, "on_gpu", lambda device: True)
    assert float(Step(replace(EAGER, side_stream=True), RUN, CPU)().loss) == plain
    # audio starts after the event of the video, on its own stream, and is waited for
    calls = [call for call in cuda.calls if call != "Stream"]
    assert calls == ["current_stream", "record_event", "current_stream", "wait_event", "stream", "end", "wait_stream"]
    assert len(recorded) == 1
    step = Step(replace(EAGER, graph=True), RUN, CPU)
    step.warm_up(1)
    cuda.calls.clear()
    step()
    assert cuda.calls == ["replay"]


BARE = """
from benchmarks.gpu import stubs
stubs.SILENT = ("display_only",)
stubs.install_stubs(("tqdm", "json.dali", "json.dali.fn", "not_there", "not_there.too", "display_only", "numba"))
assert stubs.MISSING == {"json.dali", "json.dali.fn", "not_there", "not_there.too", "display_only"}
import json.dali.fn as fn
import not_there.too
from json.dali import pipeline_def
from display_only import bar

@pipeline_def
def graph(size):
    return fn.decode(size)

@pipeline_def(depth=2)
def other(size):
    return fn.decode(size)

bar(3).update()
for what in (lambda: graph(3), lambda: fn.decode(3), lambda: not_there.too.thing()):
    try:
        what()
    except ModuleNotFoundError as error:
        print(error)
"""


def test_a_missing_package_can_be_imported_and_fails_when_used() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "json.dali is not installed, and graph needs it",
        "json.dali is not installed, and json.dali.fn.decode needs it",
        "not_there is not installed, and not_there.too.thing needs it",
    ]


def test_table_has_a_column_per_number_and_failures_last() -> None:
    rows = [Row("s", "a", {"x": 1.0, "is": "so"}), Row("s", "b", {"y": 1234.5}), Row("s", "c", failed="no")]
    head, _, *lines = text(rows).splitlines()
    assert head.split() == ["s", "x", "y"]
    assert [line.split() for line in lines] == [["a", "1", "so"], ["b", "1234"], ["c", "no"]]
