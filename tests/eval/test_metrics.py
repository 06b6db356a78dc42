"""Intervals and differences against scipy, published numbers and simulations."""

import numpy as np
import pytest
from scipy.stats import binomtest

from gdt.eval.metrics import Metric, measured, over_seeds


@pytest.mark.parametrize(("right", "answers"), [(0, 20), (7, 28), (28, 28), (1200, 3783)])
def test_interval_is_wilsons(right: int, answers: int) -> None:
    expected = binomtest(right, answers).proportion_ci(method="wilson")
    found = Metric(100 * right / answers, 0.0, answers).interval
    assert found == pytest.approx((100 * expected.low, 100 * expected.high))


def test_share() -> None:
    assert measured(np.array([True, False, True, True]), 25.0).metric == Metric(75.0, 25.0, 4)
    assert Metric(0.0, 0.0, 0).interval == (0.0, 100.0)  # no answers


def test_intervals_over_seeds_are_students() -> None:
    mean = over_seeds([Metric(v, 10.0, 200) for v in (60.0, 62.0, 64.0)])
    # by hand: standard deviation 2, standard error 2 / sqrt(3), t = 4.303 with 2 degrees of freedom
    assert (mean.value, mean.low, mean.high) == pytest.approx((62.0, 62 - 4.969, 62 + 4.969), abs=1e-3)
    same = over_seeds([Metric(60.0, 10.0, 200)] * 2)  # of 200 answers each: they agree by rounding to 0.5 points
    assert same.high - same.low == pytest.approx(2 * 12.706 * 0.5 / 12**0.5 / 2**0.5, abs=1e-3)
    assert over_seeds([Metric(1.0, 10.0, 200), Metric(99.0, 10.0, 200)]).interval == (0.0, 100.0)
