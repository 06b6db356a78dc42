"""Logistic regression on frozen features."""

from sklearn.linear_model import LogisticRegression

from gdt.eval.classification import linear_probe
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome


def linear(job: Job, fold: Fold) -> Outcome:
    """Top-1 and top-5 accuracy of a logistic regression."""
    classifier = LogisticRegression(C=job.settings.linear_c, max_iter=2000)
    accuracy, warning = linear_probe(classifier, job.pooled(fold, "average"), (1, 5))
    metrics = {f"linear top-{k}": measured for k, measured in accuracy.items()}
    return Outcome(metrics, {"pooling": "average"}, warning=warning)
