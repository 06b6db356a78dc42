"""Weighted k-nearest-neighbour classification with frozen features (Wu et al. 2018, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from gdt.eval.evaluator import Evaluator, Outcome
from gdt.eval.folds import Fold
from gdt.eval.metrics import Measured, measured
from gdt.eval.similarity import unit
from gdt.eval.subjects import Subject

_KS = (20, 200)
"""Neighbours that vote; 200 is the paper's."""
TEMPERATURE = 0.07


def knn(evaluator: Evaluator, model: Subject, fold: Fold, _: Path) -> Outcome:
    """Top-1 accuracy with `_KS` neighbours, or all training videos where there are fewer."""
    metrics = weighted_knn(*evaluator.pooled(model, fold, "average"), _KS)
    details = {"pooling": "average", "temperature": str(TEMPERATURE)}
    videos = len(fold.gallery)
    cut = [f"{k}-NN" for k in _KS if k > videos]
    if cut:
        details["neighbours"] = f"{' and '.join(cut)} of all {videos} training videos, which are fewer"
    return Outcome({f"{k}-NN top-1": measured for k, measured in metrics.items()}, details)


def weighted_knn(
    query: np.ndarray, query_label: np.ndarray, train: np.ndarray, train_label: np.ndarray, ks: Sequence[int]
) -> dict[int, Measured]:
    """Top-1 accuracy, by k, of a vote of the k nearest by cosine, which weigh exp(cosine / `TEMPERATURE`).

    Features are [q, dim] and [n, dim], labels [q] and [n]. k is at most n. Ties go to the first class.
    """
    known = np.isin(query_label, train_label).mean()
    chance = 100 * float(known) / len(np.unique(train_label))
    train = unit(train)
    query = unit(query)
    metrics: dict[int, Measured] = {}
    for k in ks:
        voters = KNeighborsClassifier(min(k, len(train)), weights=_votes, algorithm="brute").fit(train, train_label)
        metrics[k] = measured(voters.predict(query) == query_label, chance)
    return metrics


def _votes(distance: np.ndarray) -> np.ndarray:
    """exp(cosine / `TEMPERATURE`) of vectors of length 1 at these distances."""
    cosine = 1 - distance**2 / 2
    return np.exp(cosine / TEMPERATURE)
