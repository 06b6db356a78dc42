"""Nearest neighbours by cosine."""

import numpy as np

from gdt.common.errors import UserError


def nearest_rows(query: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k rows of the gallery [g, dim] nearest by cosine, nearest first: int64 [q, min(k, g)].

    In bounded memory.
    """
    from sklearn.neighbors import NearestNeighbors  # slow to import, and one query needs none

    # distances of unit vectors have the order of their cosines, and scikit-learn is faster with distances
    neighbours = NearestNeighbors(n_neighbors=min(k, len(gallery)), algorithm="brute").fit(unit(gallery))
    return neighbours.kneighbors(unit(query), return_distance=False)


def unit(features: np.ndarray) -> np.ndarray:
    """Features scaled to length 1. Raises UserError if some are NaN or infinite."""
    if not np.isfinite(features).all():
        raise UserError(
            "the features contain NaN or infinity: the weights are damaged, or training diverged; use another "
            "checkpoint"
        )
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
