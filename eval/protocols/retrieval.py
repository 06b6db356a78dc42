"""Retrieval of videos of the same class with frozen features (table 3, section A.3.6)."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome
from gdt.eval.metrics import Measured, measured
from gdt.eval.similarity import nearest_rows

_KS = (1, 5, 20)
"""k of R@k, as in the paper."""
NEIGHBOURS = 5
"""Neighbours of each query that are kept, to be shown."""


def retrieval(job: Job, fold: Fold) -> Outcome:
    """R@k of the queries among the gallery."""
    query, query_label, gallery, gallery_label = job.pooled(fold, "maximum")
    neighbours = nearest_rows(query, gallery, max(_KS))
    metrics = recall(gallery_label[neighbours], query_label, gallery_label, _KS)
    shown = fold.gallery[neighbours[:, :NEIGHBOURS]]
    return Outcome({f"R@{k}": metric for k, metric in metrics.items()}, {"pooling": "maximum"}, neighbours=shown)


def recall(
    found: np.ndarray, query_label: np.ndarray, gallery_label: np.ndarray, ks: Sequence[int]
) -> dict[int, Measured]:
    """R@k: share of queries whose class is among those of the k nearest of the gallery, `found` [q, k].

    Labels are arrays [q] and [g].
    """
    hits = found == query_label[:, None]
    random = chance(query_label, gallery_label, ks)
    return {k: measured(hits[:, :k].any(1), random[k]) for k in ks}


def chance(query_label: np.ndarray, gallery_label: np.ndarray, ks: Sequence[int]) -> dict[int, float]:
    """R@k of a random order of the gallery, in percent."""
    total = len(gallery_label)
    labels, queries = np.unique(query_label, return_counts=True)
    same = np.array([(gallery_label == label).sum() for label in labels])
    found = {k: stats.hypergeom.sf(0, total, same, min(k, total)) for k in ks}
    return {k: float(100 * np.average(share, weights=queries)) for k, share in found.items()}
