"""One-versus-rest linear support vector machines on frozen features."""

from sklearn.svm import LinearSVC

from gdt.eval.classification import linear_probe
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome


def svm(job: Job, fold: Fold) -> Outcome:
    """Top-1 accuracy of linear SVMs."""
    classifier = LinearSVC(C=job.settings.linear_c, random_state=0)
    accuracy, warning = linear_probe(classifier, job.pooled(fold, "average"), (1,))
    return Outcome({"SVM top-1": accuracy[1]}, {"pooling": "average"}, warning=warning)
