"""Rows of results: as JSON and back, and laid out as tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eval.ablation import with_earlier
from eval.results import Result, from_json, table, to_json
from eval.retrieval import Accuracy
from pipeline.errors import UserError
from train.provenance import Provenance
from train.settings import SIZES

ROW = Result(
    checkpoint=Path("runs/a b/checkpoint.pt"), dataset="mine", preset="e", step=600, seed=2,
    gallery=50, queries=20, too_short=1, query_split="test", fold=3, classes=5, clips=10,
    recall={1: 31.25, 5: 100 / 3, 20: 99.9}, chance={1: 20.0, 5: 67.2, 20: 98.8},
    few_shot={1: Accuracy(12.5, 1.5), 5: Accuracy(18.04, 0.1)},
    random_weights=False, gallery_split="train", gallery_per_class=10, shots_seed=4,
    pretraining=replace(SIZES["tiny"][1], preset="e", seed=2, shards=Path("s")), data="0a1b",
    provenance=Provenance(
        "python -m eval frozen", "2c3d-dirty", {"torch": "2.13.0"}, "AMD EPYC", "2026-11-22T10:00:00+00:00"
    ),
)  # fmt: skip


def test_rows_come_back_as_they_were() -> None:
    other = replace(ROW, few_shot={})
    assert from_json(to_json(ROW)) == [ROW]
    (again, _) = rows = from_json(to_json([ROW, other]))
    assert rows == [ROW, other] and from_json(to_json([])) == []
    assert again.few_shot[5].mean == 18.04 and isinstance(again.checkpoint, Path)
    assert again.pretraining.clip.size == 32


def test_the_json_has_the_keys_that_readers_know() -> None:
    written = json.loads(to_json(ROW))
    assert written["recall"] == {"1": 31.25, "5": 100 / 3, "20": 99.9} and written["few_shot"]["5"] == [18.04, 0.1]
    assert written["checkpoint"] == "runs/a b/checkpoint.pt" and written["preset"] == "e"
    assert list(written)[:15] == [
        "checkpoint", "dataset", "preset", "step", "seed", "gallery", "queries", "too_short", "query_split", "fold",
        "classes", "clips", "recall", "chance", "few_shot",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"map": 1.0}, r"unknown: map"),
        ({"step": None}, r"step is None instead of int"),
        ({"recall": {"one": 1.0}}, r"recall is 'one' instead of int"),
        ({"recall": [1.0]}, r"recall is \[1\.0\] instead of a table"),
        ({"few_shot": {"1": [2.0]}}, r"few_shot\.1 is \[2\.0\] instead of a list of 2"),
        ({"random_weights": 0}, r"random_weights is 0 instead of bool"),
        ({"pretraining": {"preset": "e"}}, r"missing: pretraining\.dataset, pretraining\.shards, .*"),
        ({"few_shot": {"1": [2.0, "x"]}}, r"few_shot\.1 is 'x' instead of float"),
    ],
)
def test_rows_of_another_version_are_one_sentence(change: dict, message: str) -> None:
    changed = json.dumps(json.loads(to_json(ROW)) | change)
    with pytest.raises(UserError, match=rf"^x\.json holds results of another version .* \({message}\); evaluate"):
        from_json(changed, "x.json")


def test_a_row_without_a_number_is_one_sentence() -> None:
    values = json.loads(to_json(ROW))
    del values["recall"], values["chance"]
    with pytest.raises(UserError, match=r"\(missing: recall, chance\)"):
        from_json(json.dumps([values]))


def test_rows_whose_training_is_from_before_a_setting_are_read() -> None:
    values = json.loads(to_json(ROW))
    del values["pretraining"]["factors_from"], values["pretraining"]["loading"]["damaged"]
    assert from_json(json.dumps(values)) == [ROW]


def test_rows_from_before_there_was_a_provenance_are_read(tmp_path: Path) -> None:
    before = json.loads(to_json(ROW))
    del before["provenance"]
    before |= {"device": "cuda", "commit": "2c3d-dirty"}
    known = replace(ROW, provenance=Provenance("", "2c3d-dirty", {}, "cuda", ""))
    assert from_json(json.dumps(before)) == [known]
    path = tmp_path / "results.json"
    path.write_text(json.dumps([before]))
    assert with_earlier([replace(ROW, seed=7)], path) == [known, replace(ROW, seed=7)]
    for name, other in (("device", "commit"), ("commit", "device")):  # that with one of them alone is no row
        with pytest.raises(UserError, match=rf"unknown: {other}"):
            from_json(json.dumps({key: value for key, value in before.items() if key != name}))


def test_earlier_results_of_the_same_videos_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    assert with_earlier([ROW], path) == [ROW]
    kept, anew, elsewhere = replace(ROW, seed=7), replace(ROW, step=3), replace(ROW, seed=9, data="other")
    path.write_text(to_json([kept, anew, elsewhere]))
    assert with_earlier([ROW], path) == [kept, ROW]
    assert "1 earlier results in" in capsys.readouterr().out


def test_a_table_of_one_run_each() -> None:
    other = replace(ROW, recall={1: 5.0, 5: 6.04, 20: 100.0}, few_shot={1: Accuracy(7.0, 1.0), 5: Accuracy(8.0, 1.0)})
    expected = """\
                 R@1   R@5   R@20  1-shot  5-shot
-------------------------------------------------
random weights   5.0   6.0  100.0     7.0     8.0
e               31.2  33.3   99.9    12.5    18.0
chance          20.0  67.2   98.8    20.0    20.0"""
    assert table({"random weights": [other], "e": [ROW]}) == expected


def test_a_table_over_seeds_has_means_and_ranges() -> None:
    seeds = [
        replace(ROW, seed=seed, recall=dict.fromkeys(ROW.recall, value), few_shot={1: Accuracy(value / 2, 9.0)})
        for seed, value in enumerate((40.0, 10.0, 31.0))
    ]
    one = replace(ROW, few_shot={1: Accuracy(1.0, 0.0)})
    expected = """\
% on val               R@1               R@5              R@20           1-shot
-------------------------------------------------------------------------------
row e     27.0 (10.0-40.0)  27.0 (10.0-40.0)  27.0 (10.0-40.0)  13.5 (5.0-20.0)
row l                 31.2              33.3              99.9              1.0
chance                20.0              67.2              98.8             20.0"""
    assert table({"row e": seeds, "row l": [one]}, "% on val") == expected
