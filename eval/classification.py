"""Classes of labels, and accuracy of the scores of a classifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.metrics import Metric, share


def classes_of(labels: np.ndarray) -> np.ndarray:
    """The sorted classes. Raises UserError if there is only one."""
    classes: np.ndarray = np.unique(labels)
    if len(classes) < 2:
        raise UserError(
            f"a classifier needs at least two classes; the gallery has only '{classes[0]}'; evaluate on videos of more "
            "classes, or set --label to another column"
        )
    return classes


def targets(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Index of each label in the sorted classes, -1 if it is not among them: int64 [n]."""
    position = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[position] == labels, position, -1).astype(np.int64)


def top_k(scores: np.ndarray, target: np.ndarray, ks: Sequence[int]) -> dict[int, Metric]:
    """Share of rows whose target is among the k highest scores [n, classes], for k below the number of classes.

    Ties go to the first class. A target of -1 (a class without training videos) is never right.
    """
    classes = scores.shape[1]
    order = np.argsort(-scores, axis=1, kind="stable")
    known = (target >= 0).mean()
    return {k: share((order[:, :k] == target[:, None]).any(1), 100 * known * k / classes) for k in ks if k < classes}
