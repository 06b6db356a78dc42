"""Video retrieval, few-shot classification and linear probes with frozen features (table 3, section A.3.6)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from gdt.common.errors import UserError
from gdt.common.streams import Stream, generator
from gdt.eval.metrics import Metric, Z, share
from gdt.pipeline.shards.layout import LABEL_SEPARATOR, labels_in, names_in


def nearest(query: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k rows of the gallery [g, dim] nearest by cosine, nearest first: int64 [q, min(k, g)].

    In bounded memory.
    """
    # distances of unit vectors have the order of their cosines, and scikit-learn is faster with distances
    neighbours = NearestNeighbors(n_neighbors=min(k, len(gallery)), algorithm="brute").fit(unit(gallery))
    found: np.ndarray = neighbours.kneighbors(unit(query), return_distance=False)
    return found


def recall(
    query: np.ndarray, query_label: np.ndarray, gallery: np.ndarray, gallery_label: np.ndarray, ks: Sequence[int]
) -> dict[int, Metric]:
    """R@k: share of queries [q, dim] with their class among the k nearest of the gallery [g, dim]; see `nearest`.

    Labels are arrays [q] and [g].
    """
    hits = gallery_label[nearest(query, gallery, max(ks))] == query_label[:, None]
    random = chance(query_label, gallery_label, ks)
    return {k: share(hits[:, :k].any(1), random[k]) for k in ks}


def few_shot(
    query: np.ndarray, query_label: np.ndarray, train: np.ndarray, train_label: np.ndarray, shots: int, draws: int,
    seed: int = 0,
) -> Metric:  # fmt: skip
    """Top-1 accuracy of the nearest neighbour by cosine among `shots` training videos per class, which all must have.

    Mean and standard deviation over `draws` random choices.
    """
    rng = generator(Stream.SHOTS, seed)
    members = {label: np.flatnonzero(train_label == label) for label in np.unique(train_label)}
    accuracies = []
    for _ in range(draws):
        chosen = np.concatenate([rng.choice(rows, shots, replace=False) for rows in members.values()])
        found = chosen[nearest(query, train[chosen], 1)[:, 0]]
        accuracies.append(100 * (train_label[found] == query_label).mean())
    known = np.isin(query_label, list(members)).mean()
    spread = float(np.std(accuracies, ddof=1))
    return Metric(float(np.mean(accuracies)), 100 * known / len(members), len(query), spread)


def linear_probe(
    query: np.ndarray, query_label: np.ndarray, train: np.ndarray, train_label: np.ndarray, c: float, ks: Sequence[int],
    svm: bool = False,
) -> dict[int, Metric]:  # fmt: skip
    """Top-k accuracy, for k below the number of classes, of a logistic regression on standardised features, or of
    one-versus-rest linear SVMs.

    `c` is the inverse strength of L2 regularisation. Raises UserError if there is only one class.
    """
    classes = classes_of(train_label)
    classifier = LinearSVC(C=c, random_state=0) if svm else LogisticRegression(C=c, max_iter=2000)
    with threadpool_limits(1):  # on busy cores, threads wait for each other after each of many small products
        probe = make_pipeline(StandardScaler(), classifier).fit(train, targets(train_label, classes))
    scores = probe.decision_function(query)
    if len(classes) == 2:
        scores = np.stack([-scores, scores], 1)
    return top_k(scores, targets(query_label, classes), ks)


def mean_average_precision(
    query: np.ndarray, query_label: np.ndarray, train: np.ndarray, train_label: np.ndarray, c: float
) -> Metric:
    """Mean average precision, in percent, of a logistic regression per label, with an interval over labels.

    `query_label` [q] and `train_label` [n] are names joined by LABEL_SEPARATOR; those without a label are negatives.
    Raises UserError if fewer than two labels are `counted`.
    """
    scaler = StandardScaler().fit(train)
    precisions, prevalences = [], []
    with threadpool_limits(1):
        for name in counted(query_label, train_label):
            has, had = (np.array([name in labels_in(cell) for cell in rows]) for rows in (query_label, train_label))
            probe = LogisticRegression(C=c, max_iter=2000).fit(scaler.transform(train), had)
            precisions.append(average_precision_score(has, probe.decision_function(scaler.transform(query))))
            prevalences.append(has.mean())
    if len(precisions) < 2:
        raise UserError(
            f"only {len(precisions)} labels are in both gallery and queries; set --label to a column of names joined "
            f"by '{LABEL_SEPARATOR}'"
        )
    value, error = float(np.mean(precisions)), float(np.std(precisions, ddof=1) / math.sqrt(len(precisions)))
    low, high = (min(1.0, max(0.0, value + sign * Z * error)) for sign in (-1, 1))
    return Metric(100 * value, 100 * float(np.mean(prevalences)), len(query), bounds=(100 * low, 100 * high))


def counted(query_label: np.ndarray, train_label: np.ndarray) -> list[str]:
    """The labels that queries and some, but not all, training videos have; arguments as of `mean_average_precision`."""
    had = Counter(name for cell in train_label for name in labels_in(cell))
    return [name for name in names_in(query_label) if 0 < had[name] < len(train_label)]


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


def chance(query_label: np.ndarray, gallery_label: np.ndarray, ks: Sequence[int]) -> dict[int, float]:
    """R@k of a random order of the gallery, in percent."""
    total = len(gallery_label)
    labels, queries = np.unique(query_label, return_counts=True)
    others = total - np.array([(gallery_label == label).sum() for label in labels])
    found = {}
    for k in ks:
        drawn = np.arange(min(k, total))
        missed = np.prod(np.maximum(others[:, None] - drawn, 0) / (total - drawn), axis=1)
        found[k] = float(100 * (1 - np.average(missed, weights=queries)))
    return found


def unit(features: np.ndarray) -> np.ndarray:
    """Features scaled to length 1. Raises UserError if some are NaN or infinite."""
    if not np.isfinite(features).all():
        raise UserError(
            "the features contain NaN or infinity: the weights are damaged, or training diverged; use another "
            "checkpoint"
        )
    scaled: np.ndarray = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return scaled
