"""Intervals and differences against scipy, published numbers and simulations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest

from gdt.eval.metrics import Metric, difference, over_seeds, share


@pytest.mark.parametrize(("right", "answers"), [(0, 20), (7, 28), (28, 28), (1200, 3783)])
def test_interval_is_wilsons(right: int, answers: int) -> None:
    expected = binomtest(right, answers).proportion_ci(method="wilson")
    found = Metric(100 * right / answers, 0.0, answers).interval
    assert found == pytest.approx((100 * expected.low, 100 * expected.high))


def test_share() -> None:
    assert share(np.array([True, False, True, True]), 25.0) == Metric(75.0, 25.0, 4)
    assert Metric(0.0, 0.0, 0).interval == (0.0, 100.0)  # no answers


def test_a_difference_on_few_queries_is_not_significant() -> None:
    """R@1 32.1 on 28 queries against 35.7 for random weights."""
    points, low, high = difference([Metric(100 * 9 / 28, 10.0, 28)], [Metric(100 * 10 / 28, 10.0, 28)])
    assert points == pytest.approx(-100 / 28) and low < -20 and high > 15


def test_difference_agrees_with_newcombe() -> None:
    """Newcombe (1998), table II, contrast 56/70 - 48/80, method 10: 0.0524 to 0.3339."""
    points, low, high = difference([Metric(80.0, 0.0, 70)], [Metric(60.0, 0.0, 80)])
    assert (points, low, high) == pytest.approx((20.0, 5.24, 33.39), abs=0.005)


def test_intervals_of_differences_have_95_percent_coverage() -> None:
    rng = np.random.default_rng(0)
    n, one, other, covered = 200, 0.6, 0.5, 0
    for _ in range(1000):
        a, b = rng.binomial(n, one), rng.binomial(n, other)
        _, low, high = difference([Metric(100 * a / n, 0, n)], [Metric(100 * b / n, 0, n)])
        covered += low <= 100 * (one - other) <= high
    assert 0.93 < covered / 1000 < 0.975


def test_differences_of_numbers_that_are_not_shares_use_their_bounds() -> None:
    one, other = Metric(500.0, bounds=(400.0, 600.0)), Metric(100.0, bounds=(90.0, 110.0))
    half = np.hypot(100, 10)
    assert difference([one], [other]) == pytest.approx((400, 400 - half, 400 + half))
    assert difference([one] * 2, [other]) == difference([one], [other])


def test_equal_folds_count_as_one_of_their_mean_size() -> None:
    folds = [Metric(65.0, 0.0, 90), Metric(65.0, 0.0, 110)]
    assert difference(folds, [Metric(50.0, 0.0, 100)]) == difference([Metric(65.0, 0.0, 100)], [Metric(50.0, 0.0, 100)])


def test_different_folds_or_seeds_widen_the_interval() -> None:
    """Against scipy's Welch test."""
    one, other = [40.0, 37.5, 66.2], [98.0, 100.0, 99.0, 99.5]
    found = difference([Metric(x, 0.0, 5000) for x in other], [Metric(x, 0.0, 5000) for x in one])
    expected = stats.ttest_ind(other, one, equal_var=False).confidence_interval(0.95)
    assert found == pytest.approx((np.mean(other) - np.mean(one), expected.low, expected.high))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_one_seed_against_several_is_significant_in_5_percent_without_a_difference(seeds: int) -> None:
    """With the variance of the several alone it was 8, 17 and 33 %."""
    rng = np.random.default_rng(0)

    def row(count: int) -> list[Metric]:
        return [Metric(value, 0.0, 3783) for value in 50 + 10 * rng.standard_normal(count)]

    intervals = [difference(row(1), row(seeds)) for _ in range(2000)]
    assert 0.035 < np.mean([low > 0 or high < 0 for _, low, high in intervals]) < 0.065


def test_seeds_that_agree_by_rounding_are_not_significant() -> None:
    """Two seeds each on 37 queries: without the variance of rounding it was 10 %."""
    rng = np.random.default_rng(0)

    def row() -> list[Metric]:
        return [Metric(100 * round(37 * rng.normal(0.5, 0.015)) / 37, answers=37) for _ in range(2)]

    intervals = [over_seeds(row(), row()) for _ in range(2000)]
    assert np.mean([low > 0 or high < 0 for _, low, high in intervals]) < 0.05
