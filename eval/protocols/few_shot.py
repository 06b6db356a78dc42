"""Few-shot classification with frozen features (table 3, section A.3.6)."""

import numpy as np

from gdt.common.randomness import Stream, generator
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome, Pooled
from gdt.eval.metrics import Measured, Metric
from gdt.eval.similarity import nearest_rows

SHOTS = (1, 5, 20)
"""Training videos per class."""
_DRAWS = 20
"""Random choices of shots that accuracies are averaged over."""


def few_shot(job: Job, fold: Fold) -> Outcome:
    """Accuracies with the shots that the smallest class has."""
    features = job.pooled(fold, "average")
    seed = job.settings.seed
    smallest = np.unique(fold.gallery_label, return_counts=True)[1].min()
    metrics = {f"{shots}-shot": accuracy(features, shots, _DRAWS, seed) for shots in SHOTS if shots <= smallest}
    details = {"pooling": "average", "draws": f"{_DRAWS}, seed {seed}", "videos of the smallest class": str(smallest)}
    return Outcome(metrics, details)


def accuracy(features: Pooled, shots: int, draws: int, seed: int = 0) -> Measured:
    """Top-1 accuracy of the nearest neighbour by cosine among `shots` training videos per class, which all must have.

    Mean and standard deviation over `draws` random choices.
    """
    query, query_label, train, train_label = features
    rng = generator(Stream.SHOTS, seed)
    members = {label: np.flatnonzero(train_label == label) for label in np.unique(train_label)}
    accuracies = []
    right = np.zeros(len(query))
    for _ in range(draws):
        chosen = np.concatenate([rng.choice(rows, shots, replace=False) for rows in members.values()])
        neighbours = chosen[nearest_rows(query, train[chosen], 1)[:, 0]]
        answers = train_label[neighbours] == query_label
        right += answers / draws
        accuracies.append(100 * answers.mean())
    known = np.isin(query_label, list(members)).mean()
    spread = float(np.std(accuracies, ddof=1))
    metric = Metric(float(np.mean(accuracies)), 100 * known / len(members), len(query), spread)
    return Measured(metric, right)
