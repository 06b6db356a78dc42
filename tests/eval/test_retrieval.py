"""Retrieval and few-shot classification against slow counting."""

from __future__ import annotations

import numpy as np
import pytest

from eval.retrieval import chance, few_shot, recall
from pipeline.errors import UserError


def features(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = np.repeat(list("abcd"), 6)
    centre = rng.normal(size=(4, 5))[np.repeat(np.arange(4), 6)]
    return centre + rng.normal(size=(24, 5)), label, centre + rng.normal(size=(24, 5)), label


def test_recall_equals_counting() -> None:
    query, query_label, gallery, gallery_label = features()
    for k in (1, 5, 20):
        hits = 0
        for x, label in zip(query, query_label, strict=True):
            cosine = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in gallery]
            hits += label in [gallery_label[j] for j in np.argsort(cosine)[::-1][:k]]
        assert recall(query, query_label, gallery, gallery_label, (k,))[k] == pytest.approx(100 * hits / 24)


def test_chance_is_the_mean_over_random_orders() -> None:
    query, query_label, gallery, gallery_label = features()
    rng = np.random.default_rng(0)
    found = [recall(query, query_label, rng.normal(size=gallery.shape), gallery_label, (1, 5))[5] for _ in range(300)]
    assert chance(query_label, gallery_label, (1, 5))[1] == pytest.approx(25)
    assert chance(query_label, gallery_label, (5,))[5] == pytest.approx(np.mean(found), abs=3)


def test_few_shot_with_all_shots_is_the_nearest_neighbour() -> None:
    query, query_label, train, train_label = features()
    mean, deviation = few_shot(query, query_label, train, train_label, shots=6, draws=3)
    assert mean == pytest.approx(recall(query, query_label, train, train_label, (1,))[1])
    assert deviation < 1e-9
    one, spread = few_shot(query, query_label, train, train_label, shots=1, draws=20)
    assert one < mean + 1e-9 and spread > 0


def test_more_shots_than_videos_is_an_error() -> None:
    query, query_label, train, train_label = features()
    with pytest.raises(UserError, match="class 'a' has 6 training videos, fewer than 7 shots"):
        few_shot(query, query_label, train, train_label, shots=7, draws=1)
