"""Metrics with 95 % confidence intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import stats

from gdt.common.intervals import wilson


class Metric(NamedTuple):
    """A measured number with its uncertainty: a share of correct answers in percent, or any number with `bounds`."""

    value: float
    chance: float = 0.0
    """Value of random guessing."""
    answers: int = 0
    """Number of answers that it is a share of, or of videos."""
    spread: float = 0.0
    """Standard deviation, if it is a mean over repetitions."""
    bounds: tuple[float, float] | None = None
    """95 % interval of a number that is not a share."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval: `bounds`, or Wilson's for a share, in percent.

        It covers the sampling of the answers, but not of training runs or shots.
        """
        if self.bounds is not None:
            return self.bounds
        low, high = wilson(self.value / 100, self.answers)
        return 100 * low, 100 * high

    @property
    def low(self) -> float:
        return self.interval[0]

    @property
    def high(self) -> float:
        return self.interval[1]

    def text(self) -> str:
        """The value with its interval in brackets."""
        return f"{self.value:.1f} ({self.low:.1f}-{self.high:.1f})"


@dataclass(frozen=True)
class Measured:
    """A metric with the answers that it is the mean of, by which models are compared."""

    metric: Metric
    answers: np.ndarray = field(compare=False)
    """Per query: right or wrong, bool [n], or a share, float [n]; of mAP, per label."""


def measured(correct: np.ndarray, chance: float) -> Measured:
    """The share of True among answers, bool [n], with them; `chance` in percent."""
    return Measured(Metric(float(100 * np.mean(correct)), chance, len(correct)), correct)


def clustered(right: np.ndarray, chance: float) -> Metric:
    """Share of right answers [n, m] of a cross-validated probe to m questions about each of n videos.

    The interval is Wilson's with the effective number of answers: half the number of independent ones that would have
    the variance of the videos' means (Korn and Graubard 1998), at most n m / 2. Half, because every pair of videos
    counts twice; simulations on noise showed this to be necessary. If all or none are right, the number is n.
    """
    n = len(right)
    answers = right.size
    value = float(right.mean())
    variance = float(right.mean(1).var(ddof=1)) / n
    independent: float = n
    if 0 < value < 1:
        independent = answers / 2
        if variance:
            independent = min(answers, value * (1 - value) / variance) / 2
    return Metric(100 * value, chance, max(1, round(independent)))


def jackknife(whole: float, without: np.ndarray) -> Metric:
    """A statistic of n videos, 0 or more, with its jackknife interval (Student's t), given it without each [n]."""
    n = len(without)
    error = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
    half = float(stats.t.ppf(0.975, n - 1) * error)
    return Metric(whole, answers=n, bounds=(max(0.0, whole - half), whole + half))


def over_seeds(metrics: Sequence[Metric]) -> Metric:
    """Mean over training runs (or folds) with its 95 % interval (Student's t), which covers other runs; of one, itself.

    Their variance is at least that of rounding to a whole number of answers, since few runs often agree by rounding.
    """
    if len(metrics) == 1:
        return metrics[0]
    values = np.array([metric.value for metric in metrics])
    mean = float(values.mean())
    n = len(values)
    one_answer = [100 / metric.answers for metric in metrics if metric.answers and metric.bounds is None]
    rounding = max(one_answer, default=0.0) ** 2 / 12
    half = float(stats.t.ppf(0.975, n - 1) * np.sqrt(max(values.var(ddof=1), rounding) / n))
    low = mean - half
    high = mean + half
    if all(metric.bounds is None for metric in metrics):  # shares
        low = max(0.0, low)
        high = min(100.0, high)
    return metrics[0]._replace(value=mean, spread=0.0, bounds=(low, high))
