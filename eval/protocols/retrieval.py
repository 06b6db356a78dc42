"""Retrieval of videos of the same class with frozen features (table 3, section A.3.6)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from gdt.eval.evaluator import Evaluator, Outcome
from gdt.eval.folds import Fold
from gdt.eval.metrics import Measured, measured
from gdt.eval.similarity import nearest_rows
from gdt.eval.subjects import Subject

_KS = (1, 5, 20)
"""k of R@k, as in the paper."""


def retrieval(evaluator: Evaluator, model: Subject, fold: Fold, _: Path) -> Outcome:
    """R@k of the queries among the gallery."""
    metrics = recall(*evaluator.pooled(model, fold, "maximum"), _KS)
    return Outcome({f"R@{k}": metric for k, metric in metrics.items()}, {"pooling": "maximum"})


def recall(
    query: np.ndarray, query_label: np.ndarray, gallery: np.ndarray, gallery_label: np.ndarray, ks: Sequence[int]
) -> dict[int, Measured]:
    """R@k: share of queries [q, dim] with their class among the k nearest of the gallery [g, dim]; see `nearest`.

    Labels are arrays [q] and [g].
    """
    hits = gallery_label[nearest_rows(query, gallery, max(ks))] == query_label[:, None]
    random = chance(query_label, gallery_label, ks)
    return {k: measured(hits[:, :k].any(1), random[k]) for k in ks}


def chance(query_label: np.ndarray, gallery_label: np.ndarray, ks: Sequence[int]) -> dict[int, float]:
    """R@k of a random order of the gallery, in percent."""
    total = len(gallery_label)
    labels, queries = np.unique(query_label, return_counts=True)
    same = np.array([(gallery_label == label).sum() for label in labels])
    found = {k: stats.hypergeom.sf(0, total, same, min(k, total)) for k in ks}
    return {k: float(100 * np.average(share, weights=queries)) for k, share in found.items()}
