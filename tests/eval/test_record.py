"""Records as JSON, tables and verdicts."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.eval import tables
from gdt.eval.ablation.compare import with_earlier
from gdt.eval.metrics import Metric
from gdt.eval.record import RANDOM, FactorResult, Record, read, settings_of, write
from gdt.eval.settings import Downstream
from gdt.eval.tables import build_tables, by_direction, few_videos, layout, table_lines, to_csv, to_latex, verdicts
from gdt.train.settings import SIZES, Pretrain
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
    seen = replace(
        ROW, metrics={"moves": Metric(0.5, answers=9, bounds=(0.4, 0.7))},
        factor=FactorResult("speed", "video", ("1", "2"), "distinctive", None, ""), notes=("short",),
    )  # fmt: skip
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


def test_earlier_results_of_the_same_videos_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    assert with_earlier([ROW], path) == ([ROW], [])
    kept, replaced, other = replace(ROW, seed=7), replace(ROW, step=3), replace(ROW, seed=9, data="other")
    write(path, [kept, replaced, other])
    assert with_earlier([ROW], path) == ([kept, ROW], [other])
    said = f"not in this table but kept in {tmp_path}/results-others.json: 1 earlier result (different videos)"
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"steps": 6}, "--steps was 6, now 600"),
        ({"batch_size": 32}, "video clips per step was 32, now 16"),
        ({"group_size": 8}, "--group-size was 8, now None"),
        ({"network": SIZES["paper"].network}, "--network.audio-stem was"),
        ({"preset": "l", "batch_size": 16}, "video clips per step was 64, now 16"),
    ],
)
def test_other_budgets_are_not_seeds_or_rows_of_one_table(
    change: dict, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    row = replace(ROW, pretraining=replace(ROW.pretraining, batch_size=16))
    other = replace(
        row, seed=7, pretraining=replace(row.pretraining, seed=7, **change), preset=change.get("preset", row.preset)
    )
    equal = replace(row, preset="l", seed=8, pretraining=replace(row.pretraining, preset="l", batch_size=4, seed=8))
    random = replace(row, preset=RANDOM, seed=9, pretraining=replace(row.pretraining, steps=6, seed=9))
    write(path, [other, equal, random])
    assert with_earlier([row], path) == ([equal, random, row], [other])
    said = f"not in this table but kept in {tmp_path}/results-others.json: 1 earlier result ({reason}"
    assert said in " ".join(capsys.readouterr().out.split())


def test_rows_of_one_equal_share_a_table_and_others_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, compute = tmp_path / "results.json", "compute: 16 videos per step, the FLOPs of 600 steps of row l"
    of_l = replace(ROW, preset="l", equal=compute, pretraining=replace(ROW.pretraining, preset="l", batch_size=16))
    of_e = replace(ROW, equal=compute, pretraining=replace(ROW.pretraining, batch_size=16, steps=2400))
    random = replace(ROW, preset=RANDOM, model=RANDOM)
    for equal in ("videos: 16 videos per step, 600 steps", compute.replace("600", "300"), ""):
        other = replace(of_l, seed=5, equal=equal)
        write(path, [of_e, other, random])
        assert with_earlier([of_l], path) == ([of_e, random, of_l], [other])
        write(path, [replace(other, preset="e"), of_e])
        assert with_earlier([of_l, random], path) == ([of_e, of_l, random], [replace(other, preset="e")])
        said = f"--equal was {equal or 'not given'}, now {compute}"
        assert said in " ".join(capsys.readouterr().out.split())


def test_rows_with_and_without_text_share_a_table(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    e, text, other = replace(ROW, words=""), replace(ROW, preset="text-b", words="1"), replace(ROW, words="2")
    for earlier, new, shared in ((text, e, True), (e, text, True), (text, other, False)):
        write(path, [earlier])
        assert with_earlier([new], path) == (([earlier, new], []) if shared else ([new], [earlier]))


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


def test_several_seeds_have_mean_and_range() -> None:
    seeds = [replace(ROW, seed=k, metrics={"R@1": Metric(v, 20.0, 20)}) for k, v in enumerate((40.0, 10.0, 31.0))]
    lines = table_lines({"row e": seeds, "row l": [ROW]}, "% on val")
    assert lines[:2] == [["% on val", "R@1", "R@5"], ["row e", "27.0 (10.0-40.0)", ""]]
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


def test_verdicts_on_the_difference_from_random_weights() -> None:
    random = replace(ROW, preset=RANDOM, metrics={"R@1": Metric(100 * 10 / 28, 10.0, 28)})
    same = replace(ROW, metrics={"R@1": Metric(100 * 9 / 28, 10.0, 28), "R@5": Metric(90.0, 50.0, 28)})
    better = replace(ROW, metrics={"R@1": Metric(100.0, 10.0, 28)})
    assert verdicts({RANDOM: [random], "same": [same], "better": [better]}) == [
        "R@1 of same: no significant difference from random weights (-3.6 points, 95 % CI -26.9 to +20.3)",
        "R@1 of better: 64.3 points above random weights (95 % CI +42.2 to +79.3)",
    ]
    assert verdicts({"same": [same]}) == []


def test_a_model_is_compared_with_its_own_random_weights() -> None:
    """Adding another model, whose random weights differ, changes nothing; several seeds are compared with theirs."""

    def pair(run: str, seed: int, value: float, random: float) -> tuple[Record, Record]:
        one = replace(ROW, model=run, checkpoint=Path(f"runs/{run}/checkpoint.pt"), seed=seed)
        one = replace(one, metrics={"R@1": Metric(value, 10.0, 200)})
        path = one.checkpoint.absolute()
        return one, replace(one, preset=RANDOM, checkpoint=path, metrics={"R@1": Metric(random, 10.0, 200)})

    (a, random_a), (other, random_other) = pair("a", 0, 18.5, 16.0), pair("l", 0, 52.0, 13.5)
    alone = verdicts({RANDOM: [random_other], "l": [other]})
    assert alone == ["R@1 of l: 38.5 points above random weights (95 % CI +29.7 to +46.4)"]
    said = verdicts({"random weights of a": [random_a], "random weights of l": [random_other], "a": [a], "l": [other]})
    assert said[1:] == alone and "(+2.5 points" in said[0]
    third, random_third = pair("l", 1, 50.0, 20.0)
    (both,) = verdicts({RANDOM: [random_a, random_other, random_third], "l": [other, third]})
    assert both.startswith("R@1 of l: 34.2 points above")  # 51.0 - 16.75


def test_random_weights_are_shared_by_models_with_the_same_networks(tmp_path: Path) -> None:
    """Their composition is read without running the file of its transformations."""
    code, ran = tmp_path / "mine.py", tmp_path / "ran"
    code.write_text(f"open({str(ran)!r}, 'w')\n")
    factors = "video:d time_shift:d:2 mine:d:2 modality:i:2:differs augmentation:i:1"
    own = replace(ROW.pretraining, preset=Pretrain.preset, factors=factors, factors_from=code)
    trained = replace(ROW, checkpoint=Path("own.pt"), pretraining=own, metrics={"R@1": Metric(50.0, 10.0, 200)})
    random = [
        replace(
            ROW, preset=RANDOM, seed=trained.seed, checkpoint=Path(f"{name}.pt"),
            pretraining=replace(ROW.pretraining, preset=name), metrics={"R@1": Metric(value, 10.0, 200)},
        )
        for name, value in (("a", 10.0), ("l", 20.0))
    ]  # fmt: skip
    for order in (random, random[::-1]):
        assert "30.0 points above" in verdicts({RANDOM: order, "own": [trained]})[0]
    assert not ran.exists()


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
