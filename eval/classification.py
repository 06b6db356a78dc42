"""Classes of labels, fitting of classifiers, and accuracy of their scores."""

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from gdt.common.errors import UserError
from gdt.eval.jobs import Pooled
from gdt.eval.metrics import Measured, measured


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


def fit(classifier: Any, features: np.ndarray, target: np.ndarray) -> list[Warning]:
    """Fit a classifier of scikit-learn to features [n, dim]; returns its warnings, for `fit_warnings`."""
    # on busy cores, threads wait for each other after each of many small products
    with threadpool_limits(1), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier.fit(features, target)
    return [record.message for record in caught if isinstance(record.message, Warning)]


def fit_warnings(caught: Sequence[Warning], fits: int) -> str:
    """The warnings of several fits in words; empty without."""
    texts: Counter[str] = Counter()
    for warning in caught:
        if isinstance(warning, ConvergenceWarning):
            texts["did not converge (a lower --linear-c helps)"] += 1
        else:
            texts[f"warned: {' '.join(str(warning).split())}"] += 1
    sentences = []
    for text, count in texts.items():
        subject = "the classifier" if fits == 1 else f"{count} of {fits} classifiers"
        sentences.append(f"{subject} {text}")
    return "; ".join(sentences)


def top_k(scores: np.ndarray, target: np.ndarray, ks: Sequence[int]) -> dict[int, Measured]:
    """Share of rows whose target is among the k highest scores [n, classes], for k below the number of classes.

    Ties go to the first class. A target of -1 (a class without training videos) is never right.
    """
    classes = scores.shape[1]
    order = np.argsort(-scores, axis=1, kind="stable")
    known = (target >= 0).mean()
    hits = order == target[:, None]
    return {k: measured(hits[:, :k].any(1), 100 * known * k / classes) for k in ks if k < classes}


def linear_probe(classifier: Any, features: Pooled, ks: Sequence[int]) -> tuple[dict[int, Measured], str]:
    """`top_k` of a linear classifier of scikit-learn on standardised features, and what scikit-learn warned of.

    Raises UserError if there is only one class.
    """
    query, query_label, train, train_label = features
    classes = classes_of(train_label)
    probe = make_pipeline(StandardScaler(), classifier)
    caught = fit(probe, train, targets(train_label, classes))
    scores = probe.decision_function(query)
    if len(classes) == 2:
        scores = np.stack([-scores, scores], 1)
    return top_k(scores, targets(query_label, classes), ks), fit_warnings(caught, 1)
