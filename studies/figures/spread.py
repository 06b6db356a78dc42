"""Numbers of the pictures. Features are float [n, s, d] of length 1: n videos, s clips each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.metrics import Metric, clustered, jackknife

_EQUAL = 1e-12
"""Squared distance of unit vectors that differ by rounding alone."""


def deviations(features: np.ndarray) -> np.ndarray:
    """Standard deviation over the clips of a video in each dimension, averaged over dimensions: float64 [n].

    It divides by s, not s - 1. The paper (section "Qualitative analysis") says no more than "average standard
    deviation of the normalized features".
    """
    return features.std(1, dtype=np.float64).mean(1)


class Distances(NamedTuple):
    """Half the mean squared distances between two clips."""

    within: np.ndarray
    """Between clips of each video: float64 [n]."""
    between: float
    """Between clips at the same position in two videos."""
    without: np.ndarray
    """`between` with each of the videos left out: float64 [n]."""

    @property
    def relative(self) -> np.ndarray:
        """Root mean square within each video, as a multiple of that between videos: float64 [n]."""
        return np.sqrt(self.within / self.between)


def distances(features: np.ndarray) -> Distances:
    """Distances of three videos or more. Raises UserError where all videos have the same features."""
    x = features.astype(np.float64)
    n = len(x)
    square, mean = (x**2).sum(2), x.mean(0)  # [n, s], [s, d]
    length = (mean**2).sum(1)
    between = float((square.mean(0) - length).mean()) * n / (n - 1)
    if between < _EQUAL:
        raise UserError(
            "features of all videos are the same: the weights are damaged, or training has collapsed; use another "
            "checkpoint"
        )
    others = (square.sum(0) - square) / (n - 1)
    lengths = (n**2 * length - 2 * n * np.einsum("nsd,sd->ns", x, mean) + square) / (n - 1) ** 2
    without = np.maximum((others - lengths).mean(1), 0) * (n - 1) / (n - 2)
    return Distances(x.var(1, ddof=1).sum(1), between, without)


def ratio(own: Distances, other: Distances | None = None) -> Metric:
    """Distance between clips of a video over that between clips of two videos, root mean square; jackknife interval.

    0 where all clips of a video have one feature, 1 where they lie as far apart as those of other videos; unlike
    `deviations` it is comparable across models. With `other`, of the same videos, the difference to its ratio.
    """
    whole, without = _ratio(own)
    if other is None:
        return jackknife(whole, without, least=0.0)
    other_whole, other_without = _ratio(other)
    return jackknife(whole - other_whole, without - other_without)


def _ratio(own: Distances) -> tuple[float, np.ndarray]:
    """The ratio of all videos, and without each of them [n]."""
    within = own.within
    others = (within.sum() - within) / (len(within) - 1)
    return float(np.sqrt(within.mean() / own.between)), np.sqrt(others / np.maximum(own.without, _EQUAL))


def nearest_share(features: np.ndarray) -> Metric:
    """How often the nearest other clip, by cosine, is of the same video; the interval is clustered by video."""
    n, s, d = features.shape
    x = features.reshape(n * s, d)
    cosine = x @ x.T
    np.fill_diagonal(cosine, -np.inf)
    right = cosine.argmax(1) // s == np.arange(n * s) // s
    return clustered(right.reshape(n, s), 100 * (s - 1) / (n * s - 1), cross_validated=False)
