"""Weighted k-nearest-neighbour classification with frozen features (Wu et al. 2018, section 3.4)."""

from collections.abc import Sequence

import numpy as np

from gdt.eval.classification import targets
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome, Pooled
from gdt.eval.metrics import Measured, measured
from gdt.eval.similarity import nearest_rows, unit

_KS = (20, 200)
"""Neighbours that vote; 200 is the paper's."""
TEMPERATURE = 0.07


def knn(job: Job, fold: Fold) -> Outcome:
    """Top-1 accuracy with `_KS` neighbours, or all training videos where there are fewer."""
    metrics = weighted_knn(job.pooled(fold, "average"), _KS)
    details = {"pooling": "average", "temperature": str(TEMPERATURE)}
    videos = len(fold.gallery)
    cut = [f"{k}-NN" for k in _KS if k > videos]
    if cut:
        details["neighbours"] = f"{' and '.join(cut)} of all {videos} training videos, which are fewer"
    return Outcome({f"{k}-NN top-1": measured for k, measured in metrics.items()}, details)


def weighted_knn(features: Pooled, ks: Sequence[int]) -> dict[int, Measured]:
    """Top-1 accuracy, by k, of a vote of the k nearest by cosine, or of all, which weigh exp(cosine / `TEMPERATURE`).

    Ties go to the first class.
    """
    query, query_label, train, train_label = features
    classes = np.unique(train_label)
    train_target = targets(train_label, classes)
    known = float(np.isin(query_label, classes).mean())
    neighbours = nearest_rows(query, train, max(ks))
    query = unit(query)
    train = unit(train)
    rows = np.arange(len(query))
    scores = np.zeros((len(query), len(classes)))
    metrics: dict[int, Measured] = {}
    for count, column in enumerate(neighbours.T, 1):  # the next neighbour of every query
        cosine = (query * train[column]).sum(1)
        scores[rows, train_target[column]] += np.exp(cosine / TEMPERATURE)
        for k in ks:
            if count == min(k, len(train)):
                right = classes[scores.argmax(1)] == query_label
                metrics[k] = measured(right, 100 * known / len(classes))
    return metrics
