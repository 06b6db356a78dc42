"""Numbers beside the pictures. Features are float [n, s, d], of length 1: of n videos, s clips each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.metrics import Metric, clustered, jackknife

_SAME = 1e-12
"""Squared distance of vectors of length 1 that only rounding sets apart."""


def deviations(features: np.ndarray) -> np.ndarray:
    """The paper's: standard deviation over the clips of a video of each number, mean over the numbers, float64 [n].

    It divides by s, not s - 1. The paper (section "Qualitative analysis") says "average standard deviation of the
    normalized features", and no more.
    """
    found: np.ndarray = features.std(1, dtype=np.float64).mean(1)
    return found


class Apart(NamedTuple):
    """Squared distances; half the mean one between two clips."""

    within: np.ndarray
    """Of each video: float64 [n]."""
    between: float
    """Of two videos, at the same place in both."""
    without: np.ndarray
    """The same with each of the videos left out: float64 [n]."""

    @property
    def relative(self) -> np.ndarray:
        """Of each video, as a multiple of what lies between videos, root mean square: float64 [n]."""
        return np.sqrt(self.within / self.between)


def apart(features: np.ndarray) -> Apart:
    """What `ratio` compares, of 3 videos or more. Raises UserError where features are the same for all videos."""
    x = features.astype(np.float64)
    n = len(x)
    square, mean = (x**2).sum(2), x.mean(0)  # [n, s], [s, d]
    length = (mean**2).sum(1)
    between = float((square.mean(0) - length).mean()) * n / (n - 1)
    if between < _SAME:
        raise UserError("features of all videos are the same: the weights are damaged, or their training has collapsed")
    others = (square.sum(0) - square) / (n - 1)
    lengths = (n**2 * length - 2 * n * np.einsum("nsd,sd->ns", x, mean) + square) / (n - 1) ** 2
    without = np.maximum((others - lengths).mean(1), 0) * (n - 1) / (n - 2)
    return Apart(x.var(1, ddof=1).sum(1), between, without)


def ratio(found: Apart, beside: Apart | None = None) -> Metric:
    """Distance between clips of a video as a multiple of that between clips of two videos, root mean square.

    0 where a video has one feature, 1 where its clips lie as far apart as those of others; unlike `deviations` it can
    be compared between models. With `beside`, of the same videos, the difference to it. The interval is the
    jackknife's.
    """
    whole, without = _ratio(found)
    if beside is None:
        return jackknife(whole, without, least=0.0)
    other, other_without = _ratio(beside)
    return jackknife(whole - other, without - other_without)


def _ratio(found: Apart) -> tuple[float, np.ndarray]:
    """Of all videos, and with each of them left out [n]."""
    within = found.within
    others = (within.sum() - within) / (len(within) - 1)
    return float(np.sqrt(within.mean() / found.between)), np.sqrt(others / np.maximum(found.without, _SAME))


def own_nearest(features: np.ndarray) -> Metric:
    """How often the nearest other clip, by cosine, is of the same video; clips of a video depend on each other."""
    n, s, d = features.shape
    x = features.reshape(n * s, d)
    cosine = x @ x.T
    np.fill_diagonal(cosine, -np.inf)
    right = cosine.argmax(1) // s == np.arange(n * s) // s
    return clustered(right.reshape(n, s), 100 * (s - 1) / (n * s - 1), cross_validated=False)
