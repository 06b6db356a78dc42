"""Records as JSON, and tables."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.eval import tables
from gdt.eval.metrics import Metric
from gdt.eval.record import RANDOM, Record, read, settings_of, write
from gdt.eval.settings import Downstream
from gdt.eval.tables import build_tables, by_direction, few_videos, layout, table_lines, to_csv, to_latex
from gdt.train.settings import SIZES
from tests.tamper import edit_json

PROVENANCE = {
    "command": "gdt evaluate", "commit": "2c3d-dirty", "versions": {"torch": "2"}, "device": "cpu",
    "ranks": 1, "started": "2026",
}  # fmt: skip
ROW = Record(
    protocol="retrieval", model="mine", weights="ab12", checkpoint=Path("runs/a b/checkpoint.pt"), preset="e", step=600,
    seed=2, trained_on="unknown", pretraining=replace(SIZES["tiny"], preset="e", seed=2, steps=600, shards=Path("s")),
    dataset="mine", shards=Path("s"), data="0a1b", labels="77", fold=3, query_split="test", gallery=50, queries=20,
    short=1, classes=5, clips=10, metrics={"R@1": Metric(31.25, 20.0, 20), "R@5": Metric(100 / 3, 67.2, 20, 1.5)},
    details={"clips": "10"}, settings=settings_of(Downstream((Path("runs/a b"),), jobs=1)), provenance=PROVENANCE,
)  # fmt: skip


def test_records_survive_a_round_trip(tmp_path: Path) -> None:
    seen = replace(ROW, metrics={"moves": Metric(0.5, answers=9, bounds=(0.4, 0.7))}, notes=("short",))
    path = tmp_path / "records.json"
    for records in ([ROW], [ROW, replace(ROW, metrics={}), seen], []):
        write(path, records)
        assert read(path) == records
    assert ROW.settings_as(Downstream) == Downstream((Path("runs/a b"),), jobs=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"map": 1.0}, r"unknown: map"),
        ({"step": None}, r"step is None instead of int"),
        ({"pretraining": {"preset": "e"}}, r"missing: pretraining\.dataset, pretraining\.shards, .*"),
        ({"metrics": {"R@1": [2.0, "x", 1, 0.0, None]}}, r"metrics\.R@1 is 'x' instead of float"),
        (None, r"missing: queries, metrics"),
    ],
)
def test_records_of_another_version_are_refused(change: dict | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write(path, [ROW])
    left_out = () if change else ("queries", "metrics")
    edit_json(path, lambda row: {name: row[name] for name in row if name not in left_out} | (change or {}))
    with pytest.raises(UserError, match=rf"x\.json holds results of another version .* \({message}\); remove it, then"):
        read(path)


def test_single_results_have_intervals() -> None:
    other = replace(ROW, preset=RANDOM, metrics={"R@1": Metric(25.0, 20.0, 20), "R@5": Metric(100.0, 67.2, 20)})
    lines = table_lines(
        {"random weights": [other], "e": [ROW]}, "", {"paper: GDT": {"R@1": 62.8}, "others": {"mAP": 1.0}}
    )
    assert lines == [
        ["", "R@1", "R@5"],
        ["random weights", "25.0 (11.2-46.9)", "100.0 (83.9-100.0)"],
        ["e", "31.2 (15.4-53.1)", "33.3 (16.9-55.1)"],
        ["chance", "20.0", "67.2"],
        ["paper: GDT", "62.8", ""],
    ]
    assert layout(lines).splitlines()[1].split() == ["-" * 14, "-" * 16, "-" * 18]


def test_several_seeds_have_mean_and_interval() -> None:
    seeds = [replace(ROW, seed=k, metrics={"R@1": Metric(v, 20.0, 20)}) for k, v in enumerate((40.0, 10.0, 31.0))]
    lines = table_lines({"row e": seeds, "row l": [ROW]}, "% on val")
    assert lines[:2] == [["% on val", "R@1", "R@5"], ["row e", "27.0 (0.0-65.2)", ""]]
    assert lines[3] == ["chance", "20.0", "67.2"]


def test_wide_tables_are_split_by_columns() -> None:
    heads = ["% on test", *(f"R@{k}" for k in range(5))]
    lines = [heads, ["row", *(f"{k}.0 (10.0-20.0)" for k in range(5))], ["paper", "1.0", "", "", "", ""]]
    tables = layout(lines, 65).split("\n\n")
    assert [table.splitlines()[0].split()[3:] for table in tables] == [["R@0", "R@1", "R@2"], ["R@3", "R@4"]]
    assert ["paper" in table for table in tables] == [True, False] and "4.0 (10.0-20.0)" in tables[1]
    heads[-1] = ""
    assert layout(lines, 65).split("\n\n")[1].splitlines()[0].split() == ["%", "on", "test", "R@3"]
    assert len(layout(lines, 200).splitlines()) == 4 and "paper" in layout(lines, 200)


def test_a_model_of_other_splits_is_warned_of() -> None:
    changed = replace(ROW, dataset=ROW.pretraining.dataset)
    said = "warning: mine may have been pretrained on these queries: "
    for row, expected in ((changed, True), (ROW, False), (replace(changed, trained_on="others"), False)):
        (table,) = build_tables([row])
        assert any(note.startswith(said) for note in table.brief) == expected


def test_tables_as_latex_and_csv() -> None:
    lines = table_lines({"row e": [replace(ROW, metrics={"video to audio R@1": Metric(50.0, 1.0, 100)})]}, "% on test")
    assert lines[0][1] == "V→A R@1"
    both = [["%", "V→A R@1", "V→A R@5", "A→V R@1", "A→V R@5"], ["e", *"1234"], ["chance", *"5656"]]
    assert by_direction(both) == [["%", "R@1", "R@5"], ["e, V→A", *"12"], ["e, A→V", *"34"], ["chance", *"56"]]
    assert by_direction([["%", "R@1"], ["e", "1"]]) == [["%", "R@1"], ["e", "1"]]
    latex = to_latex(lines)
    assert latex.startswith("\\begin{tabular}{lr}") and r"\% on test" in latex and "V to A R@1" in latex
    (row,) = csv.DictReader(to_csv([replace(ROW, metrics={"R@1": ROW.metrics["R@1"]})]).splitlines())
    assert (row["model"], row["metric"], row["percent"], row["chance"]) == ("mine", "R@1", "31.2500", "20.0000")
    assert float(row["low"]) < 31.25 < float(row["high"]) and row["commit"] == "2c3d-dirty"
    assert row["data_checksum"] == ROW.data and "data" not in row


def test_random_weights_of_several_networks_are_named_by_their_runs() -> None:
    random = replace(ROW, model=RANDOM, preset=RANDOM)
    one = replace(random, weights="1" * 64, checkpoint=Path("runs/small/checkpoint.pt"))
    other = replace(random, weights="2" * 64, checkpoint=Path("runs/large/checkpoint.pt"))
    twin = replace(other, weights="3" * 64)
    (table,) = build_tables([one, other])
    assert list(table.groups) == ["random weights of small", "random weights of large"]
    (table,) = build_tables([one, other, twin])
    assert list(table.groups)[1:] == ["random weights (22222222)", "random weights (33333333)"]


@pytest.mark.parametrize(
    ("queries", "gallery", "chance", "expected"),
    [
        (50, 200, 10.0, []),
        (49, 200, 10.0, ["warning: only 49 queries: the 95 % intervals are wide; evaluate on more videos"]),
        (60, 4, 100.0, ["warning: R@5: 100 % for any model, as the gallery has 4 videos; evaluate on more videos"]),
    ],
)
def test_few_queries_or_a_small_gallery_are_warned_of(
    queries: int, gallery: int, chance: float, expected: list[str]
) -> None:
    metrics = {"R@1": Metric(30.0, 1.0, queries), "R@5": Metric(100.0, chance, queries)}
    row = replace(ROW, queries=queries, gallery=gallery, metrics=metrics)
    assert few_videos([row]) == expected
    assert build_tables([row])[0].brief[1:] == expected
    alike = few_videos([replace(row, classes=1)])
    assert not expected or alike == [expected[0].replace("the gallery has 4 videos", "there is one class")]


def test_rows_of_one_run_are_named_by_their_steps() -> None:
    """By a digest if those are the same."""
    early, late = (replace(ROW, weights=f"{k}" * 64, step=k * 100) for k in (1, 2))
    names = tables._names([early, late])
    assert sorted(names.values()) == [f"{ROW.model} (100 steps)", f"{ROW.model} (200 steps)"]
    names = tables._names([early, replace(late, step=100)])
    assert sorted(names.values()) == [f"{ROW.model} (11111111)", f"{ROW.model} (22222222)"]
