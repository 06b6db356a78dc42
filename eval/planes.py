"""PCA and t-SNE of features, reproducible by seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from gdt.common.errors import UserError


class Planes(NamedTuple):
    """2-D coordinates of n vectors."""

    pca: np.ndarray
    """float64 [n, 2]."""
    variance: np.ndarray
    """Explained variance ratio of the axes of `pca`: float64 [2]."""
    tsne: np.ndarray
    """float32 [n, 2]; distances between groups have no meaning."""
    perplexity: float
    """Perplexity of t-SNE, lowered for few vectors."""


def planes(values: np.ndarray, perplexity: float, seed: int) -> Planes:
    """Project four or more vectors [n, d]. Raises UserError if they are all equal, or contain NaN or infinity."""
    n = len(values)
    values = values.astype(np.float64)
    if not np.isfinite(values).all() or np.ptp(values, 0).max() == 0:
        reason = "are the same, or contain NaN or infinity"
        raise UserError(
            f"the features of all {n} points {reason}: training has collapsed or diverged; use another checkpoint"
        )
    pca = PCA(2, svd_solver="full").fit(values)
    perplexity = min(perplexity, (n - 1) / 3)
    with threadpool_limits(1):  # several threads are up to 100 times slower on busy cores
        flat = TSNE(2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(values)
    return Planes(pca.transform(values), pca.explained_variance_ratio_, flat, perplexity)
