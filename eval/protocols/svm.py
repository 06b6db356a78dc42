"""One-versus-rest linear support vector machines on frozen features."""

from pathlib import Path

from sklearn.svm import LinearSVC

from gdt.eval.classification import linear_probe
from gdt.eval.evaluator import Evaluator, Outcome
from gdt.eval.folds import Fold
from gdt.eval.subjects import Subject


def svm(evaluator: Evaluator, model: Subject, fold: Fold, _: Path) -> Outcome:
    """Top-1 accuracy of linear SVMs."""
    classifier = LinearSVC(C=evaluator.settings.linear_c, random_state=0)
    accuracy, warning = linear_probe(classifier, *evaluator.pooled(model, fold, "average"), (1,))
    return Outcome({"SVM top-1": accuracy[1]}, {"pooling": "average"}, warning=warning)
