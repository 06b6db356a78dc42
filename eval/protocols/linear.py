"""Logistic regression on frozen features."""

from pathlib import Path

from sklearn.linear_model import LogisticRegression

from gdt.eval.classification import linear_probe
from gdt.eval.evaluator import Evaluator, Outcome
from gdt.eval.folds import Fold
from gdt.eval.subjects import Subject


def linear(evaluator: Evaluator, model: Subject, fold: Fold, _: Path) -> Outcome:
    """Top-1 and top-5 accuracy of a logistic regression."""
    classifier = LogisticRegression(C=evaluator.settings.linear_c, max_iter=2000)
    accuracy, warning = linear_probe(classifier, *evaluator.pooled(model, fold, "average"), (1, 5))
    metrics = {f"linear top-{k}": measured for k, measured in accuracy.items()}
    return Outcome(metrics, {"pooling": "average"}, warning=warning)
