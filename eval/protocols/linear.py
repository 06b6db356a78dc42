"""Linear classifiers of frozen features: logistic regression and support vector machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from gdt.eval.classification import classes_of, describe, fit, targets, top_k
from gdt.eval.evaluator import Evaluator, Outcome
from gdt.eval.metrics import Measured
from gdt.eval.subjects import Fold, Subject


def linear(evaluator: Evaluator, model: Subject, fold: Fold, _: Path) -> Outcome:
    """Top-1 and top-5 accuracy of a logistic regression."""
    probed = linear_probe(*evaluator.pooled(model, fold, "average"), evaluator.settings.linear_c, (1, 5))
    metrics = {f"linear top-{k}": measured for k, measured in probed.accuracy.items()}
    return Outcome(metrics, {"pooling": "average", **probed.warning})


def svm(evaluator: Evaluator, model: Subject, fold: Fold, _: Path) -> Outcome:
    """Top-1 accuracy of linear SVMs."""
    features = evaluator.pooled(model, fold, "average")
    probed = linear_probe(*features, evaluator.settings.linear_c, (1,), svm=True)
    return Outcome({"SVM top-1": probed.accuracy[1]}, {"pooling": "average", **probed.warning})


class Probed(NamedTuple):
    """What a linear classifier found."""

    accuracy: dict[int, Measured]
    """Top-k accuracy, by k."""
    warning: dict[str, str]
    """What scikit-learn warned of, as the detail `warning`."""


def linear_probe(
    query: np.ndarray,
    query_label: np.ndarray,
    train: np.ndarray,
    train_label: np.ndarray,
    c: float,
    ks: Sequence[int],
    svm: bool = False,
) -> Probed:
    """Top-k accuracy, for k below the number of classes, of a logistic regression on standardised features, or of
    one-versus-rest linear SVMs.

    `c` is the inverse strength of L2 regularisation. Raises UserError if there is only one class.
    """
    classes = classes_of(train_label)
    classifier = LinearSVC(C=c, random_state=0) if svm else LogisticRegression(C=c, max_iter=2000)
    probe = make_pipeline(StandardScaler(), classifier)
    caught = fit(probe, train, targets(train_label, classes))
    scores = probe.decision_function(query)
    if len(classes) == 2:
        scores = np.stack([-scores, scores], 1)
    return Probed(top_k(scores, targets(query_label, classes), ks), describe(caught, 1))
