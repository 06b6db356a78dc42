"""A population small enough to look at every pair of its samples, with a fixed encoder, and losses of its pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_DIMENSIONS = 32
_SPREAD = 1.0
"""Length of what is a sample's own, beside 1 of what it shares with its stratum."""


@dataclass(frozen=True)
class Population:
    """Strata, one for each value of the distinctive factors, of as many samples, one for each invariant value."""

    similarity: np.ndarray
    """<Phi(x), Phi(x')> of all pairs: float64 [V, N, V, N] for V strata of N samples."""
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
        """Its first strata alone."""
        return Population(self.similarity[:strata, :, :strata], self.temperature)


def made_up(strata: int, values: int, temperature: float, rng: np.random.Generator) -> Population:
    """A population whose encoder gives random unit vectors that are alike within a stratum.

    No two samples agree, so that the distinctive factors are injective, as the theorem asks.
    """
    common = rng.normal(size=(strata, 1, _DIMENSIONS)) / np.sqrt(_DIMENSIONS)
    own = rng.normal(size=(strata, values, _DIMENSIONS)) / np.sqrt(_DIMENSIONS)
    embeddings = common + _SPREAD * own
    embeddings /= np.linalg.norm(embeddings, axis=2, keepdims=True)
    return Population(np.einsum("jad,kbd->jakb", embeddings, embeddings), temperature)


Loss = Callable[[Population, int, int], np.ndarray]
"""A loss l(x, x') of pairs, for batches of K_V strata of K_I samples: float64 [V, N, V, N].

The pair of a sample with itself has no meaning; w removes it from equation 1.
"""


def fixed(population: Population, k_v: int, k_i: int) -> np.ndarray:
    """Equation 1 with c, w and the logarithm in l, as the proof has it: what it is divided by is a constant of T.

    That constant is the mean of what a batch would have there. Pairs of two strata have c = 0, so their loss is 0.
    """
    same = _same_stratum(population)
    return np.where(same, np.log(_denominator(population, k_v, k_i)) - _logits(population), 0.0)


def first_order(population: Population, k_v: int, k_i: int) -> np.ndarray:
    """Equation 1 with the batch's own denominator, to first order in how far that is from its mean.

    log D = log Z + D / Z - 1 + ..., where D is a sum over T'', so a sum over pairs it remains: each pair has a loss,
    those of two strata, too. Its mean is that of `fixed`.
    """
    denominator, k = _denominator(population, k_v, k_i), _logits(population)
    share = np.exp(k) / denominator
    same = _same_stratum(population)
    return np.where(same, np.log(denominator) - k - 1 + (k_i - 1) * share, k_i * share)


LOSSES: dict[str, Loss] = {"fixed denominator": fixed, "first order": first_order}
"""By their names in tables."""
OWN = "own denominator"
"""The name of equation 1 itself, whose loss of a pair depends on the rest of the batch."""


def _logits(population: Population) -> np.ndarray:
    return population.similarity / population.temperature


def _same_stratum(population: Population) -> np.ndarray:
    """Where pairs are of one stratum: bool [V, 1, V, 1]."""
    return np.eye(population.strata, dtype=bool)[:, None, :, None]


def _denominator(population: Population, k_v: int, k_i: int) -> np.ndarray:
    """Z(T), the mean over batches that hold T of the sum in equation 1's denominator: float64 [V, N, 1, 1]."""
    strata, values = population.strata, population.values
    exponential = np.exp(_logits(population)).reshape(strata * values, strata, values).sum(2)
    exponential = exponential.reshape(strata, values, strata)
    own = np.einsum("jaj->ja", exponential) - np.exp(1 / population.temperature)  # without T itself
    others = exponential.sum(2) - np.einsum("jaj->ja", exponential)
    mean = (k_i - 1) * own / (values - 1) + (k_v - 1) * k_i * others / ((strata - 1) * values)
    return np.asarray(mean[:, :, None, None])
