"""Mean and variance of the estimates, from the losses of all pairs of a population; derived in docs/theorem.md.

`loss` is float64 [V, N, V, N], l(x_ja, x_kb) for strata j, k and samples a, b; l(x_ja, x_ja) is ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Strata(NamedTuple):
    """Mean and variance of every pair of strata, over its pairs of samples T != T'."""

    mean: np.ndarray
    """L_jj': float64 [V, V]."""
    variance: np.ndarray
    """sigma_jj'^2: float64 [V, V]."""


def strata_of(loss: np.ndarray) -> Strata:
    """L_jj' and sigma_jj'^2 of the theorem."""
    values = np.moveaxis(loss, 2, 1)  # [V, V, N, N]
    counted = ~(np.eye(loss.shape[0], dtype=bool)[:, :, None, None] & np.eye(loss.shape[1], dtype=bool))
    n = counted.sum((2, 3))
    mean = (values * counted).sum((2, 3)) / n
    deviation = (values - mean[:, :, None, None]) * counted
    return Strata(mean, (deviation**2).sum((2, 3)) / n)


def expectation(strata: Strata, k_v: int) -> float:
    """L, the mean over the K_V^2 pairs of K_V strata; where there are more strata, also over their draw."""
    v = len(strata.mean)
    diagonal = np.trace(strata.mean) / v
    others = (strata.mean.sum() - np.trace(strata.mean)) / (v * (v - 1))
    return float(diagonal / k_v + (1 - 1 / k_v) * others)


def stratified(strata: Strata, k_v: int, k_i: int) -> float:
    """The theorem's variance of the GDT estimate, sum sigma^2 / (K_V^4 K_I^2), averaged over draws of the strata."""
    return expectation(Strata(strata.variance, strata.variance), k_v) / (k_v * k_i) ** 2


def direct(strata: Strata, k_i: int) -> float:
    """Variance of the direct estimate by the theorem's proof, over all strata."""
    k_v, spread = len(strata.mean), strata.mean - strata.mean.mean()
    return float((strata.variance + spread**2).sum() / (k_v**4 * k_i**2))


def direct_as_stated(strata: Strata, k_i: int) -> float:
    """Variance of the direct estimate as the statement of the theorem prints it."""
    k_v, spread = len(strata.mean), strata.mean - strata.mean.mean()
    return float(strata.variance.sum() / (k_v * k_i) ** 2 + (spread**2).sum() / k_v**2)


def shared(loss: np.ndarray, k_v: int, k_i: int) -> float:
    """Variance of the mean loss of a batch drawn by the tree, whose pairs share samples.

    K_V of V strata and K_I < N samples of each are drawn without replacement. Each pair of strata has the weight
    1 / K_V^2, and K_I^2 pairs, or K_I (K_I - 1) within one stratum.
    """
    strata, samples = loss.shape[:2]
    symmetric = (loss + loss.transpose(2, 3, 0, 1)) / 2
    means = strata_of(symmetric).mean
    within = np.diag(means)
    of_strata = (within[:, None] + within) / (2 * k_v) + (1 - 1 / k_v) * means
    one, two, three = (inclusion(k_v, strata, m) for m in (1, 2, 3))

    main, rest = _decompose_strata(symmetric, means)
    own = np.einsum("jja->ja", main)  # g_jj
    others = main.sum(1) - own  # of all strata but j
    squares = _variance(main).sum(1) - _variance(own)  # [V]
    linear = one * _variance(own) + 2 * two * _covariance(own, others)
    linear += two * squares + three * (_variance(others) - squares)
    linear *= (1 - k_i / samples) / k_i * (2 / k_v**2) ** 2

    inside = np.trace(rest) * _remainder(k_i, samples)
    across = (rest.sum() - np.trace(rest)) * ((1 - k_i / samples) / ((samples - 1) * k_i)) ** 2
    remainder = (one * inside + 2 * two * across) / k_v**4
    return float(u_statistic(of_strata, k_v) + linear.sum() + remainder)


def u_statistic(kernel: np.ndarray, k: int) -> float:
    """Variance of the mean of a symmetric kernel [n, n] over the pairs of k >= 2 of n items without replacement."""
    n = len(kernel)
    if k == n:
        return 0.0
    main, rest = _decompose_kernel(kernel)
    return float(4 * (1 - k / n) / k * _variance(main) + _remainder(k, n) * rest)


def inclusion(k: int, n: int, m: int) -> float:
    """Probability that m given items are all among k of n."""
    return float(np.prod([max(k - i, 0) / (n - i) for i in range(m)])) if n >= m else 0.0


def _decompose_kernel(kernel: np.ndarray) -> tuple[np.ndarray, float]:
    """Parts of kernel(a, b) = mean + g(a) + g(b) + r(a, b), a != b, whose sums over b are 0: g [n], the sum of r^2."""
    n = len(kernel)
    off = kernel - np.diag(np.diag(kernel))
    mean = off.sum() / (n * (n - 1))
    main = (off.sum(1) / (n - 1) - mean) * (n - 1) / (n - 2)
    rest = kernel - mean - main[:, None] - main
    return main, float((rest**2).sum() - (np.diag(rest) ** 2).sum())


def _remainder(k: int, n: int) -> float:
    """Factor of the sum of r^2 in the variance of a mean over the pairs of k of n."""
    two, three, four = (inclusion(k, n, m) for m in (2, 3, 4))
    return 2 * (two - 2 * three + four) / (k * (k - 1)) ** 2


def _decompose_strata(symmetric: np.ndarray, means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """g_jk(a) [V, V, N] and the sum of r_jk(a, b)^2 [V, V] of every pair of strata j, k."""
    values = np.moveaxis(symmetric, 2, 1)
    main = values.mean(3) - means[:, :, None]
    rest = values - means[:, :, None, None] - main[:, :, :, None] - main.transpose(1, 0, 2)[:, :, None, :]
    squares = (rest**2).sum((2, 3))
    for j in range(len(symmetric)):
        main[j, j], squares[j, j] = _decompose_kernel(values[j, j])
    return main, squares


def _variance(values: np.ndarray) -> np.ndarray:
    """Variance over the last axis, whose mean is 0."""
    return _covariance(values, values)


def _covariance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one * other).sum(-1) / (one.shape[-1] - 1)
