"""Differences between rows of a table on the same queries: against scipy, and as marks and columns."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from gdt.eval.comparison import bootstrap, compare, difference, mcnemar
from gdt.eval.metrics import Measured, Metric
from gdt.eval.results import RANDOM, Answers, Result, answers, write_answers
from gdt.eval.tables import pivot, to_latex, write_tables
from tests.eval.test_tables import RANDOM_ROW, ROW


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
    assert (last["model"], last["fold"]) == ("b", "2") and float(last["p_first"]) == pytest.approx(
        found["first"].p, rel=0.1
    )
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
