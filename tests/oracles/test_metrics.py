"""Metrics against scikit-learn, SciPy and torchmetrics."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, top_k_accuracy_score
from sklearn.neighbors import KNeighborsClassifier

from gdt.eval.classification import targets, top_k
from gdt.eval.jobs import Pooled
from gdt.eval.metrics import measured
from gdt.eval.protocols import multilabel
from gdt.eval.protocols.multilabel import mean_average_precision
from gdt.eval.protocols.retrieval import recall
from gdt.eval.similarity import nearest_rows
from tests.oracles import library

pytestmark = pytest.mark.oracles
RNG = np.random.default_rng(0)
CLASSES = np.array(["a", "b", "c", "d", "e"])


def features(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 6] of clusters that overlap, and their classes."""
    label = RNG.integers(0, len(CLASSES), n)
    centres = np.random.default_rng(1).normal(size=(len(CLASSES), 6))
    return (centres[label] + RNG.normal(0, 1.5, (n, 6))).astype(np.float32), CLASSES[label]


QUERY, QUERY_LABEL = features(83)
GALLERY, GALLERY_LABEL = features(131)


@pytest.mark.parametrize("k", [1, 5, 20])
def test_recall_equals_the_hit_rate_of_torchmetrics(k: int) -> None:
    hit_rate = library("torchmetrics.functional.retrieval").retrieval_hit_rate
    units = [torch.nn.functional.normalize(torch.from_numpy(x), dim=1) for x in (QUERY, GALLERY)]
    relevant = torch.from_numpy(QUERY_LABEL[:, None] == GALLERY_LABEL)
    hits = [hit_rate(*pair, top_k=k).item() for pair in zip(units[0] @ units[1].T, relevant, strict=True)]
    found = recall(GALLERY_LABEL[nearest_rows(QUERY, GALLERY, k)], QUERY_LABEL, GALLERY_LABEL, [k])[k]
    assert found.metric.value == pytest.approx(100 * np.mean(hits), abs=1e-9)


def test_the_nearest_neighbour_equals_scikit_learns() -> None:
    neighbour = KNeighborsClassifier(1, metric="cosine", algorithm="brute").fit(GALLERY, GALLERY_LABEL)
    first = GALLERY_LABEL[nearest_rows(QUERY, GALLERY, 1)[:, 0]]
    assert (first == neighbour.predict(QUERY)).all()


@pytest.mark.parametrize("k", [1, 3])
def test_top_k_accuracy_equals_scikit_learns(k: int) -> None:
    scores = RNG.normal(size=(83, len(CLASSES)))
    target = targets(QUERY_LABEL, CLASSES)
    expected = top_k_accuracy_score(target, scores, k=k, labels=range(len(CLASSES)))
    assert top_k(scores, target, [k])[k].metric.value == pytest.approx(100 * expected, abs=1e-9)


def test_mean_average_precision_equals_torchmetrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same scores of each label's classifier."""
    functional = library("torchmetrics.functional.classification")
    scores = []

    def noted(has: np.ndarray, score: np.ndarray) -> float:
        scores.append((has, score))
        value: float = average_precision_score(has, score)
        return value

    monkeypatch.setattr(multilabel, "average_precision_score", noted)
    found, _ = mean_average_precision(Pooled(QUERY, QUERY_LABEL, GALLERY, GALLERY_LABEL), 1.0)
    has, score = (torch.from_numpy(np.stack(values, 1)) for values in zip(*scores, strict=True))
    expected = functional.multilabel_average_precision(score.sigmoid(), has.int(), len(scores))
    assert found.metric.value == pytest.approx(100 * expected.item(), abs=1e-3)


@pytest.mark.parametrize("right", [0, 1, 41, 82, 83])
def test_intervals_equal_scipys(right: int) -> None:
    found = measured(np.arange(83) < right, 0.0).metric
    expected = binomtest(right, 83).proportion_ci(0.95, method="wilson")
    assert found.interval == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-9)
