"""Two measures of a factor: how far features move when only it changes, and how well a probe classifies its value.

Features are float [n, s, k, d]: n videos, s clips each, k values of the factor with all else equal.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.eval.factors.settings import PROBE_FOLDS
from gdt.eval.metrics import Metric, clustered, jackknife
from gdt.eval.similarity import unit

_SAME = 1e-6
"""Distances between unit vectors below this are rounding errors."""
_C = 0.1
"""Inverse strength of L2 regularisation of the probe."""


def relative_distance(features: np.ndarray) -> Metric:
    """Distance between values of the factor in the same clip, divided by the distance between videos.

    Features have length 1. 0: they are invariant; 1: values lie as far apart as videos. For the time shift, this is the
    quantity of the paper's histogram of deviations. The 95 % interval is a jackknife over videos (Student's t with
    n - 1). Raises UserError if features are not finite or the same for all videos.
    """
    n, s, k, d = features.shape
    x = unit(features.reshape(-1, d).astype(np.float64)).reshape(n, s, k, d)
    pairs = [np.linalg.norm(x[:, :, a] - x[:, :, b], axis=-1).mean(1) for a in range(k) for b in range(a)]
    within = np.mean(pairs, axis=0)  # per video, over its clips and pairs of values
    between = np.zeros((n, n))  # per pair of videos at the same value, over values and clips
    for value in np.moveaxis(x, 2, 0):  # one value per pass, to hold only [n s, n s]
        flat = value.reshape(n * s, d)
        cosine = np.clip(flat @ flat.T, -1, 1)
        between += np.sqrt(2 - 2 * cosine).reshape(n, s, n, s).mean((1, 3)) / k
    np.fill_diagonal(between, 0)
    if between.max() < _SAME:
        raise UserError(
            "features of all videos are the same: the weights are damaged, or training has collapsed; use another "
            "checkpoint"
        )
    total = between.sum()
    # the means without each video in turn; `between` has both orders of a pair
    within_without = (within.sum() - within) / (n - 1)
    between_without = (total - 2 * between.sum(1)) / ((n - 1) * (n - 2))
    ratio = float(within.mean() / (total / (n * (n - 1))))
    return jackknife(ratio, within_without / between_without)


def probe_accuracy(features: np.ndarray) -> Metric:
    """Accuracy of a linear probe for the factor's value, cross-validated over videos.

    The probe is a logistic regression on standardised features. All clips and values of a video are in the same fold.
    """
    n, s, k, d = features.shape
    x = features.reshape(-1, d)
    values = np.tile(np.arange(k), n * s)
    fold = np.repeat(generator(Stream.FACTOR_FOLDS, 0).permutation(n) % PROBE_FOLDS, s * k)
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=_C, max_iter=300, tol=1e-3))
    with threadpool_limits(1):  # as in `linear_probe`
        answers = cross_val_predict(probe, x, values, cv=PredefinedSplit(fold))
    return clustered((answers == values).reshape(n, -1), 100 / k)
