"""The paper's theorem on the estimate's variance (sections 3.1, A.2)."""

import numpy as np

from gdt.pipeline.composition import contrast, weight
from gdt.pipeline.notation import parse
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.tree import sample

V, N, K_I = 3, 5, 2
"""Values of the distinctive factors (a batch has all, K_V = V) and of the invariant ones; samples of each stratum."""
BATCHES = 4000


def test_batches_of_the_tree_are_unbiased_and_vary_more_than_the_theorem_says() -> None:
    """The proof takes the pairs of a stratum as independent; those of a batch share samples."""
    # losses of all pairs of a population, without structure: [V, V, N, N]; T = T' is no pair, NaN
    losses = np.random.default_rng(6).exponential(size=(V, V, N, N)) + np.arange(V)[:, None, None]
    losses[np.arange(V)[:, None], np.arange(V)[:, None], np.arange(N), np.arange(N)] = np.nan
    mean, of_gdt = np.nanmean(losses, (2, 3)).mean(), np.nanvar(losses, (2, 3)).sum() / (V**4 * K_I**2)
    factors = parse(f"video:d time_shift:i:{K_I} augmentation:i:1", V).factors
    source = VideoPool(np.arange(V), np.full(V, N), 30)
    estimates = np.empty(BATCHES)
    for batch in range(BATCHES):
        columns, _ = sample(factors, source, 0, batch, 0)
        c, w = contrast(factors, columns, columns), weight(factors, columns, columns)
        j, a = columns["video"], columns["time_shift"]
        loss = losses[j[:, None], j, a[:, None], a]
        estimates[batch] = loss[c & w].mean() / V + loss[~c].mean() * (1 - 1 / V)
    assert abs(estimates.mean() - mean) < 4 * estimates.std() / np.sqrt(BATCHES)
    assert estimates.var() > 1.2 * of_gdt
