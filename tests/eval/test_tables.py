"""Tables as views of lines of results, and their statistics: against scipy, published numbers and counting."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from gdt.eval.comparison import bootstrap, compare, difference, mcnemar
from gdt.eval.metrics import Measured, Metric, over_seeds
from gdt.eval.results import RANDOM, Answers, Result, answers, current, write_answers
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
    for before in ({"data": "x"}, {"version": 5}, {"settings": ROW.settings | {"clips": 1}}, {"device": "cuda"}):
        assert current([replace(ROW, model="other", **before), ROW]) == [ROW]
    beside = [replace(ROW, protocol="linear"), replace(ROW, label="weather"), replace(ROW, model="other"), ROW]
    assert current(beside) == beside


def test_of_runs_that_share_a_name_the_last_counts() -> None:
    before = replace(ROW, weights="cd34" * 16, metrics={"R@1": Metric(1.0, 20.0, 200)})
    (table,) = pivot([before, ROW], by_row=True)
    assert [line[3] for line in table.lines[1:]] == ["31.2 (25.2-38.0)", "20.0"]


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({}, "paper: GDT, K-400 (split 1)"),
        ({"query_split": "train"}, ""),
        ({"settings": {"gallery_split": "val"}}, ""),
        ({"gallery": 5000}, ""),
        ({"queries": 3000}, ""),
        ({"protocol": "finetune", "gallery": 1000, "settings": {"train_samples": 1000}}, "SEVERE: GDT, K-400, 1,000"),
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
        ({"metrics": {"R@20": Metric(100.0, 100.0, 200)}}, "warning: R@20: 100 % for any model, since the gallery is"),
        ({"seen": 24}, "mine was pretrained, without labels, on up to 24 queries"),
        ({"seen": -1}, "warning: mine may have been pretrained on queries"),
    ],
)
def test_what_would_mislead_has_a_footnote(change: dict, note: str) -> None:
    (plain,), (table,) = pivot([ROW]), pivot([replace(ROW, **change)])
    assert note in "\n".join(table.footnotes) and note not in "\n".join(plain.footnotes)


def test_tables_as_latex_and_csv(tmp_path: Path) -> None:
    recall = replace(ROW, metrics={"video to audio R@1": Metric(50.0, 1.0, 100)})
    lines = table_lines({"row e": [recall]}, "% on test")
    assert lines[0][1] == "V→A R@1"
    latex = to_latex(lines)
    assert latex.startswith("\\begin{tabular}{lr}") and r"\% on test" in latex and "V to A R@1" in latex
    text = write_tables(tmp_path, [Table("a title", lines)], [recall])
    assert text.startswith("a title\n") and (tmp_path / "table.txt").read_text() == text + "\n"
    (row,) = csv.DictReader((tmp_path / "results.csv").read_text().splitlines())
    expected = {"model": "mine", "metric": "video to audio R@1", "value": "50.0000", "chance": "1.0000"}
    assert expected.items() <= row.items()
    assert float(row["low"]) < 50 < float(row["high"]) and row["commit"] == "2c3d-dirty"
    assert row["settings"] == "clips 10; modalities video"


@pytest.mark.parametrize(("right", "count"), [(0, 20), (7, 28), (28, 28), (1200, 3783)])
def test_interval_is_wilsons(right: int, count: int) -> None:
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    found = Metric(100 * right / count, 0.0, count).interval
    assert found == pytest.approx((100 * expected.low, 100 * expected.high))
    assert Metric(0.0, 0.0, 0).interval == (0.0, 100.0)  # no answers


def test_intervals_over_seeds_are_students() -> None:
    mean = over_seeds([Metric(v, 10.0, 200) for v in (60.0, 62.0, 64.0)])
    # by hand: standard deviation 2, standard error 2 / sqrt(3), t = 4.303 with 2 degrees of freedom
    assert (mean.value, mean.low, mean.high) == pytest.approx((62.0, 62 - 4.969, 62 + 4.969), abs=1e-3)
    same = over_seeds([Metric(60.0, 10.0, 200)] * 2)  # of 200 answers each: they agree by rounding to 0.5 points
    assert same.high - same.low == pytest.approx(2 * 12.706 * 0.5 / 12**0.5 / 2**0.5, abs=1e-3)
    assert over_seeds([Metric(1.0, 10.0, 200), Metric(99.0, 10.0, 200)]).interval == (0.0, 100.0)


@pytest.mark.parametrize(("n", "better"), [(6, 0.4), (40, 0.0), (300, 0.05), (2000, 0.05)])
def test_mcnemars_test_is_exact(n: int, better: float) -> None:
    """As the sum over all that is as unlikely."""
    rng = np.random.default_rng(n)
    one, two = rng.random(n) < 0.5 + better, rng.random(n) < 0.5
    wins, losses = int((one & ~two).sum()), int((two & ~one).sum())
    tail = sum(math.comb(wins + losses, k) for k in range(min(wins, losses) + 1)) / 2 ** (wins + losses)
    assert mcnemar(one, two) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(one, one) == 1.0
    assert difference(one, two) == pytest.approx((100 * (wins - losses) / n, mcnemar(one, two)))


@pytest.mark.parametrize("n", [12, 400])
@pytest.mark.parametrize("shift", [0.0, 0.03, 0.1])
def test_the_bootstrap_draws_queries_with_their_answers(n: int, shift: float) -> None:
    """As scipy's, whose resamples are of queries, for answers that are shares of twenty draws."""
    rng = np.random.default_rng(n)
    apart = np.clip(rng.binomial(20, 0.5 + shift, n) - rng.binomial(20, 0.5, n), -20, 20) / 20
    drawn = stats.bootstrap((apart,), np.mean, n_resamples=10_000, method="basic", rng=1).bootstrap_distribution
    expected = (np.abs(drawn - apart.mean()) >= abs(apart.mean()) - 1e-9).mean()
    assert bootstrap(apart) == pytest.approx(expected, abs=0.02) and bootstrap(apart) == bootstrap(apart)
    assert bootstrap(np.zeros(n)) == 1.0
    many = bootstrap(rng.normal(size=n))  # all different
    assert 0 < many <= 1


