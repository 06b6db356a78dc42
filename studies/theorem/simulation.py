"""Batches drawn at random, and the estimate of each: four ways to sample, and equation 1 itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from gdt.pipeline.transformations.base import distinct
from gdt.studies.theorem.population import Population

_AT_ONCE = 1 << 21
"""Pairs that are drawn at a time."""


class Interval(NamedTuple):
    """A simulated number and between which it lies."""

    value: float
    low: float
    high: float

    def holds(self, number: float) -> bool:
        """Whether a number lies in it."""
        return self.low <= number <= self.high


def mean(estimates: np.ndarray, z: float) -> Interval:
    """Of independent estimates, z standard errors to each side."""
    value, error = estimates.mean(), estimates.std(ddof=1) / np.sqrt(len(estimates))
    return Interval(float(value), float(value - z * error), float(value + z * error))


def variance(estimates: np.ndarray, z: float) -> Interval:
    """Of independent estimates, z standard errors of its logarithm to each side.

    The error follows from the fourth moment: a chi-square interval would hold for normal estimates only.
    """
    deviations = estimates - estimates.mean()
    value = deviations @ deviations / (len(estimates) - 1)
    kurtosis = (deviations**4).mean() / (deviations**2).mean() ** 2
    error = np.sqrt((kurtosis - 1) / len(estimates))
    return Interval(float(value), float(value * np.exp(-z * error)), float(value * np.exp(z * error)))


def direct(loss: np.ndarray, k_i: int, batches: int, rng: np.random.Generator) -> np.ndarray:
    """Means of K_V^2 K_I^2 pairs, each of two strata drawn on their own from all K_V: float64 [batches]."""
    pairs = len(loss) ** 2
    return _alone(loss, lambda n: rng.integers(pairs, size=(n, pairs * k_i**2)), batches, pairs * k_i**2, rng)


def stratified(loss: np.ndarray, k_i: int, batches: int, rng: np.random.Generator) -> np.ndarray:
    """Means of K_I^2 pairs from each of the K_V^2 pairs of strata, every pair drawn on its own, as the proof has it."""
    stratum = np.repeat(np.arange(len(loss) ** 2), k_i**2)
    return _alone(loss, lambda n: np.tile(stratum, (n, 1)), batches, len(stratum), rng)


def shared(loss: np.ndarray, k_v: int, k_i: int, batches: int, rng: np.random.Generator) -> np.ndarray:
    """Means over the pairs of batches drawn as the tree draws them: K_V strata and K_I samples of each.

    Pairs of two strata number K_I^2, and pairs within one K_I (K_I - 1); each group has the weight 1 / K_V^2.
    """
    strata, samples = loss.shape[:2]
    flat = loss.reshape(strata * samples, -1)
    weights = _weights(k_v, k_i)

    def draw(n: int) -> np.ndarray:
        leaves = leaf_numbers(strata, samples, k_v, k_i, n, rng)
        return np.einsum("nab,ab->n", flat[leaves[:, :, None], leaves[:, None, :]], weights)

    return _in_parts(draw, batches, (k_v * k_i) ** 2)


def equation_1(population: Population, k_v: int, k_i: int, batches: int, rng: np.random.Generator) -> np.ndarray:
    """Equation 1 of batches drawn as in `shared`, each with its own denominator: its mean over positives, over K_V."""
    strata, samples = population.strata, population.values
    flat = population.similarity.reshape(strata * samples, -1) / population.temperature
    positive = np.where(np.kron(np.eye(k_v), np.ones((k_i, k_i))) > 0, _weights(k_v, k_i), 0.0)
    itself = np.eye(k_v * k_i, dtype=bool)

    def draw(n: int) -> np.ndarray:
        leaves = leaf_numbers(strata, samples, k_v, k_i, n, rng)
        logits = flat[leaves[:, :, None], leaves[:, None, :]]
        denominator = np.where(itself, 0.0, np.exp(logits)).sum(2)
        return np.einsum("nab,ab->n", np.log(denominator)[:, :, None] - logits, positive)

    return _in_parts(draw, batches, (k_v * k_i) ** 2)


def leaf_numbers(strata: int, samples: int, k_v: int, k_i: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """The leaves of n batches, stratum by stratum, as stratum * samples + sample: int64 [n, K_V K_I].

    `distinct` is what the tree draws with, in each batch and in each branch anew.
    """
    stratum = distinct(rng, np.full(n, strata), k_v)
    sample = distinct(rng, np.full(n * k_v, samples), k_i).reshape(n, k_v, k_i)
    return (stratum[:, :, None] * samples + sample).reshape(n, -1)


def _weights(k_v: int, k_i: int) -> np.ndarray:
    """Of the pairs of a batch, which sum to 1: float64 [K_V K_I, K_V K_I]."""
    inside = (1 - np.eye(k_i)) / (k_i * (k_i - 1))
    across = np.full((k_i, k_i), 1 / k_i**2)
    return (np.kron(np.eye(k_v), inside) + np.kron(1 - np.eye(k_v), across)) / k_v**2


def _alone(
    loss: np.ndarray, strata_of: Callable[[int], np.ndarray], batches: int, pairs: int, rng: np.random.Generator
) -> np.ndarray:
    """Means over pairs T != T' that are drawn on their own, with replacement: float64 [batches].

    `strata_of` gives the pairs of strata of n batches, in which they are drawn: int64 [n, pairs], below V^2.
    """
    strata, samples = loss.shape[:2]
    values = np.moveaxis(loss, 2, 1).reshape(strata**2, samples**2)  # those that count first
    counts = np.full(strata**2, samples**2)
    off = ~np.eye(samples, dtype=bool).reshape(-1)
    for place in range(0, strata**2, strata + 1):
        counts[place] = off.sum()
        values[place, : counts[place]] = values[place, off]

    def draw(n: int) -> np.ndarray:
        stratum = strata_of(n)
        place = (rng.random(stratum.shape) * counts[stratum]).astype(np.int64)
        return np.asarray(values[stratum, place].mean(1))

    return _in_parts(draw, batches, pairs)


def _in_parts(draw: Callable[[int], np.ndarray], batches: int, pairs: int) -> np.ndarray:
    """So many batches, in parts that fit into memory."""
    most = max(1, _AT_ONCE // pairs)

    def parts() -> Iterator[np.ndarray]:
        for first in range(0, batches, most):
            yield draw(min(most, batches - first))

    return np.concatenate(list(parts()))
