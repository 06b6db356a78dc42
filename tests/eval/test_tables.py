"""Lines of results, and tables as views of them."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from gdt.eval.metrics import Metric
from gdt.eval.results import RANDOM, RESULTS, Result, append, current, read
from gdt.eval.tables import Table, pivot, table_lines, to_latex, to_text, write_tables

ROW = Result(
    model="mine", weights="ab12", fold=0, fold_videos="f0", protocol="retrieval", version=6, label="", data="0a1b",
    query_split="test", words="", device="cpu", settings={"clips": 10, "modalities": ["video"]},
    checkpoint="runs/a b/checkpoint.pt",
    preset="e", seed=2, step=600, steps=600, videos=9600, tflop=3.0, seen=0, dataset="mine", shards="s", gallery=500,
    queries=200, classes=5,
    metrics={"R@1": Metric(31.25, 20.0, 200), "R@5": Metric(100 / 3, 67.2, 200, 1.5)},
    details={"clips": "10"}, provenance={"commit": "2c3d-dirty"},
)  # fmt: skip
RANDOM_ROW = replace(
    ROW, model=RANDOM, preset=RANDOM, weights="00", step=0, steps=0, videos=0, tflop=0.0,
    metrics={"R@1": Metric(25.0, 20.0, 200), "R@5": Metric(70.0, 67.2, 200)},
)  # fmt: skip


def footnotes(*rows: Result, by_row: bool = False) -> str:
    return "\n".join(pivot(rows, by_row)[0].footnotes)


def test_results_survive_a_round_trip(tmp_path: Path) -> None:
    bounded = replace(ROW, metrics={"moves": Metric(0.5, answers=9, bounds=(0.4, 0.7))}, details={})
    for each in (ROW, bounded):
        append(tmp_path / RESULTS, each)
    assert read(tmp_path / RESULTS) == [ROW, bounded] and read(tmp_path / "none") == []


def test_a_table_has_random_weights_first_and_chance_and_published_results_last() -> None:
    lines = table_lines({RANDOM: [RANDOM_ROW], "e": [ROW]}, "", {"paper: GDT": {"R@1": 62.8}, "others": {"mAP": 1.0}})
    assert lines == [
        ["", "R@1", "R@5"],
        [RANDOM, "25.0 (19.5-31.4)", "70.0 (63.3-75.9)"],
        ["e", "31.2 (25.2-38.0)", "33.3 (27.2-40.1)"],
        ["chance", "20.0", "67.2"],
        ["paper: GDT", "62.8", ""],
    ]
    assert to_text(lines).splitlines()[1].split() == ["-" * 14, "-" * 16, "-" * 16]
    (table,) = pivot([ROW, RANDOM_ROW])
    assert [line[0] for line in table.lines] == ["% on test", RANDOM, "mine", "chance"]
    assert table.title == "mine: 200 queries against 500 videos of 5 classes"


def test_folds_and_seeds_are_averaged() -> None:
    folds = [replace(ROW, fold=k + 1, metrics={"R@1": Metric(v, 20.0, 20)}) for k, v in enumerate((40.0, 10.0, 31.0))]
    (table,) = pivot(folds)
    assert table.lines[1] == ["mine", "27.0 (0.0-65.2)"] and "over folds" in table.footnotes[0]
    seeds = [replace(each, fold=0, seed=each.fold, model=f"e-{each.fold}", weights=str(each.fold)) for each in folds]
    (table,) = pivot(seeds, by_row=True)
    assert table.lines[:2] == [
        ["% on test", "videos seen", "compute", "R@1"], ["row e: video-audio", "9,600", "1.0x", "27.0 (0.0-65.2)"]
    ]  # fmt: skip
    assert "over seeds" in table.footnotes[0]


def test_rows_of_other_lengths_are_rows_of_their_own() -> None:
    """Equal videos and equal compute share a table."""
    longer = replace(ROW, step=1200, steps=1200, videos=19200, tflop=6.0, model="longer", weights="12")
    (table,) = pivot(
        [RANDOM_ROW, longer, ROW, replace(ROW, model="l", preset="l", weights="34", tflop=12.0)], by_row=True
    )
    assert [line[:3] for line in table.lines] == [
        ["% on test", "videos seen", "compute"], [RANDOM, "", ""], ["row e: video-audio", "9,600", "1.0x"],
        ["row l: video-audio, shift d, reversal i", "9,600", "4.0x"],
        ["row e: video-audio, 1,200 steps", "19,200", "2.0x"],
        ["chance", "", ""],
    ]  # fmt: skip


def test_data_sets_splits_labels_words_and_kinds_of_protocols_have_their_own_tables() -> None:
    """Results of several calls may lie in one folder, which the page shows; a repeated line counts once."""
    recall = replace(ROW, protocol="cross-modal", gallery=0, classes=0, metrics={"video to audio R@1": Metric(9.0)})
    others = [replace(ROW, label="weather"), replace(ROW, protocol="linear"), recall, replace(recall, words="x")]
    others += [replace(ROW, dataset="hmdb51", data="2c3d"), replace(ROW, query_split="val")]
    tables = pivot([ROW, *others, ROW])
    assert all([line[0] for line in table.lines[1:]] == ["mine", "chance"] for table in tables)
    assert [(next(iter(t.groups.values()))[0].protocol, t.title.count("weather")) for t in tables] == [
        ("cross-modal", 0), ("cross-modal", 0), *[("retrieval", 0)] * 3, ("retrieval", 1), ("linear", 0)
    ]  # fmt: skip


def test_a_table_averages_neither_earlier_labels_nor_earlier_settings() -> None:
    of_folds = [replace(ROW, fold=fold, fold_videos=f"{labels}{fold}") for labels in ("old", "new") for fold in (1, 2)]
    assert [row.fold_videos for row in current(of_folds)] == ["new1", "new2"]
    for before in ({"data": "other"}, {"settings": {"clips": 1, "modalities": ["video"]}}, {"device": "cuda"}):
        assert current([replace(ROW, model="other", **before), ROW]) == [ROW]
    beside = [replace(ROW, protocol="linear"), replace(ROW, label="weather"), replace(ROW, model="other"), ROW]
    assert current(beside) == beside


def test_weights_that_share_a_name_are_told_apart_and_of_runs_the_last_counts() -> None:
    before = replace(ROW, weights="cd34" * 16, metrics={"R@1": Metric(1.0, 20.0, 200)})
    (table,) = pivot([before, ROW])
    assert [line[0] for line in table.lines[1:3]] == ["mine (cd34cd)", "mine (ab12)"]
    (table,) = pivot([before, ROW], by_row=True)
    assert [line[3] for line in table.lines[1:]] == ["31.2 (25.2-38.0)", "20.0"]


def test_the_key_is_that_of_all_that_decides_a_result() -> None:
    others = [replace(ROW, **{name: "other"}) for name in ("model", "weights", "fold_videos", "label", "data", "words")]
    others += [replace(ROW, version=7), replace(ROW, fold=1), replace(ROW, settings={"clips": 1})]
    assert (
        len({row.key for row in (ROW, *others)}) == 10 and len({row.shared for row in others[:2]} | {ROW.shared}) == 1
    )
    assert replace(ROW, seen=3, metrics={}, details={}).key == ROW.key


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({}, "paper: GDT, K-400 (split 1)"),
        ({"query_split": "train"}, ""),
        ({"settings": {"gallery_split": "val"}}, ""),
        ({"gallery": 5000}, ""),
        ({"queries": 3000}, ""),
        (
            {"protocol": "finetune", "gallery": 1000, "settings": {"train_samples": 1000}},
            "SEVERE: GDT, K-400, 1,000 sam",
        ),
    ],
)
def test_published_results_stand_only_beside_the_official_videos(changes: dict, row: str) -> None:
    metrics = {"R@1": Metric(1.0), "finetune top-1": Metric(2.0)}
    ours = replace(ROW, dataset="ucf101", gallery=9537, queries=3783, metrics=metrics)
    (table,) = pivot([replace(ours, **changes)])
    published = [line[0] for line in table.lines if line[0].startswith(("paper", "SEVERE"))]
    assert len(published) == bool(row) and all(name.startswith(row) for name in published)


def test_wide_tables_are_split_by_columns() -> None:
    heads = ["% on test", *(f"R@{k}" for k in range(5))]
    lines = [heads, ["row", *(f"{k}.0 (10.0-20.0)" for k in range(5))], ["paper", "1.0", "", "", "", ""]]
    tables = to_text(lines, 65).split("\n\n")
    assert [table.splitlines()[0].split()[3:] for table in tables] == [["R@0", "R@1", "R@2"], ["R@3", "R@4"]]
    assert ["paper" in table for table in tables] == [True, False] and "4.0 (10.0-20.0)" in tables[1]
    assert len(to_text(lines, 200).splitlines()) == 4 and "paper" in to_text(lines, 200)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"queries": 49}, "warning: only 49 queries: the intervals are wide"),
        ({"metrics": {"R@20": Metric(100.0, 100.0, 200)}}, "warning: R@20: 100 % for any model, since the gallery is"),
        ({"seen": 24}, "mine was pretrained, without labels, on up to 24 queries"),
        ({"seen": -1}, "warning: mine may have been pretrained on queries"),
        ({"step": 300}, "mine: its run had done 300 of 600 steps"),
        (
            {"details": {"warning": "2 of 9 queries are of classes without gallery videos"}},
            "warning: 2 of 9 queries are of classes",
        ),
    ],
)
def test_what_would_mislead_has_a_footnote(change: dict, note: str) -> None:
    assert note not in footnotes(ROW) and note in footnotes(replace(ROW, **change))


def test_tables_as_latex_and_csv(tmp_path: Path) -> None:
    recall = replace(ROW, metrics={"video to audio R@1": Metric(50.0, 1.0, 100)})
    lines = table_lines({"row e": [recall]}, "% on test")
    assert lines[0][1] == "V→A R@1"
    latex = to_latex(lines)
    assert latex.startswith("\\begin{tabular}{lr}") and r"\% on test" in latex and "V to A R@1" in latex
    text = write_tables(tmp_path, [Table("a title", lines)], [recall])
    assert text.startswith("a title\n") and (tmp_path / "table.txt").read_text() == text + "\n"
    (row,) = csv.DictReader((tmp_path / "results.csv").read_text().splitlines())
    assert (row["model"], row["metric"], row["value"], row["chance"]) == (
        "mine",
        "video to audio R@1",
        "50.0000",
        "1.0000",
    )
    assert float(row["low"]) < 50 < float(row["high"]) and row["commit"] == "2c3d-dirty"
    assert row["settings"] == "clips 10; modalities video"
