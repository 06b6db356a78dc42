"""Features, retrieval, few-shot and linear classification against slow counting."""

import errno
import math
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.eval import extract
from gdt.eval.classification import fit, fit_warnings, linear_probe, targets, top_k
from gdt.eval.jobs import Pooled
from gdt.eval.protocols.few_shot import accuracy
from gdt.eval.protocols.knn import weighted_knn
from gdt.eval.protocols.retrieval import chance, recall
from gdt.eval.similarity import nearest_rows
from gdt.pipeline.shards.index import Index
from gdt.train.checkpoint import load_model
from tests.pipeline.test_loader import CPU


def test_features_are_cached(index: Index, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, path = load_model(checkpoint), tmp_path / "m" / "features.npz"

    def compute(group: np.ndarray) -> extract.PooledFeatures:
        return extract.extract(trained, index, group, 2, CPU)

    first = extract.cached_features(path, np.array([0, 30]), compute)
    whole = compute(np.array([0, 7, 30]))
    more = extract.cached_features(path, np.array([7, 0]), compute)  # the missing video is added
    assert more.videos.tolist() == [0, 7, 30] and more.average.shape == more.maximum.shape == (3, 128)
    for one, other in ((more.average, whole.average), (more.maximum, whole.maximum)):  # whatever the batch
        assert np.allclose(one, other, atol=1e-5)
    assert np.array_equal(more.average[[0, 2]], first.average)
    again = extract.cached_features(path, np.array([30, 7]), Mock(side_effect=AssertionError))
    assert np.array_equal(again.maximum, more.maximum)
    path.write_bytes(path.read_bytes()[:-100])  # so all are computed again
    monkeypatch.setattr("gdt.eval.extract._GROUP", 2)
    stopped = Mock(side_effect=[compute(np.array([3, 7])), KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):  # the groups before are kept
        extract.cached_features(path, np.array([3, 7, 30]), stopped)
    kept = extract.read(path)
    assert kept is not None and kept.videos.tolist() == [3, 7] and kept.positions(np.array([7, 3])).tolist() == [1, 0]
    with pytest.raises(UserError, match="there are no features of 1 of the 2 videos; evaluate again"):
        kept.positions(np.array([3, 5]))


def test_damaged_features_are_computed_again(tmp_path: Path) -> None:
    path, videos = tmp_path / "features.npz", np.arange(20)
    values = np.random.default_rng(0).random((20, 8), np.float32)
    np.savez(path, videos=videos, average=values, maximum=values)
    whole = path.read_bytes()
    assert extract.read(path) is not None
    entry = whole.index(b"PK\x01\x02")  # an entry of the zip directory: version, flags and compression follow
    for index in (*range(entry, entry + 46), *range(0, len(whole), 97)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 64]) + whole[index + 1 :])
        found = extract.read(path)
        assert found is None or (np.array_equal(found.average, values) and np.array_equal(found.maximum, values))
    path.write_bytes(whole[: len(whole) // 2])
    assert extract.read(path) is None


def test_features_that_the_disk_does_not_give_are_not_taken_for_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numpy.load", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(UserError, match=r"cannot read f.npz \(Input/output error\); check its disk"):
        extract.read(Path("f.npz"))


def features() -> Pooled:
    rng = np.random.default_rng(0)
    label = np.repeat(list("abcd"), 6)
    centre = rng.normal(size=(4, 5))[np.repeat(np.arange(4), 6)]
    return Pooled(centre + rng.normal(size=(24, 5)), label, centre + rng.normal(size=(24, 5)), label)


def test_recall_equals_counting() -> None:
    query, query_label, gallery, gallery_label = features()
    for k in (1, 5, 20):
        hits = 0
        for x, label in zip(query, query_label, strict=True):
            cosine = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in gallery]
            hits += label in [gallery_label[j] for j in np.argsort(cosine)[::-1][:k]]
        found = recall(gallery_label[nearest_rows(query, gallery, 20)], query_label, gallery_label, (k,))[k].metric
        assert found.value == pytest.approx(100 * hits / 24) and found.answers == 24
        assert found.chance == pytest.approx(chance(query_label, gallery_label, (k,))[k])


def test_ties_have_the_same_order_on_any_number_of_threads() -> None:
    rng = np.random.default_rng(1)
    gallery = np.repeat(rng.normal(size=(2000, 128)).astype(np.float32), 3, axis=0)
    query = rng.normal(size=(200, 128)).astype(np.float32)
    found = []
    for threads in (1, 4):
        with threadpool_limits(threads):
            found.append(nearest_rows(query, gallery, 5))
    assert np.array_equal(*found)


def test_chance_is_the_mean_over_random_orders() -> None:
    query, query_label, gallery, gallery_label = features()
    rng = np.random.default_rng(0)
    found = [
        recall(gallery_label[nearest_rows(query, drawn, 5)], query_label, gallery_label, (5,))[5].metric.value
        for drawn in rng.normal(size=(300, *gallery.shape))
    ]
    assert chance(query_label, gallery_label, (1, 5))[1] == pytest.approx(25)
    assert chance(query_label, gallery_label, (5,))[5] == pytest.approx(np.mean(found), abs=3)


def test_few_shot_equals_counting() -> None:
    query, query_label, train, train_label = features()
    rng, accuracies = generator(Stream.SHOTS, 7), []
    for _ in range(4):
        shots = [k for label in "abcd" for k in rng.choice(np.flatnonzero(train_label == label), 2, replace=False)]
        right = 0
        for x, label in zip(query, query_label, strict=True):
            cosine = [x @ train[k] / np.linalg.norm(x) / np.linalg.norm(train[k]) for k in shots]
            right += train_label[shots[int(np.argmax(cosine))]] == label
        accuracies.append(100 * right / 24)
    measured = accuracy(features(), shots=2, draws=4, seed=7)
    found = measured.metric
    assert 100 * measured.answers.mean() == pytest.approx(found.value)
    assert (found.value, found.spread) == pytest.approx((np.mean(accuracies), np.std(accuracies, ddof=1)))


@pytest.mark.parametrize("k", [1, 3, 20, 200])
def test_weighted_k_nn_is_a_vote_by_cosine(k: int) -> None:
    """Also with classes of different sizes, queries of an unknown class, and fewer training videos than k."""
    query, query_label, train, train_label = features()
    kept = np.arange(24) < 20  # of class d two videos
    query_label = np.where(np.arange(24) % 8 == 0, "x", query_label)
    expected = np.zeros(24, bool)
    for row in range(24):
        cosine = train[kept] @ query[row] / np.linalg.norm(train[kept], axis=1) / np.linalg.norm(query[row])
        votes: dict[str, float] = {}
        for other in np.argsort(-cosine)[:k]:
            label = train_label[kept][other]
            votes[label] = votes.get(label, 0.0) + math.exp(cosine[other] / 0.07)
        expected[row] = max(votes, key=votes.__getitem__) == query_label[row]
    pooled = Pooled(query, query_label, train[kept], train_label[kept])
    found = weighted_knn(pooled, (k,))[k]
    assert np.array_equal(found.answers, expected) and found.metric.value == pytest.approx(100 * expected.mean())
    assert found.metric.chance == pytest.approx(25 * 21 / 24)
    both = weighted_knn(pooled, (1, k))
    assert both[k] == found and len(both) == len({1, k})


def test_warnings_of_scikit_learn_are_one_sentence() -> None:
    values = np.random.default_rng(0).normal(size=(400, 30))
    caught = fit(LogisticRegression(max_iter=1), values, np.arange(400) % 4)
    assert fit_warnings(caught, 1) == "the classifier did not converge (a lower --linear-c helps)"
    caught = [*caught, UserWarning("one\n  two"), *caught]
    expected = "2 of 9 classifiers did not converge (a lower --linear-c helps); 1 of 9 classifiers warned: one two"
    assert fit_warnings(caught, 9) == expected and fit_warnings([], 9) == ""


def test_top_k_equals_counting() -> None:
    rng = np.random.default_rng(0)
    scores, target = rng.normal(size=(200, 7)), rng.integers(-1, 7, 200)
    found = top_k(scores, target, (1, 5, 7))
    assert list(found) == [1, 5]  # top-7 of 7 classes is always right
    for k, metric in ((k, measured.metric) for k, measured in found.items()):
        right = [t in sorted(range(7), key=lambda c: -row[c])[:k] for row, t in zip(scores, target, strict=True)]
        assert metric.value == pytest.approx(100 * np.mean(right))
        assert metric.chance == pytest.approx(100 * k / 7 * np.mean(target >= 0))
    assert top_k(np.zeros((4, 4)), np.arange(4), (1, 2))[2].metric.value == 50.0  # equal scores are at chance


def test_unknown_classes_are_never_right() -> None:
    assert targets(np.array(["b", "x", "a", "d"]), np.array(["a", "b", "c"])).tolist() == [1, -1, 0, -1]
    pooled = features()
    kept = pooled.gallery_label != "d"
    pooled = pooled._replace(gallery=pooled.gallery[kept], gallery_label=pooled.gallery_label[kept])
    for found in (linear_probe(LogisticRegression(), pooled, (1,))[0][1], accuracy(pooled, 2, 3)):
        assert found.metric.value <= 75 and found.metric.chance == pytest.approx(25.0)
