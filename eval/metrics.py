"""Measured shares with what they are worth: 95 % intervals, and when a difference means nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

_Z = 1.959963984540054
"""Within so many standard deviations lie 95 % of a normal distribution."""


class Metric(NamedTuple):
    """A number with what it is worth: a share of correct answers, in percent, or whatever has `bounds`."""

    value: float
    chance: float = 0.0
    """What guessing gives."""
    answers: int = 0
    """Answers that it is a share of, or videos that it is of."""
    spread: float = 0.0
    """Standard deviation over repetitions, where it is a mean of such."""
    bounds: tuple[float, float] | None = None
    """The 95 % interval of a number that is no share."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval: `bounds`, or of a share Wilson's, percent: of the answers' sampling, not of training or of the
        draw of shots.
        """
        if self.bounds is not None:
            return self.bounds
        low, high = _wilson(self.value / 100, self.answers)
        return 100 * low, 100 * high

    @property
    def low(self) -> float:
        return self.interval[0]

    @property
    def high(self) -> float:
        return self.interval[1]


def share(correct: np.ndarray, chance: float) -> Metric:
    """Of a bool array, one entry per answer; `chance` in percent."""
    return Metric(float(100 * np.mean(correct)), chance, len(correct))


def clustered(right: np.ndarray, chance: float, cross_validated: bool) -> Metric:
    """Answers [n, m] of n videos as a share whose interval knows that those of one video depend on each other.

    It is Wilson's with as many independent answers as have the variance that the videos' means have (Korn and Graubard
    1998), no more than there are answers, and as many as videos where all are right or all wrong. Where each probe has
    learned from the videos that others are asked about, every pair of videos counts twice; two of the answers are then
    taken for one, as simulated probes on noise need it.
    """
    n, answers = right.shape[0], right.size
    share = float(right.mean())
    variance = float(right.mean(1).var(ddof=1)) / n
    independent: float = n
    if 0 < share < 1:
        independent = min(answers, share * (1 - share) / variance) if variance else answers
        independent = independent / 2 if cross_validated else independent
    return Metric(100 * share, chance, max(1, round(independent)))


def jackknife(whole: float, without: np.ndarray, least: float = -np.inf) -> Metric:
    """A number of n videos, from what it is with each of them left out [n], by Student's t with n - 1.

    `least` is the lowest that it can be.
    """
    n = len(without)
    error = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
    half = float(stats.t.ppf(0.975, n - 1) * error)
    return Metric(whole, answers=n, bounds=(max(least, whole - half), whole + half))


def median(values: np.ndarray) -> Metric:
    """With the order statistics that hold it in 95 % of all draws, the lowest and highest where there are few [n]."""
    ordered, n = np.sort(values), len(values)
    place = max(0, int(stats.binom.ppf(0.025, n, 0.5)) - 1)
    return Metric(float(np.median(ordered)), answers=n, bounds=(float(ordered[place]), float(ordered[n - 1 - place])))


def difference(one: Sequence[Metric], other: Sequence[Metric]) -> tuple[float, float, float]:
    """Mean of `one` minus mean of `other`, points, and its 95 % interval: the wider of two.

    The first is of the choice of questions (Newcombe 1998, from Wilson's), where metrics of one sequence count as one
    with the mean number of answers, and the two as independent. The second, where a sequence has several metrics, of
    folds or seeds, is of how these differ among themselves (Welch).
    """
    (a, n), (b, m) = _pooled(one), _pooled(other)
    (a_low, a_high), (b_low, b_high) = _wilson(a, n), _wilson(b, m)
    below, above = np.hypot(a - a_low, b_high - b), np.hypot(a_high - a, b - b_low)
    spread = _welch(one, other) / 100
    low, high = a - b - max(below, spread), a - b + max(above, spread)
    return 100 * (a - b), 100 * max(-1.0, low), 100 * min(1.0, high)


def over_seeds(one: Sequence[Metric], other: Sequence[Metric]) -> tuple[float, float, float]:
    """Mean of `one` minus mean of `other`, points, and its 95 % interval over trainings (Welch), both of two or more.

    It says what other seeds would give on these very questions, which two networks are asked alike; with two or three
    seeds that do not differ at all it has no width.
    """
    points = float(np.mean([m.value for m in one]) - np.mean([m.value for m in other]))
    half = _welch(one, other)
    return points, points - half, points + half


def _welch(one: Sequence[Metric], other: Sequence[Metric]) -> float:
    """Half the 95 % interval of the difference of two means, points; 0 where both are of one metric."""
    several = [np.array([m.value for m in metrics]) for metrics in (one, other) if len(metrics) > 1]
    variances = np.array([values.var(ddof=1) / len(values) for values in several])
    if not variances.any():
        return 0.0
    freedom = variances.sum() ** 2 / sum(
        v**2 / (len(x) - 1) for v, x in zip(variances, several, strict=True)
    )  # Welch and Satterthwaite's
    return float(stats.t.ppf(0.975, freedom) * np.sqrt(variances.sum()))


def _pooled(metrics: Sequence[Metric]) -> tuple[float, int]:
    return float(np.mean([m.value for m in metrics])) / 100, round(np.mean([m.answers for m in metrics]))


def _wilson(share: float, answers: int) -> tuple[float, float]:
    """95 % interval of a share of so many answers (Wilson 1927); a mean over repetitions need not be whole answers."""
    if not answers:
        return 0.0, 1.0
    z2 = _Z**2 / answers
    middle = (share + z2 / 2) / (1 + z2)
    half = np.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))
