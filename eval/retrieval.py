"""Video retrieval and few-shot classification with frozen features (table 3, section A.5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.errors import UserError


def recall(
    query: np.ndarray, query_label: np.ndarray, gallery: np.ndarray, gallery_label: np.ndarray, ks: Sequence[int]
) -> dict[int, float]:
    """R@k in percent: how many queries have their class among the k nearest gallery videos by cosine.

    `query` [q, dim] and `gallery` [g, dim] are features; labels are arrays [q] and [g].
    """
    similarity = _unit(query) @ _unit(gallery).T
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, : max(ks)]
    hits = gallery_label[nearest] == query_label[:, None]
    return {k: float(100 * hits[:, :k].any(1).mean()) for k in ks}


def few_shot(
    query: np.ndarray, query_label: np.ndarray, train: np.ndarray, train_label: np.ndarray, shots: int, draws: int,
    seed: int = 0,
) -> tuple[float, float]:  # fmt: skip
    """Top-1 accuracy in percent of the nearest neighbour among `shots` training videos per class, by cosine.

    Mean and standard deviation over `draws` random choices of those videos. Raises UserError where a class has fewer.
    """
    rng = np.random.default_rng(seed)
    members = {label: np.flatnonzero(train_label == label) for label in np.unique(train_label)}
    smallest = min(members, key=lambda label: len(members[label]))
    if len(members[smallest]) < shots:
        raise UserError(f"class '{smallest}' has {len(members[smallest])} training videos, fewer than {shots} shots")
    similarity = _unit(query) @ _unit(train).T
    accuracies = []
    for _ in range(draws):
        chosen = np.concatenate([rng.choice(rows, shots, replace=False) for rows in members.values()])
        nearest = chosen[similarity[:, chosen].argmax(1)]
        accuracies.append(100 * (train_label[nearest] == query_label).mean())
    return float(np.mean(accuracies)), float(np.std(accuracies))


def chance(query_label: np.ndarray, gallery_label: np.ndarray, ks: Sequence[int]) -> dict[int, float]:
    """R@k in percent of a random order of the gallery."""
    total = len(gallery_label)
    found = {}
    for k in ks:
        missed = []
        for label in query_label:
            others = total - int((gallery_label == label).sum())
            missed.append(np.prod([max(others - j, 0) / (total - j) for j in range(min(k, total))]))
        found[k] = float(100 * (1 - np.mean(missed)))
    return found


def _unit(features: np.ndarray) -> np.ndarray:
    unit: np.ndarray = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return unit
