"""The paper's lemma on the counts of a batch, and its theorem on the estimate's variance (sections 3.1, A.1, A.2)."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from gdt.eval.show_tree import toy
from gdt.pipeline.composition import Contrast, contrast, weight
from gdt.pipeline.notation import parse
from gdt.pipeline.transformations.base import Draw, Source
from gdt.pipeline.tree import sample
from tests.composed import composed

V, N, K_I = 3, 5, 2
"""Values of the distinctive factors (a batch has all, K_V = V) and of the invariant ones; samples of each stratum."""
BATCHES = 4000


@pytest.fixture(scope="module")
def losses() -> np.ndarray:
    """Losses of all pairs of a population, without structure: float64 [V, V, N, N]; T = T' is no pair, NaN."""
    losses = np.random.default_rng(6).exponential(size=(V, V, N, N)) + np.arange(V)[:, None, None]
    losses[np.arange(V)[:, None], np.arange(V)[:, None], np.arange(N), np.arange(N)] = np.nan
    return losses


def theorem(losses: np.ndarray) -> tuple[float, float, float]:
    """L, the variance of the GDT estimate, and that of the direct estimate as the proof derives it."""
    mean, variance = np.nanmean(losses, (2, 3)), np.nanvar(losses, (2, 3))  # L_jj', sigma_jj'^2
    scale = V**4 * K_I**2
    return mean.mean(), variance.sum() / scale, (variance + (mean - mean.mean()) ** 2).sum() / scale


def pairs(losses: np.ndarray, strata: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The loss of a random pair of each of some strata, drawn independently; `strata` are j V + j'."""
    drawn = np.empty(strata.shape)
    for k, stratum in enumerate(losses.reshape(V**2, -1)):
        here = strata == k
        drawn[here] = rng.choice(stratum[~np.isnan(stratum)], here.sum())
    return drawn


def assert_agree(estimates: np.ndarray, mean: float, variance: float) -> None:
    """Within 4 standard errors of the mean, and of the variance by the fourth moment."""
    n, deviation = len(estimates), estimates - estimates.mean()
    assert abs(estimates.mean() - mean) < 4 * estimates.std() / np.sqrt(n)
    assert abs(estimates.var() - variance) < 4 * np.sqrt(((deviation**4).mean() - estimates.var() ** 2) / n)


def test_estimates_have_the_mean_and_variance_of_the_theorem(losses: np.ndarray) -> None:
    mean, of_gdt, of_direct = theorem(losses)
    rng, shape = np.random.default_rng(0), (BATCHES, V**2 * K_I**2)
    stratified = np.broadcast_to(np.repeat(np.arange(V**2), K_I**2), shape)
    assert_agree(pairs(losses, stratified, rng).mean(1), mean, of_gdt)
    assert_agree(pairs(losses, rng.integers(V**2, size=shape), rng).mean(1), mean, of_direct)
    assert of_direct > 1.2 * of_gdt  # never smaller, and here clearly larger


def test_batches_of_the_tree_are_unbiased_and_vary_more_than_the_theorem_says(losses: np.ndarray) -> None:
    """The proof takes the pairs of a stratum as independent; those of a batch share samples."""
    mean, of_gdt, _ = theorem(losses)
    factors = parse(f"video:d time_shift:i:{K_I} augmentation:i:1", V).factors
    source = Source(np.arange(V), np.full(V, N), 30)
    estimates = np.empty(BATCHES)
    for batch in range(BATCHES):
        draw = Draw(0, batch, 0)
        columns = sample(factors, source, draw.generator(), draw)
        c, w = contrast(factors, columns, columns), weight(factors, columns, columns)
        j, a = columns["video"], columns["time_shift"]
        loss = losses[j[:, None], j, a[:, None], a]
        estimates[batch] = loss[c & w].mean() / V + loss[~c].mean() * (1 - 1 / V)
    assert abs(estimates.mean() - mean) < 4 * estimates.std() / np.sqrt(BATCHES)
    assert estimates.var() > 1.2 * of_gdt


@pytest.mark.parametrize("name", ["a", "d", "e", "h", "j", "l", "m", "text-f", "three"])
def test_batches_have_the_counts_of_the_lemma(name: str) -> None:
    factors = composed(name, 5).factors
    leaves = prod(factor.k for factor in factors)
    invariant = prod(factor.k for factor in factors if factor.contrast is Contrast.INVARIANT)
    draw = Draw(3, 0, 0)
    columns = sample(factors, toy(composed(name, 5)).source, draw.generator(), draw)
    c = contrast(factors, columns, columns)
    assert c.shape == (leaves, leaves) and c.sum() == leaves * invariant and c.diagonal().all()
    assert ((~c).sum(1) == leaves - invariant).all()
