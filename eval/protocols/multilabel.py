"""Mean average precision over the labels of videos that have any number of them, with frozen features."""

import math
from collections import Counter

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler

from gdt.common.errors import UserError
from gdt.common.intervals import Z
from gdt.eval.classification import fit, fit_warnings
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome, Pooled
from gdt.eval.metrics import Measured, Metric
from gdt.pipeline.shards.index import LABEL_SEPARATOR, labels_in, names_in


def multilabel(job: Job, fold: Fold) -> Outcome:
    """Mean average precision, and over how many labels."""
    measured, warning = mean_average_precision(job.pooled(fold, "average"), job.settings.linear_c)
    queries = fold.query_label
    gallery = fold.gallery_label
    used = f"mAP is over the {len(counted(queries, gallery))} of {len(names_in([*queries, *gallery]))} in both parts"
    bare = f"{(queries == '').sum()} queries and {(gallery == '').sum()} gallery videos have none: negatives of all"
    return Outcome({"mAP": measured}, {"pooling": "average", "labels": f"{used}; {bare}"}, warning=warning)


def mean_average_precision(features: Pooled, c: float) -> tuple[Measured, str]:
    """Mean average precision, in percent, of a logistic regression per label, with an interval over labels; and what
    scikit-learn warned of.

    Labels are names joined by LABEL_SEPARATOR; videos without one are negatives. Raises UserError if fewer than two
    labels are `counted`.
    """
    query, query_label, train, train_label = features
    scaler = StandardScaler().fit(train)
    train = scaler.transform(train)
    query = scaler.transform(query)
    precisions: list[float] = []
    prevalences: list[float] = []
    caught: list[Warning] = []
    for name in counted(query_label, train_label):
        has = np.array([name in labels_in(cell) for cell in query_label])
        had = np.array([name in labels_in(cell) for cell in train_label])
        probe = LogisticRegression(C=c, max_iter=2000)
        caught += fit(probe, train, had)
        precisions.append(average_precision_score(has, probe.decision_function(query)))
        prevalences.append(has.mean())
    if len(precisions) < 2:
        raise UserError(
            f"only {len(precisions)} labels are in both gallery and queries; set --label to a column of names joined "
            f"by '{LABEL_SEPARATOR}'"
        )
    value = float(np.mean(precisions))
    error = float(np.std(precisions, ddof=1) / math.sqrt(len(precisions)))
    low = 100 * min(1.0, max(0.0, value - Z * error))
    high = 100 * min(1.0, max(0.0, value + Z * error))
    metric = Metric(100 * value, 100 * float(np.mean(prevalences)), len(query), bounds=(low, high))
    return Measured(metric, np.array(precisions)), fit_warnings(caught, len(precisions))


def counted(query_label: np.ndarray, train_label: np.ndarray) -> list[str]:
    """The labels that queries and some, but not all, training videos have: names joined by LABEL_SEPARATOR."""
    had = Counter(name for cell in train_label for name in labels_in(cell))
    return [name for name in names_in(query_label) if 0 < had[name] < len(train_label)]
