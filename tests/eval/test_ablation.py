"""The ablation: which commands run, tables by label column, and differences between rows."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gdt.common.errors import UserError
from gdt.common.serialization import from_dict
from gdt.eval.ablation import runs
from gdt.eval.ablation.compare import compare_rows
from gdt.eval.ablation.runs import ablation, label_columns, plan
from gdt.eval.ablation.settings import Ablation
from gdt.eval.downstream import downstream
from gdt.eval.factors.evaluate import factors
from gdt.eval.factors.settings import Factors
from gdt.eval.factors.tables import factor_of, mean_over_seeds
from gdt.eval.metrics import Metric, over_seeds
from gdt.eval.record import RANDOM, Record, read
from gdt.eval.settings import Downstream
from gdt.pipeline.shards.index import Index
from gdt.train.checkpoint import load_model
from gdt.train.flops import training_flops
from gdt.train.pretrain import pretrain
from gdt.train.settings import Pretrain
from tests.eval.test_record import ROW
from tests.tamper import annotate

CUSTOM = "video:d modality:i:2:differs augmentation:i:1"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of an ablation, which run in this process."""
    commands: list[list[str]] = []

    def run(arguments: Sequence[str], log: Path, *_: object) -> None:
        commands.append(list(arguments))
        log.touch()
        command, kind = {
            "pretrain": (pretrain, Pretrain), "evaluate": (downstream, Downstream), "factors": (factors, Factors)
        }[arguments[0]]  # fmt: skip
        command(from_dict(kind, json.loads(arguments[1])))

    monkeypatch.setattr(runs, "run_command", run)
    return commands


def settings(shards: Path, out: Path, **values: object) -> Ablation:
    small = {"rows": ("a", "l"), "seeds": (1,), "steps": 2, "clips": 2, "jobs": 1, "test_factors": "none"}
    equal = {} if "equal" in values else {"equal": "clips", "clips_per_step": 8}
    return Ablation(shards=shards, out=out, **small | equal | values)  # type: ignore[arg-type]


def kinds(commands: Sequence[Sequence[str]]) -> list[str]:
    return [kind for kind, _ in commands]


def sent(commands: Sequence[Sequence[str]], kind: str, name: str) -> list[object]:
    """The values of a setting in the commands of a kind."""
    return [json.loads(text)[name] for each, text in commands if each == kind]


def columns(index: Index) -> Index:
    """The index with more label columns."""
    count = np.arange(len(index))
    own = {
        "parity": np.array(["even", "odd"], object)[count % 2], "file": index.id, "sort": index.label,
        "set": np.array(["all"] * len(index), object),
    }  # fmt: skip
    return replace(index, columns=own)


