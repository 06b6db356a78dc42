"""A population, losses of all its pairs, and random batches: four ways to sample pairs, and equation 1 itself.

docs/theorem.md describes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gdt.pipeline.transformations.base import distinct

_PAIRS_AT_ONCE = 1 << 21
_DIMENSIONS = 32


@dataclass(frozen=True)
class Population:
    """V strata, one per value of the distinctive factors, of N samples, one per value of the invariant factors."""

    similarity: np.ndarray
    """<Phi(x), Phi(x')> of all pairs: float64 [V, N, V, N]."""
    temperature: float

    @property
    def strata(self) -> int:
        """V."""
        return self.similarity.shape[0]

    @property
    def values(self) -> int:
        """N."""
        return self.similarity.shape[1]

    def first(self, strata: int) -> Population:
        """The population of its first strata."""
        return Population(self.similarity[:strata, :, :strata], self.temperature)


def random_population(strata: int, values: int, temperature: float, rng: np.random.Generator) -> Population:
    """A population of random unit vectors that are alike within a stratum.

    No two samples are equal, so the distinctive factors are injective, as the theorem requires.
    """
    common = rng.normal(size=(strata, 1, _DIMENSIONS)) / np.sqrt(_DIMENSIONS)
    individual = rng.normal(size=(strata, values, _DIMENSIONS)) / np.sqrt(_DIMENSIONS)
    embeddings = common + individual
    embeddings /= np.linalg.norm(embeddings, axis=2, keepdims=True)
    return Population(np.einsum("jad,kbd->jakb", embeddings, embeddings), temperature)


def fixed(population: Population, k_v: int, k_i: int) -> np.ndarray:
    """Loss with the denominator replaced by its mean Z(T), given T; pairs from two strata have c = 0, so no loss."""
    same, logits, denominator = _terms(population, k_v, k_i)
    return np.where(same, np.log(denominator) - logits, 0.0)


def first_order(population: Population, k_v: int, k_i: int) -> np.ndarray:
    """Loss with the batch's own denominator D, to first order around its mean Z: log D = log Z + D / Z - 1 + ...

    D is a sum over pairs, so every pair has a loss, also those of two strata. The mean is that of `fixed`.
    """
    same, logits, denominator = _terms(population, k_v, k_i)
    share = np.exp(logits) / denominator
    return np.where(same, np.log(denominator) - logits - 1 + (k_i - 1) * share, k_i * share)


LOSSES: dict[str, Callable[[Population, int, int], np.ndarray]] = {
    "fixed denominator": fixed,
    "first order": first_order,
}
"""Losses l(x, x') for batches of K_V strata of K_I samples, by name: float64 [V, N, V, N], the diagonal undefined."""
OWN = "own denominator"
"""Equation 1 itself: the loss of a pair depends on the rest of the batch."""


def _terms(population: Population, k_v: int, k_i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs within a stratum, bool [V, 1, V, 1]; logits; Z(T), the mean denominator of batches with T, [V, N, 1, 1]."""
    strata, values = population.strata, population.values
    logits = population.similarity / population.temperature
    exponential = np.exp(logits).reshape(strata * values, strata, values).sum(2).reshape(strata, values, strata)
    own = np.einsum("jaj->ja", exponential) - np.exp(1 / population.temperature)  # without T itself
    others = exponential.sum(2) - np.einsum("jaj->ja", exponential)
    mean = (k_i - 1) * own / (values - 1) + (k_v - 1) * k_i * others / ((strata - 1) * values)
    return np.eye(strata, dtype=bool)[:, None, :, None], logits, mean[:, :, None, None]


class Interval(NamedTuple):
    """A simulated number with its interval."""

    value: float
    low: float
    high: float

    def holds(self, number: float) -> bool:
        return self.low <= number <= self.high


def mean(estimates: np.ndarray, z: float) -> Interval:
    """Mean of independent estimates, plus and minus z standard errors."""
    value, error = estimates.mean(), estimates.std(ddof=1) / np.sqrt(len(estimates))
    return Interval(float(value), float(value - z * error), float(value + z * error))


def variance(estimates: np.ndarray, z: float) -> Interval:
    """Variance of independent estimates, plus and minus z standard errors of its logarithm.

    The error follows from the fourth moment; a chi-square interval would hold for normal estimates only.
    """
    deviations = estimates - estimates.mean()
    value = deviations @ deviations / (len(estimates) - 1)
    kurtosis = (deviations**4).mean() / (deviations**2).mean() ** 2
    error = np.sqrt((kurtosis - 1) / len(estimates))
    return Interval(float(value), float(value * np.exp(-z * error)), float(value * np.exp(z * error)))


def direct(loss: np.ndarray, k_i: int, batches: int, rng: np.random.Generator) -> np.ndarray:
    """Means of K_V^2 K_I^2 independent pairs, each of two random strata of all K_V: float64 [batches]."""
    pairs = len(loss) ** 2
    return _independent(loss, lambda n: rng.integers(pairs, size=(n, pairs * k_i**2)), batches, pairs * k_i**2, rng)


def stratified(loss: np.ndarray, k_i: int, batches: int, rng: np.random.Generator) -> np.ndarray:
    """Means of K_I^2 independent pairs from each of the K_V^2 pairs of strata, as in the proof: float64 [batches]."""
    stratum = np.repeat(np.arange(len(loss) ** 2), k_i**2)
    return _independent(loss, lambda n: np.tile(stratum, (n, 1)), batches, len(stratum), rng)


def shared(loss: np.ndarray, k_v: int, k_i: int, batches: int, rng: np.random.Generator) -> np.ndarray:
    """Means over all pairs of batches drawn as the tree draws: K_V strata, K_I samples of each: float64 [batches]."""
    strata, samples = loss.shape[:2]
    flat = loss.reshape(strata * samples, -1)
    weights = _weights(k_v, k_i)

    def draw(n: int) -> np.ndarray:
        leaves = leaf_numbers(strata, samples, k_v, k_i, n, rng)
        return np.einsum("nab,ab->n", flat[leaves[:, :, None], leaves[:, None, :]], weights)

    return _in_chunks(draw, batches, (k_v * k_i) ** 2)


def equation_1(population: Population, k_v: int, k_i: int, batches: int, rng: np.random.Generator) -> np.ndarray:
    """Equation 1 of batches drawn as in `shared`: its mean over positive pairs, divided by K_V: float64 [batches]."""
    strata, samples = population.strata, population.values
    flat = population.similarity.reshape(strata * samples, -1) / population.temperature
    positive = np.where(np.kron(np.eye(k_v), np.ones((k_i, k_i))) > 0, _weights(k_v, k_i), 0.0)
    itself = np.eye(k_v * k_i, dtype=bool)

    def draw(n: int) -> np.ndarray:
        leaves = leaf_numbers(strata, samples, k_v, k_i, n, rng)
        logits = flat[leaves[:, :, None], leaves[:, None, :]]
        denominator = np.where(itself, 0.0, np.exp(logits)).sum(2)
        return np.einsum("nab,ab->n", np.log(denominator)[:, :, None] - logits, positive)

    return _in_chunks(draw, batches, (k_v * k_i) ** 2)


def leaf_numbers(strata: int, samples: int, k_v: int, k_i: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Leaves of n batches as stratum * samples + sample, drawn by the tree's own function: int64 [n, K_V K_I]."""
    stratum = distinct(rng, np.full(n, strata), k_v)
    sample = distinct(rng, np.full(n * k_v, samples), k_i).reshape(n, k_v, k_i)
    return (stratum[:, :, None] * samples + sample).reshape(n, -1)


def _weights(k_v: int, k_i: int) -> np.ndarray:
    """Weights of the pairs of a batch, which sum to 1: float64 [K_V K_I, K_V K_I]."""
    inside = (1 - np.eye(k_i)) / (k_i * (k_i - 1))
    across = np.full((k_i, k_i), 1 / k_i**2)
    return (np.kron(np.eye(k_v), inside) + np.kron(1 - np.eye(k_v), across)) / k_v**2


def _independent(
    loss: np.ndarray, strata_of: Callable[[int], np.ndarray], batches: int, pairs: int, rng: np.random.Generator
) -> np.ndarray:
    """Means over independent pairs T != T', drawn with replacement: float64 [batches].

    `strata_of(n)` gives the pairs of strata to draw from for n batches, int64 [n, pairs] below V^2.
    """
    strata, samples = loss.shape[:2]
    values = np.moveaxis(loss, 2, 1).reshape(strata**2, samples**2)
    counts = np.full(strata**2, samples**2)
    off = ~np.eye(samples, dtype=bool).reshape(-1)
    for row in range(0, strata**2, strata + 1):  # within a stratum: the pairs T != T' first
        counts[row] = off.sum()
        values[row, : counts[row]] = values[row, off]

    def draw(n: int) -> np.ndarray:
        stratum = strata_of(n)
        column = (rng.random(stratum.shape) * counts[stratum]).astype(np.int64)
        return values[stratum, column].mean(1)

    return _in_chunks(draw, batches, pairs)


def _in_chunks(draw: Callable[[int], np.ndarray], batches: int, pairs: int) -> np.ndarray:
    """Draw all batches, in chunks that fit into memory."""
    most = max(1, _PAIRS_AT_ONCE // pairs)
    return np.concatenate([draw(min(most, batches - first)) for first in range(0, batches, most)])
