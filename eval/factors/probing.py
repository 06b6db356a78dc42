"""Two numbers for a factor: how far features move when it alone changes, and how well its value is told from them.

Features are float [n, s, k, d]: of n videos, s clips each, in k values of the factor that share all else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gdt.common.errors import UserError
from gdt.eval.metrics import Metric, clustered, jackknife
from gdt.eval.retrieval import nearest, unit

_SAME = 1e-6
"""Distance of vectors of length 1 that only rounding sets apart."""


class Distances(NamedTuple):
    """Between features of length 1, as retrieval compares them."""

    own: np.ndarray
    """Of each video, mean over its clips and the pairs of values: float64 [n]."""
    others: np.ndarray
    """Of each video to each other at the same value, mean over values and clips: float64 [n, n], 0 on the diagonal."""


def distances(features: np.ndarray) -> Distances:
    """Those that `moved` compares. Raises UserError where features are not finite, or the same for all videos."""
    n, s, k, d = features.shape
    x = unit(features.reshape(-1, d).astype(np.float64)).reshape(n, s, k, d)
    pairs = [np.linalg.norm(x[:, :, a] - x[:, :, b], axis=-1).mean(1) for a in range(k) for b in range(a)]
    others = np.zeros((n, n))
    for value in np.moveaxis(x, 2, 0):  # one at a time, to hold [n s, n s] and no more
        flat = value.reshape(n * s, d)
        cosine = np.clip(flat @ flat.T, -1, 1)
        others += np.sqrt(2 - 2 * cosine).reshape(n, s, n, s).mean((1, 3)) / k
    np.fill_diagonal(others, 0)
    if others.max() < _SAME:
        raise UserError("features of all videos are the same: the weights are damaged, or their training has collapsed")
    return Distances(np.mean(pairs, axis=0), others)


def moved(found: Distances, beside: Distances | None = None) -> Metric:
    """Invariance: distance between two values of the factor in the same clip, as a multiple of that between videos.

    0 where features ignore the factor, 1 where its values lie as far apart as other videos. Of the time shift it is
    what the paper's histogram of the deviations of time-shifted clips shows. With `beside`, of the same videos, the
    difference to it. The interval is the jackknife's over the n videos, by Student's t with n - 1.
    """
    whole, without = _ratio(found)
    if beside is not None:
        other, other_without = _ratio(beside)
        whole, without = whole - other, without - other_without
    return jackknife(whole, without, least=-np.inf if beside is not None else 0.0)


def _ratio(found: Distances) -> tuple[float, np.ndarray]:
    """Of all videos, and with each of them left out [n]."""
    own, others = found
    n = len(own)
    between = others.sum()
    without = (own.sum() - own) / (n - 1) / ((between - 2 * others.sum(1)) / ((n - 1) * (n - 2)))
    return float(own.mean() / (between / (n * (n - 1)))), without


def told(features: np.ndarray, folds: int, c: float, seed: int) -> Metric:
    """Decodability: how often a linear probe tells the value, in videos that it has not seen.

    A logistic regression on features of zero mean and unit variance; every video, with all its clips and values, is in
    one of the `folds`, and is answered by the probe of the others. `c` is the inverse strength of its regularisation.
    """
    n, s, k, d = features.shape
    fold = fold_of(n, folds, seed)
    values = np.broadcast_to(np.arange(k), (n, s, k))
    right = np.zeros((n, s, k), bool)
    for number in range(folds):
        asked = fold == number
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=300, tol=1e-3))
        probe.fit(features[~asked].reshape(-1, d), values[~asked].reshape(-1))
        right[asked] = probe.predict(features[asked].reshape(-1, d)).reshape(-1, s, k) == values[asked]
    return clustered(right.reshape(n, -1), 100 / k, cross_validated=True)


def fold_of(videos: int, folds: int, seed: int) -> np.ndarray:
    """Which fold each video is in, as many in each as can be: int64 [videos]."""
    return np.random.default_rng(seed).permutation(videos) % folds


def recognised(features: np.ndarray) -> Metric:
    """How often the nearest clip of another time, by cosine, is of the same video; features are [n, 2, 1, d]."""
    first, second = features[:, 0, 0], features[:, 1, 0]
    own = np.arange(len(first))
    right = np.stack([nearest(a, b, 1)[:, 0] == own for a, b in ((first, second), (second, first))], 1)
    return clustered(right, 100 / len(first), cross_validated=False)