def test_few_answers_that_are_not_right_or_wrong_give_no_p() -> None:
    rng = np.random.default_rng(0)
    few = rng.normal(size=19)
    assert difference(few + 9, few).p is None and difference(few > 0, few > 0).p == 1
    more = rng.normal(size=20)
    assert difference(more + 9, more).p == pytest.approx(1 / 10_001)


def rows_of_folds(
    weights: str, values: dict[int, np.ndarray], shared: bool = False
) -> tuple[list[Result], dict[str, Answers]]:
    """A row with answers of R@1 by fold, of the same queries if they are `shared`."""
    model = RANDOM if weights == "00" else weights
    base = RANDOM_ROW if weights == "00" else ROW
    rows, known = [], {}
    for fold, right in values.items():
        metrics = {"R@1": Metric(100 * float(right.mean()), 20.0, len(right))}
        row = replace(base, model=model, weights=weights, fold=fold, metrics=metrics)
        rows.append(row)
        queries = 1000 * fold * (not shared) + np.arange(len(right), dtype=np.int32)
        known[row.key] = Answers(queries, {"R@1": right})
    return rows, known


def test_rows_are_compared_over_the_queries_of_all_folds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    right = {name: {fold: rng.random(60) < p for fold in (1, 2)} for name, p in (("00", 0.2), ("a", 0.5), ("b", 0.9))}
    every, known = [], {}
    for name, values in right.items():
        rows, own = rows_of_folds(name, values)
        every += rows
        known |= own
    (table,) = pivot(every, answers=known)
    joined = {name: np.concatenate([*values.values()]) for name, values in right.items()}
    found = table.comparisons["b", "R@1"]
    assert found == {name: difference(joined["b"], joined[other]) for name, other in (("first", "a"), ("random", "00"))}
    assert [*table.comparisons["a", "R@1"]] == ["random"]
    cells = {line[0]: line[1] for line in table.lines}
    assert cells["b"].endswith(")*†") and cells["a"].endswith(")†") and cells["chance"] == "20.0"
    assert "* differs from a, † differs from random weights: p < 0.05 on the same queries" in str(table)
    assert r")*$\dagger$" in to_latex(table.lines)
    write_tables(tmp_path, [table], every)
    lines = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    last = lines[-1]
    assert (last["model"], last["fold"]) == ("b", "2")
    assert float(last["p_first"]) == pytest.approx(found["first"].p, rel=0.1)
    assert float(last["above_random"]) == pytest.approx(found["random"].points, abs=1e-3)
    # the marks of a call without answers
    assert pivot(every)[0].lines[3][1] + "*†" == cells["b"]


def test_queries_that_folds_share_count_once() -> None:
    rng = np.random.default_rng(0)
    right = {name: {fold: rng.random(60) < p for fold in (1, 2)} for name, p in (("a", 0.5), ("b", 0.7))}
    (one, known), (two, others) = (rows_of_folds(name, values, shared=True) for name, values in right.items())
    found = compare({"a": one, "b": two}, known | others)["b", "R@1"]["first"]
    first, second = (np.mean([*right[name].values()], axis=0) for name in "ba")
    assert found.points == pytest.approx(100 * (first - second).mean())
    assert found.p == bootstrap(first - second)


def test_rows_are_compared_only_on_the_same_queries_and_folds() -> None:
    right = np.arange(40) < 30
    one, known = rows_of_folds("a", {1: right, 2: right})
    two, others = rows_of_folds("b", {1: ~right, 2: ~right})
    groups = {"a": one, "b": two}
    assert compare(groups, known | others)["b", "R@1"]["first"]
    assert compare(groups, known) == {}
    assert compare({"a": one, "b": two[:1]}, known | others) == {}
    moved = {key: replace(each, queries=each.queries + 1) for key, each in others.items()}
    assert compare(groups, known | moved) == {}


def test_answers_survive_a_round_trip_and_damaged_ones_are_missing(tmp_path: Path) -> None:
    queries = np.arange(2000)
    of = {"video to audio R@1": queries % 3 == 0, "1-shot": (queries % 20 / 20).astype(np.float32)}
    metrics = {name: Measured(Metric(1.0), values) for name, values in of.items()}
    write_answers(tmp_path, ROW.key, queries, metrics, None)
    found = answers(tmp_path, ROW.key)
    assert found is not None and np.array_equal(found.queries, queries)
    for name, values in of.items():
        assert found.values[name].dtype == values.dtype and np.array_equal(found.values[name], values)
    assert answers(tmp_path, RANDOM_ROW.key) is None
    (path,) = tmp_path.glob("answers/*.npz")
    assert path.stat().st_size < 5 * len(queries)
    path.write_bytes(path.read_bytes()[:-100])
    assert answers(tmp_path, ROW.key) is None
