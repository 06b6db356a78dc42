"""Linear classifiers of frozen features: logistic regression and support vector machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from gdt.eval.classification import classes_of, fit, fit_warnings, targets, top_k
from gdt.eval.evaluator import Evaluator, Outcome
from gdt.eval.folds import Fold
from gdt.eval.metrics import Measured
from gdt.eval.subjects import Subject


def linear(evaluator: Evaluator, model: Subject, fold: Fold, _: Path) -> Outcome:
    """Top-1 and top-5 accuracy of a logistic regression."""
    features = evaluator.pooled(model, fold, "average")
    accuracy, warning = linear_probe(*features, evaluator.settings.linear_c, (1, 5))
    metrics = {f"linear top-{k}": measured for k, measured in accuracy.items()}
    return Outcome(metrics, {"pooling": "average"}, warning=warning)


def svm(evaluator: Evaluator, model: Subject, fold: Fold, _: Path) -> Outcome:
    """Top-1 accuracy of linear SVMs."""
    features = evaluator.pooled(model, fold, "average")
    accuracy, warning = linear_probe(*features, evaluator.settings.linear_c, (1,), svm=True)
    return Outcome({"SVM top-1": accuracy[1]}, {"pooling": "average"}, warning=warning)


def linear_probe(
    query: np.ndarray,
    query_label: np.ndarray,
    train: np.ndarray,
    train_label: np.ndarray,
    c: float,
    ks: Sequence[int],
    svm: bool = False,
) -> tuple[dict[int, Measured], str]:
    """Top-k accuracy by k, for k below the number of classes, of a logistic regression on standardised features, or of
    one-versus-rest linear SVMs; and what scikit-learn warned of.

    `c` is the inverse strength of L2 regularisation. Raises UserError if there is only one class.
    """
    classes = classes_of(train_label)
    classifier = LinearSVC(C=c, random_state=0) if svm else LogisticRegression(C=c, max_iter=2000)
    probe = make_pipeline(StandardScaler(), classifier)
    caught = fit(probe, train, targets(train_label, classes))
    scores = probe.decision_function(query)
    if len(classes) == 2:
        scores = np.stack([-scores, scores], 1)
    return top_k(scores, targets(query_label, classes), ks), fit_warnings(caught, 1)
