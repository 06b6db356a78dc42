"""Nearest neighbours by cosine."""

import numpy as np

from gdt.common.errors import UserError

_CELLS = 1 << 24
"""Cosines that are held at a time."""
_DIGITS = 10
"""Of a cosine, which the number of threads does not change."""


def nearest_rows(query: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k rows of the gallery [g, dim] nearest by cosine, nearest first: int64 [q, min(k, g)].

    Ties have the same order on any number of threads. In bounded memory.
    """
    k = min(k, len(gallery))
    others = unit(gallery.astype(np.float64)).T
    block = max(1, _CELLS // len(gallery))
    parts = []
    for first in range(0, len(query), block):
        cosine = np.round(unit(query[first : first + block].astype(np.float64)) @ others, _DIGITS)
        nearest = np.sort(np.argpartition(-cosine, k - 1, axis=1)[:, :k], axis=1)
        order = np.argsort(-np.take_along_axis(cosine, nearest, 1), axis=1, kind="stable")
        parts.append(np.take_along_axis(nearest, order, 1))
    return np.concatenate(parts)


def unit(features: np.ndarray) -> np.ndarray:
    """Features scaled to length 1. Raises UserError if some are NaN or infinite."""
    if not np.isfinite(features).all():
        raise UserError(
            "the features contain NaN or infinity: the weights are damaged, or training diverged; use another "
            "checkpoint"
        )
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
