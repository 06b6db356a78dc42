"""Video retrieval and few-shot classification with frozen features (table 3, section A.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.errors import UserError

_QUERIES = 1024
"""Queries compared with the gallery at once."""


class Accuracy(NamedTuple):
    """Top-1 accuracy in percent over several draws of the shots."""

    mean: float
    std: float


def recall(
    query: np.ndarray, query_label: np.ndarray, gallery: np.ndarray, gallery_label: np.ndarray, ks: Sequence[int]
) -> dict[int, float]:
    """R@k in percent: how many queries have their class among the k nearest gallery videos by cosine.

    `query` [q, dim] and `gallery` [g, dim] are features; labels are arrays [q] and [g].
    """
    gallery, query = _unit(gallery), _unit(query)
    found: dict[int, list[np.ndarray]] = {k: [] for k in ks}
    for first in range(0, len(query), _QUERIES):  # in parts: the whole matrix would not fit for large data sets
        nearest = _nearest(query[first : first + _QUERIES] @ gallery.T, max(ks))
        hits = gallery_label[nearest] == query_label[first : first + _QUERIES, None]
        for k in ks:
            found[k].append(hits[:, :k].any(1))
    return {k: float(100 * np.concatenate(parts).mean()) for k, parts in found.items()}


def _nearest(similarity: np.ndarray, k: int) -> np.ndarray:
    """Columns of the k largest entries of every row, largest first: int64 [rows, k]."""
    k = min(k, similarity.shape[1])
    some = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(similarity, some, 1), axis=1, kind="stable")
    return np.take_along_axis(some, order, 1)


def few_shot(
    query: np.ndarray, query_label: np.ndarray, train: np.ndarray, train_label: np.ndarray, shots: int, draws: int,
    seed: int = 0,
) -> Accuracy:  # fmt: skip
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
    return Accuracy(float(np.mean(accuracies)), float(np.std(accuracies)))


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
