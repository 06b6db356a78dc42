"""Features on a plane: PCA and t-SNE, the same for the same seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from gdt.common.errors import UserError


class Planes(NamedTuple):
    """Where n vectors lie."""

    pca: np.ndarray
    """float64 [n, 2]."""
    variance: np.ndarray
    """Share of it along either axis of `pca`: float64 [2]."""
    tsne: np.ndarray
    """float32 [n, 2]; distances between groups mean nothing."""
    perplexity: float
    """Of t-SNE; lower than asked for where there are few vectors."""


def planes(values: np.ndarray, perplexity: float, seed: int) -> Planes:
    """Vectors [n, d], four or more, on two planes. Raises UserError where they are all the same, or no numbers."""
    n = len(values)
    values = values.astype(np.float64)
    if not np.isfinite(values).all() or np.ptp(values, 0).max() == 0:
        raise UserError(f"the features of all {n} points are the same, or no numbers: the model has collapsed")
    pca = PCA(2, svd_solver="full").fit(values)
    perplexity = min(perplexity, (n - 1) / 3)
    with threadpool_limits(1):  # several threads wait for each other, a hundred times as long where cores are busy
        flat = TSNE(2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(values)
    return Planes(pca.transform(values), pca.explained_variance_ratio_, flat, perplexity)