def test_finished_rows_are_not_run_again(
    done: list[list[str]], shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    first = settings(shards, tmp_path)
    summary = ablation(first)
    lines = summary.splitlines()
    assert len(lines) <= 23 and all(len(line) <= 100 or str(tmp_path) in line for line in lines)
    assert kinds(done) == ["pretrain", "evaluate"] * 2
    rows = ("random weights", "row a: V, TR ., TS .", "row l: AV, TR i, TS d", "chance")
    for name in (*rows, "a 11.8 / 44.6, l 27.1 / 61.4; compare"):
        assert name in (tmp_path / "table.txt").read_text().replace("\n  ", " ")
    results = read(tmp_path / "results.json")
    assert [(row.preset, row.protocol) for row in results] == [
        (preset, protocol) for preset in (RANDOM, "a", "l") for protocol in ("retrieval", "few-shot")
    ]
    # equal clips: 4 videos x 2 augmentations, 2 x 2 shifts x 2 directions
    assert [row.pretraining.batch_size for row in results] == [4] * 4 + [2] * 2
    assert (
        "8 video clips per step, 2 steps, seed 1" in summary.replace("\n  ", " ")
        and Image.open(tmp_path / "table.png").width > 200
    )
    done.clear()
    capsys.readouterr()
    assert ablation(first) == summary and not done
    assert "0 of 2 runs left" in capsys.readouterr().out
    # recall of the same runs
    recall = ablation(replace(first, label="recall"))
    assert kinds(done) == ["evaluate"] and "V→A R@1" in recall and "R@20" not in recall
    with pytest.raises(UserError, match="recall needs two modalities, and none of the rows a has two"):
        ablation(replace(first, rows=("a",), label="recall"))
    ablation(first)
    done.clear()
    path = tmp_path / "a-1" / "eval" / "results.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"step": 2', b'"stop": 2', 1))
    capsys.readouterr()
    assert ablation(first) == summary and kinds(done) == ["evaluate"] and path.read_bytes() == text
    assert f"{path} is damaged or of another version; it is computed again" in capsys.readouterr().out
    done.clear()
    (tmp_path / "results.json").write_bytes(b"[{}]")
    with pytest.raises(
        UserError, match=rf"^{tmp_path}/results.json holds results of another version .*; remove it, then rerun the"
    ):
        ablation(first)
    (tmp_path / "results.json").unlink()
    # a new row does not run the others again, a new evaluation does not train
    assert "row e" in ablation(replace(first, rows=("a", "l", "e"))) and kinds(done) == ["pretrain", "evaluate"]
    done.clear()
    ablation(replace(first, rows=("a",), clips=3))
    assert kinds(done) == ["evaluate"]
    done.clear()
    ablation(replace(first, rows=("a",), steps=3))
    assert kinds(done) == ["pretrain", "evaluate"]
    # what pretraining would refuse to resume is refused before the first run starts
    done.clear()
    out = re.escape(str(tmp_path))
    capsys.readouterr()
    for other, message in (
        (
            replace(first, rows=("e", "l"), clips_per_step=16),
            r"e-1 .* different settings \(batch_size was 8, now 16\); set --o",
        ),
        (
            replace(first, rows=("a",)),
            r"a-1 .* different settings \(steps was 3, now 2\); set --out to another folder, use the same settings, or",
        ),
    ):
        with pytest.raises(UserError, match=rf"^{out}/{message}"):
            ablation(other)
        assert not done
    # unless it is to be replaced, also if it is damaged
    again, checkpoint = replace(first, rows=("a",), overwrite=True), tmp_path / "a-1" / "checkpoint.pt"
    for _ in range(2):
        ablation(again)
        assert kinds(done) == ["pretrain", "evaluate"] and sent(done, "pretrain", "overwrite") == [True]
        done.clear()
        ablation(replace(again, overwrite=False))
        assert not done and load_model(checkpoint).step == 2
        (tmp_path / "a-1" / "done.json").unlink()
        checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    capsys.readouterr()
    monkeypatch.setattr(runs, "fingerprint", lambda _: "another")
    with pytest.raises(
        UserError, match=rf"^{out}/a-1 holds a run with different shards; set --out to another folder, use the same "
    ):
        ablation(first)
    assert not done and not any(capsys.readouterr())  # no bar either


def test_all_label_columns_are_compared(
    done: list[list[str]], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled = columns(Index.open(shards))
    monkeypatch.setattr(runs.Index, "open", lambda *_: labelled)
    monkeypatch.setattr("gdt.eval.subjects.open_index", lambda *_: labelled)
    both = settings(shards, tmp_path, rows=("e", CUSTOM), seeds=(0, 1), protocols=("retrieval", "linear"))
    summary = ablation(both)
    text = (tmp_path / "table.txt").read_text()
    assert kinds(done) == ["pretrain", "evaluate"] * 4
    assert sent(done, "pretrain", "preset")[:2] == ["e", "l"] and sent(done, "pretrain", "factors")[:2] == ["", CUSTOM]
    assert {*sent(done, "evaluate", "label")} == {"label,parity"}
    (heads,) = (line for line in text.splitlines() if line.startswith("R@1, % on test"))
    assert heads.split()[-2:] == ["class", "parity"] and CUSTOM in text
    printed = [line for line in summary.splitlines() if "% on test" in line]
    assert printed[0].replace("% on test", "").split() == ["clips", "TFLOP", "R@1", "linear", "top-1"]
    assert printed[1:] == [heads]
    with (tmp_path / "differences.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["label"], row["row"], row["seeds"]) for row in rows} == {
        (label, row, "2") for label in ("label", "parity") for row in ("e", CUSTOM)
    }


def test_ids_constants_and_duplicates_are_not_label_columns(index: Index) -> None:
    assert label_columns(columns(index), "test") == ("label", "parity")  # not an id, one value, or the classes again
    assert label_columns(replace(index, label=np.full(len(index), "", object)), "test") == ()
    moved = replace(columns(index), split=np.where(index.split == "train", "val", index.split).astype(object))
    assert [runs._gallery(Ablation(), each) for each in (index, moved)] == ["train", "val"]
    assert label_columns(moved, "test", "val") == ("label", "parity") and label_columns(moved, "test") == ()


def test_videos_without_labels_or_without_sound(
    done: list[list[str]], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Index.open(shards)
    plain = replace(plain, label=np.full(len(plain), "", object), columns={})
    monkeypatch.setattr(runs.Index, "open", lambda *_: plain)
    monkeypatch.setattr("gdt.eval.subjects.open_index", lambda *_: plain)
    summary = ablation(settings(shards, tmp_path, rows=("a", "e")))
    assert kinds(done) == ["pretrain", "pretrain", "evaluate"] and "V→A R@1" in summary and "row a" not in summary
    with pytest.raises(UserError, match="has no labels in the splits train and test, and none of the rows a has two"):
        ablation(settings(shards, tmp_path, rows=("a",)))
    with pytest.raises(UserError, match="--gallery-per-class has no effect on recall between modalities; remove it"):
        ablation(settings(shards, tmp_path, rows=("a", "e"), gallery_per_class=2))
    split = plain.split.copy()
    split[np.flatnonzero(split == "test")[4:]] = "train"
    monkeypatch.setattr(runs.Index, "open", lambda *_: replace(plain, split=split))
    with pytest.raises(UserError, match=r"has only 4 videos, but factors are tested on 5 or more; set --test-factors"):
        ablation(settings(shards, tmp_path, rows=("a", "e"), test_factors="first"))
    silent = replace(plain, mel_count=np.zeros_like(plain.mel_count))
    monkeypatch.setattr(runs.Index, "open", lambda *_: silent)
    with pytest.raises(UserError, match="have no sound, which these rows need: e l; set --rows a$"):
        ablation(settings(shards, tmp_path, rows=("a", "e", "l")))


def test_fold_1_is_evaluated_and_changed_labels_again(
    done: list[list[str]], shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shards"
    shutil.copytree(shards, folder, copy_function=shutil.copy)
    index, swapped = Index.open(folder), {"train": "test", "test": "train"}
    annotate(folder, folds=[f"{split},{swapped.get(split, split)}" for split in index.split])
    given = settings(folder, tmp_path / "out", rows=("a",), label="label")
    ablation(given)
    table = (tmp_path / "out" / "table.txt").read_text()
    assert (
        table.startswith("equal clips: 8 video clips per step, 2 steps\n% on test, fold 1")
        and "12 queries against a gallery of 24 videos, 3 classes" in table
    )
    before = read(tmp_path / "out" / "results.json")
    assert {(row.fold, row.queries, row.trained_on) for row in before} == {(1, 12, "others")}

    annotate(folder, label=[min(label, index.classes[1]) for label in index.label])
    capsys.readouterr()
    done.clear()
    ablation(given)
    printed = capsys.readouterr().out
    assert kinds(done) == ["evaluate"] and "the labels of 1 evaluated run have changed; evaluating again" in printed
    others = tmp_path / "out" / "results-others.json"
    left_out = f"not in this table but kept in {others}: 4 earlier results (different labels)"
    assert left_out in " ".join(printed.split())
    assert "3 classes" not in (tmp_path / "out" / "table.txt").read_text()
    assert read(others) == before
    assert [row.classes for row in read(tmp_path / "out" / "results.json")] == [2] * 4
    done.clear()
    ablation(given)
    assert not done and "have changed" not in capsys.readouterr().out

    # the other fold tests the videos that pretraining has used
    text = downstream(Downstream((tmp_path / "out" / "a-1",), clips=1, protocols=("retrieval",), out=tmp_path / "eval"))
    assert "a-1 was pretrained, without labels, on up to 24 of 24 queries of fold 2" in text
    rows = [row for row in read(tmp_path / "eval" / "results.json") if row.preset != RANDOM]
    assert [(row.fold, row.trained_on, row.seen) for row in rows] == [(1, "others", 0), (2, "these", 24)]


def test_another_body_of_a_custom_factor_is_another_run(
    done: list[list[str]], shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "own.py"
    source = (
        "from gdt.pipeline.transformations.time_reversal import TimeReversal\nclass Own(TimeReversal): name = 'own'"
    )
    code.write_text(source)
    row = "video:d own:d:2 augmentation:i:2"
    given = settings(shards, tmp_path / "out", rows=(row,), label="label", factors_from=code)
    ablation(given)
    first = {each.pretraining.factors_digest for each in read(tmp_path / "out" / "results.json")}
    code.write_text(f"{source}  # changed")
    done.clear()
    capsys.readouterr()
    ablation(given)
    assert kinds(done) == ["pretrain", "evaluate"]
    assert "compositions that cannot be read again (" in " ".join(capsys.readouterr().out.split())
    assert first.isdisjoint(each.pretraining.factors_digest for each in read(tmp_path / "out" / "results.json"))


def test_bad_settings(tmp_path: Path, shards: Path) -> None:
    for wrong, message in (
        ({"rows": ("L",)}, "unknown preset 'L'; did you mean 'l'"),
        ({"rows": ("e,l",)}, "unknown preset 'e,l'; separate several by spaces"),
        ({"rows": ("e", "video:d", "modality:i:2")}, "'video:d' is only a part of a composition; put quotes around"),
        (
            {"equal": "videos", "batch_size": 25},
            "--batch-size is 25, but row a can use only 24 videos; set it to 24 or",
        ),
        (
            {"clips_per_step": 52, "rows": ("l", "a")},
            "--clips-per-step is 52, but row a can use only 24 videos; set it to 48",
        ),
        ({"clips_per_step": 4}, "--clips-per-step is 4; set it to 8 or more, the minimum for two"),
        ({"equal": "videos", "group_size": 3}, "16 videos per batch do not make whole groups of --group-size 3 "),
        ({"label": "colour"}, "unknown column 'colour'"),
        (
            {"equal": "clips", "batch_size": 8},
            "--batch-size has no effect with --equal clips; set --clips-per-step, or",
        ),
    ):
        with pytest.raises(UserError, match=message):
            ablation(settings(shards, tmp_path, **wrong))


def test_a_repeated_seed_or_row_is_one_run(shards: Path, tmp_path: Path) -> None:
    assert len(plan(settings(shards, tmp_path, rows=("a", "l", "a"), seeds=(1, 0, 1))).runs) == 4


def test_a_split_without_videos_is_refused_before_training(
    tmp_path: Path, shards: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split, folds, message in (
        ("test", "", "has no videos in the split 'train', which rows train on"),
        ("train", "", r"has no held-out videos \(split 'test'\); repeat 'gdt preprocess' with --test 0.1"),
        ("train", "train,test", "has no held-out videos .* more of the videos on its official lists"),
    ):
        every = {"split": np.full(len(index), split, object), "folds": np.full(len(index), folds, object)}
        monkeypatch.setattr(Index, "open", lambda _, every=every: replace(index, **every))
        with pytest.raises(UserError, match=message):
            plan(settings(shards, tmp_path, test_factors="none"))


def metric(value: float) -> Metric:
    return Metric(value, 10.0, 200)


def test_differences_over_seeds_use_welch() -> None:
    one, other = [metric(v) for v in (60.0, 62.0, 64.0)], [metric(v) for v in (50.0, 50.0, 53.0)]
    points, low, high = over_seeds(one, other)
    # by hand: variances 4 and 3, standard error sqrt(7 / 3), 3.92 degrees of freedom, t = 2.799
    assert points == pytest.approx(11.0) and (high - low) / 2 == pytest.approx(4.275, abs=0.01)
    assert (low + high) / 2 == pytest.approx(points)


def test_the_matrix_marks_significant_differences() -> None:
    rows = [
        replace(ROW, preset=preset, seed=seed, metrics={"R@1": metric(value + seed)})
        for preset, value in (("a", 20.0), ("e", 60.0), ("l", 60.5))
        for seed in range(3)
    ]
    comparison = compare_rows(rows, ("label",))
    assert "+40.0*" in comparison.text and "+0.5" in comparison.text and "2 of 3 pairs" in comparison.text
    assert [each.is_significant for each in comparison.differences if each.row == "l"] == [True, False]
    assert json.dumps(comparison.differences[0].points) == "-40.0"
    probes = [replace(row, protocol="linear", metrics={"linear top-1": row.metrics["R@1"]}) for row in rows]
    both = compare_rows([*rows, *probes], ("label",))
    assert "2 of 3 pairs of rows differ significantly in linear top-1" in both.summary and len(both.tables) == 3


def test_label_columns_are_compared_by_the_first_metric() -> None:
    """The linear probe's if it is the only protocol."""
    rows = [
        replace(ROW, protocol="linear", preset=preset, label=name, metrics={"linear top-1": metric(40.0)})
        for preset in ("a", "e") for name in ("", "parity")
    ]  # fmt: skip
    lines = compare_rows(rows, ("label", "parity")).tables[1]
    assert lines[0] == ["linear top-1, % on test, fold 3", "class", "parity"] and len(lines) == 4


def test_rows_with_and_without_text_have_their_own_tables() -> None:
    """As in the report: they are evaluated on other videos."""
    rows = [
        replace(ROW, preset=preset, words=words, label="") for preset, words in (("e", ""), ("l", ""), ("three", "x"))
    ]
    comparison = compare_rows(rows, ())
    plain, matrix, text = comparison.tables
    assert [len(table) for table in (plain, text)] == [4, 3] and text[1][0].startswith("three: ")
    assert matrix[0][1:] == ["- e", "- l"] and {each.row for each in comparison.differences} == {"e", "l"}
    assert comparison.summary.count("chance") == 2
    alone = compare_rows([*rows[:2], replace(rows[2], preset=RANDOM)], ())  # random weights of an earlier ablation
    assert alone.tables == [plain, matrix]


def test_a_single_seed_has_the_variance_of_the_other_row() -> None:
    def row(preset: str, *values: float) -> list[Record]:
        return [
            replace(ROW, preset=preset, seed=seed, metrics={"R@1": Metric(value, 10.0, 4000)})
            for seed, value in enumerate(values)
        ]

    several = [*row("a", 40.0, 44.0, 48.0), *row("e", 58.0), *row("l", 90.0)]
    comparison = compare_rows(several, ("label",))
    cells = {(each.row, each.other): each for each in comparison.differences}
    near, far, untested = cells["e", "a"], cells["l", "a"], cells["l", "e"]
    # t = 4.303 with 2 degrees of freedom, standard deviation 4, its variance 4/3 times for one seed against three
    assert (near.high - near.points, near.is_significant) == (
        pytest.approx(4.303 * 4 * (4 / 3) ** 0.5, abs=0.01),
        False,
    )
    assert far.is_significant and not untested.is_significant and untested.low > 0
    text = " ".join(comparison.text.split())  # its lines are wrapped
    assert "1 of 2 pairs of rows differ significantly in R@1; 1 pair of rows with one seed each is not tested" in text
    assert "in brackets lowest and highest seed; of row e, row l (one seed) 95 % intervals over queries" in text
    for values, differ in (((41.0, 45.0), "do not differ"), ((90.0, 91.0), "differ")):
        two = compare_rows([*row("a", 40.0, 44.0), *row("e", *values)], ("label",))
        assert f"; the two rows {differ} significantly in R@1" in " ".join(two.text.split())
    alone = compare_rows([*row("a", 40.0), *row("e", 90.0)], ("label",))
    assert "*" not in alone.text and "in brackets 95 % intervals over queries" in " ".join(alone.text.split())


def test_factors_of_several_seeds_are_averaged(done: list[list[str]], shards: Path, tmp_path: Path) -> None:
    summary = ablation(settings(shards, tmp_path, rows=("a",), test_factors="first"))
    assert kinds(done) == ["pretrain", "evaluate", "factors"] and Image.open(tmp_path / "factors.png").width > 400
    assert "promises of the compositions (features encode" in summary
    found = read(tmp_path / "factors.json")
    assert {row.model for row in found} == {"a"}
    one = found[1]
    distance, accuracy = one.metrics["trunk distance"], one.metrics["trunk accuracy"]
    changed = {
        "trunk distance": Metric(
            distance.value + 1, answers=distance.answers, bounds=(distance.low + 1, distance.high + 1)
        ),
        "trunk accuracy": accuracy._replace(value=accuracy.value + 4),
    }
    other = replace(one, seed=5, metrics=one.metrics | changed, factor=replace(factor_of(one), kept=False))
    first, mean, *_ = mean_over_seeds([*found, replace(found[0], seed=5), other, *found[2:]])
    assert first == found[0]
    assert factor_of(mean).kept is (None if factor_of(one).kept is None else False)
    assert mean.metrics["trunk accuracy"].value == pytest.approx(accuracy.value + 2)
    between = mean.metrics["trunk distance"]
    assert (between.value, *between.interval) == pytest.approx((distance.value + 0.5, distance.low, distance.high + 1))


def test_steps_are_adjusted_to_the_flops_of_row_l(shards: Path, tmp_path: Path) -> None:
    planned = plan(settings(shards, tmp_path, rows=("a", "e", "g", "l"), equal="compute", batch_size=2, steps=300))
    assert planned.equal == "compute: 2 videos per step, the FLOPs of 300 steps of row l"
    # leaves of both modalities: 1 per video in row e, 2 in g, 4 in l; row a has 2 of the video only
    run = planned.runs[0]
    leaf = training_flops(run.pretraining.network, run.pretraining.clip, run.bands, ("video", "audio"))
    of_a = round(300 * 4 * sum(leaf.values()) / (2 * leaf["video"]))
    names = [run.folder.name for run in planned.runs]
    assert 600 < of_a < 1200 and names == [f"a-{of_a}steps-1", "e-1200steps-1", "g-600steps-1", "l-1"]
    default = plan(settings(shards, tmp_path, equal="videos", steps=0))
    assert default.equal == "videos: 16 videos per step, 600 steps" and default.runs[0].folder.name == "a-1"


def test_a_default_is_lowered_to_the_videos_for_all_rows(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.open(shards)
    order = np.cumsum(index.split == "train")
    few = replace(index, split=np.where((index.split == "train") & (order > 14), "val", index.split).astype(object))
    monkeypatch.setattr(runs.Index, "open", lambda *_: few)
    only, default = "but row e can use only 14 videos", {"batch_size": 0, "clips_per_step": 0}
    for equal, rows, sizes, lowered in (
        ("videos", ("e", "l"), [14, 14], f"batch_size 14 (default 16, {only})"),
        ("compute", ("e", "l"), [14, 14], f"batch_size 14 (default 16, {only})"),
        ("clips", ("e", "a"), [14, 7], f"clips_per_step 14 (default 64, {only})"),
        ("clips", ("e", "l"), [12, 3], f"clips_per_step 12 (default 64, {only})"),
        ("clips", ("l",), [14], "clips_per_step 56 (default 64, but row l can use only 14 videos)"),
    ):
        planned = plan(settings(shards, tmp_path, rows=rows, equal=equal, **default))
        assert ([run.pretraining.batch_size for run in planned.runs], planned.lowered) == (sizes, lowered)
        assert f"{lowered.split()[1]} video" in planned.equal
    few = replace(few, split=np.where(order > 7, "val", few.split).astype(object))
    with pytest.raises(
        UserError,
        match=r"row e .* only 7 videos, too few to fill a step of 8 clips, the minimum for two videos of row l; add",
    ):
        plan(settings(shards, tmp_path, rows=("e", "l"), equal="clips"))


def test_equal_videos_and_compute_share_runs_but_no_table(
    done: list[list[str]], shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = settings(
        shards,
        tmp_path,
        rows=("e", "l"),
        equal="videos",
        batch_size=2,
        label="label",
        protocols=("retrieval",),
        clips=1,
    )
    summary = ablation(videos)
    assert summary.startswith("\nequal videos: 2 videos per step, 2 steps\n")
    spent = {row.preset: (row.step, row.pretraining.batch_size, row.tflop) for row in read(tmp_path / "results.json")}
    assert spent["e"][:2] == spent["l"][:2] == (2, 2) and spent[RANDOM][2] == 0
    assert spent["l"][2] == pytest.approx(4 * spent["e"][2])
    table = (tmp_path / "table.txt").read_text()
    assert table.startswith("equal videos: 2 videos per step, 2 steps\n")
    for text in (table, summary):
        clips = [re.search(rf"^row {name}: .*?  (\d+) +[\d.]+  ", text, re.M) for name in "el"]
        assert "clips    TFLOP" in text and [found and found[1] for found in clips] == ["4", "16"]
    done.clear()
    capsys.readouterr()
    compute = replace(videos, equal="compute")
    assert ablation(compute).startswith("\nequal compute: 2 videos per step, the FLOPs of 2 steps of row l\n")
    # row l is not trained again; row e takes more steps, in a folder of its own
    assert sent(done, "pretrain", "out") == [str(tmp_path / "e-8steps-1")]
    assert "--equal was videos: 2 videos per step, 2 steps, now compute: 2 videos" in capsys.readouterr().out
    records = read(tmp_path / "results.json")
    assert {row.equal[:7] for row in records} == {"compute"}
    assert [row.tflop for row in records if row.preset != RANDOM] == pytest.approx([spent["l"][2]] * 2)
    done.clear()
    ablation(videos)
    assert not done and {row.equal[:6] for row in read(tmp_path / "results.json")} == {"videos"}
