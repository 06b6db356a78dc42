"""`gdt study claim`: its data sets, its forecast, its runs, tables and picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from gdt.common.errors import UserError
from gdt.eval import command as evaluation
from gdt.eval.ablation import runs
from gdt.eval.downstream import downstream
from gdt.eval.metrics import Metric
from gdt.eval.record import RANDOM
from gdt.pipeline.shards.layout import INDEX, shard_folder
from gdt.studies import claim as study
from gdt.studies.claim import claim
from gdt.studies.claim_values import Value, picture, values_of
from gdt.studies.settings import MOMENTS, Claim
from gdt.train import command as training
from gdt.train.pretrain import pretrain
from tests.eval.test_record import ROW

ONCE = {"seeds": (0,), "batch_size": 2, "steps": 2, "clips": 1, "test_factors": "none", "jobs": 1}


def test_a_study_says_its_hours_runs_and_resumes(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[str] = []

    def run(arguments: Sequence[str], log: Path, *_: object) -> None:
        commands.append(arguments[0])
        log.touch()
        if arguments[0] == "pretrain":
            pretrain(training.settings_of(arguments[1:]))
        else:
            downstream(evaluation.settings_of(arguments[1:]))

    monkeypatch.setattr(runs, "run_command", run)
    monkeypatch.setattr(study, "_MEASURED", 3)
    monkeypatch.chdir(tmp_path)
    Path("data/shards").mkdir(parents=True)
    Path("data/shards/mine").symlink_to(shards)
    given = Claim("mine", rows=("e", "l"), **ONCE)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--rows is g l; add e, with which the others are compared"):
        replace(given, rows=("g", "l"))
    assert claim(replace(given, dry_run=True)).startswith("trained only the steps that were timed; ")
    assert not Path("runs/claim-mine/measured").exists()
    assert commands.count("pretrain") == 2
    # e and l at equal videos, and e at equal compute, for which row l is the same
    assert "3 runs left, 1 in parallel: about 0." in " ".join(capsys.readouterr().out.split())
    commands.clear()
    claim(replace(given, dry_run=True))
    assert not commands  # timed already
    claim(replace(given, dry_run=True, batch_size=3))
    assert commands.count("pretrain") == 2
    claim(replace(given, dry_run=True))
    commands.clear()
    assert "tables: runs/claim-mine/table.txt" in claim(given)
    assert commands == ["pretrain", "eval"] * 3
    assert {path.name for path in Path("runs/claim-mine/mine").glob("*-0")} == {"e-0", "l-0", "e-8steps-0"}
    text = Path("runs/claim-mine/table.txt").read_text()
    assert text.startswith("command: ") and "linear top-1" in text
    for equal in ("equal videos: 2 videos per step, 2 steps", "equal compute: 2 videos per step, the FLOPs of 2"):
        assert equal in text
    assert Image.open("runs/claim-mine/claim.png").width > 1000
    commands.clear()
    capsys.readouterr()
    Path("runs/claim-mine/mine/factors.json").write_text("of an earlier run, with --test-factors")
    claim(given)
    assert not commands and "0 runs left" in capsys.readouterr().out


def test_a_study_of_few_videos_measures_with_one_batch_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows can use different numbers of videos, which limits the default batch."""
    (tmp_path / "metrics.jsonl").write_text('{"clips_per_second": 6.0}\n' * 12)
    composition = SimpleNamespace(batch_size=3, clips_per_video=2)
    planned = SimpleNamespace(
        runs=[SimpleNamespace(row="e", folder=tmp_path, pretraining=SimpleNamespace(composition=composition))]
    )
    batches: list[tuple[int, int]] = []
    monkeypatch.setattr(study, "plan", lambda settings: planned)
    monkeypatch.setattr(study, "ablation", lambda each: batches.append((len(each.rows), each.batch_size)))
    seconds = study._measure(Claim("mine", rows=("e", "l")), study.DataSet("mine", ""), 0.0, tmp_path)
    assert batches == [(2, 0), (1, 3)] and seconds.step == {"e": 1.0}


def test_generated_data_sets_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def make(command: list[str], *_: object) -> None:
        made.append(command)
        if command[0] == "preprocess":
            folder = Path(command[-1])
            folder.mkdir(parents=True)
            (folder / INDEX).touch()

    monkeypatch.setattr(study, "run_command", make)
    monkeypatch.chdir(tmp_path)
    sets = study._sets(Claim(identity=(0.0, 0.04), set_seed=3, videos=2))
    for one in (*sets, *sets):
        study._make(one, tmp_path)
    evaluation._require_inputs(Claim())  # the study makes them
    with pytest.raises(UserError, match="there are no shards in data/shards/mine"):
        evaluation._require_inputs(Claim("mine"))
    assert [one.identity for one in sets] == ["0", "0.04"] and len({shard_folder(one.name) for one in sets}) == 2
    assert [each[0] for each in made] == ["generate", "preprocess"] * 2
    assert {"--identity=0.04", "--actions-per-video=3", "--seed=3", "--train=2", "--test=2"} < set(made[2])
    assert made[3][made[3].index("--dataset") + 1] == MOMENTS


def test_the_picture_has_a_line_per_row_over_the_identity() -> None:
    values = [
        Value(name, equal, row, seed, label, metric, value + more * (metric == "R@1") + seed, 0.0, 100.0)
        for equal in ("videos", "compute") for name, value in (("other", 1), ("a", 80), ("b", 20))
        for row, more in (("l", 9), (RANDOM, 0), ("e", 5)) for label in ("", "identity")
        for metric in ("R@1", "linear top-1") for seed in (-1, 1)
        if (name, row) != ("b", "e")
    ]  # fmt: skip
    figure = picture(values, {"a": "0", "b": "0.3"})
    assert len(figure.axes) == 6  # R@1 and probe of the class, and probe of the identity
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert list(lines["l"]) == [89.0, 29.0] and list(lines["e"]) == [85.0]
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["0", "0.3"]


def test_a_set_without_labels_has_values_and_a_picture() -> None:
    recall = replace(
        ROW, metrics={"video to audio R@1": Metric(9.0, 2.0, 50), "audio to video R@1": Metric(8.0, 2.0, 50)}
    )
    values = values_of("mine", "videos", [recall], [])
    assert [(each.metric, each.value) for each in values] == [("video to audio R@1", 9.0)]
    (axes,) = picture(values, {"mine": ""}).axes
    assert axes.get_ylabel().startswith("video to audio R@1") and axes.lines[0].get_ydata() == [9.0]
