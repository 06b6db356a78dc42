"""Columns in which a video may have any number of labels, or none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler

from gdt.common.errors import UserError
from gdt.eval import extract
from gdt.eval.downstream import downstream
from gdt.eval.results import RESULTS, Result, read
from gdt.eval.settings import Downstream
from gdt.pipeline.shards.index import Index
from gdt.preprocess.plan import Listed, Shares
from gdt.preprocess.summary import summarise
from tests.tamper import annotate

Evaluate = Callable[..., tuple[Result, str]]


def tags(index: Index) -> list[set[str]]:
    """Of each video: a third have none; rare is in the gallery alone, and odd in the queries alone."""
    place = {
        int(video): k for split in ("train", "test") for k, video in enumerate(np.flatnonzero(index.split == split))
    }
    every = []
    for video, split in enumerate(index.split):
        k = place.get(video, 0)
        own = {"dog"} if k % 3 == 0 else {"cat", "loud"} if k % 3 == 1 else set()
        every.append(own | ({"rare" if split == "train" else "odd"} if k == 3 else set()))
    return every


@pytest.fixture
def evaluate(change_index: Callable[..., None], on_shards: Downstream, tmp_path: Path) -> Evaluate:
    """Evaluates the column `tags` with the given cells; returns the last result, and the table."""

    def run(cells: list[str], name: str = "out", **settings: object) -> tuple[Result, str]:
        change_index(columns={"tags": np.array(cells, object)})
        text = downstream(replace(on_shards, label="tags", out=tmp_path / name, **settings))
        return read(tmp_path / name / RESULTS)[-1], " ".join(text.split())

    return run


def test_videos_without_a_label_are_negatives_of_all(evaluate: Evaluate, index: Index, tmp_path: Path) -> None:
    """Against mAP over all clips of the two splits."""
    own = tags(index)
    row, text = evaluate([";".join(sorted(each)) for each in own])
    assert row.protocol == "multilabel"  # chosen, since videos have several labels
    assert (row.gallery, row.queries, row.classes) == (24, 12, 4)
    (path,) = tmp_path.glob("out/*/features-video-*.npz")
    features = extract.read(path)
    train, test = (np.flatnonzero(index.split == split) for split in ("train", "test"))
    values = [features.average[features.positions(part)] for part in (train, test)]
    scaler, precisions = StandardScaler().fit(values[0]), []
    for name in ("cat", "dog", "loud"):
        had, has = ([name in own[video] for video in part] for part in (train, test))
        probe = LogisticRegression(max_iter=2000).fit(scaler.transform(values[0]), had)
        precisions.append(average_precision_score(has, probe.decision_function(scaler.transform(values[1]))))
    assert row.metrics["mAP"].value == pytest.approx(100 * np.mean(precisions))
    assert "12 queries against 24 videos of 4 classes" in text
    said = "labels: mAP is over the 3 of 5 in both parts; 4 queries and 8 gallery videos have none: negatives of all"
    assert said in text
    assert "any model gets them wrong" not in text  # which is for one class per video


def test_order_blanks_and_empty_names_in_a_cell_do_not_count(evaluate: Evaluate, index: Index) -> None:
    own = [sorted(each) for each in tags(index)]
    plain, _ = evaluate([";".join(each) for each in own], "plain")
    untidy, _ = evaluate([" ; ".join([*each[::-1], *each[:1], ""]) for each in own], "untidy")
    assert (untidy.metrics, untidy.classes, untidy.key) == (plain.metrics, plain.classes, plain.key)


def test_a_single_label_in_an_untidy_cell_is_a_class(evaluate: Evaluate, index: Index) -> None:
    cells = [("a;" if k % 2 else " a") if k % 4 < 2 else "b ; b" for k in range(len(index))]
    row, _ = evaluate(cells, protocols=("retrieval",))
    assert row.classes == 2 and row.metrics["R@1"].chance == pytest.approx(50, abs=20)


@pytest.mark.parametrize("protocol", ["retrieval", "few-shot", "knn", "linear", "svm", "finetune"])
def test_several_labels_are_refused_where_a_video_has_one_class(
    evaluate: Evaluate, index: Index, protocol: str
) -> None:
    with pytest.raises(
        UserError, match=rf"'tags' \(first: 'cat;loud'\), and {protocol} takes one; set --protocols mul"
    ):
        evaluate([";".join(each) for each in map(sorted, tags(index))], protocols=(protocol,))


def test_a_split_without_any_label_is_refused(evaluate: Evaluate, index: Index) -> None:
    cells = ["" if split == "test" else "a;b" for split in index.split]
    with pytest.raises(
        UserError, match=r"no labelled videos in the split 'test' \(labels of 'tags' are in: train, val"
    ):
        evaluate(cells, protocols=("multilabel",))


def test_counts_are_of_labels_not_of_cells(copy: Path, index: Index) -> None:
    annotate(copy, label=[("a; b", "b;a;", "c", "")[k % 4] for k in range(len(index))])
    found = Index.open(copy)
    assert sorted({*found.label}) == ["", "a;b", "c"] and found.classes == ["a", "b", "c"]
    assert summarise(found, Listed({}, [], Shares(), frozenset(), {}, []), [], 0, 0).numbers["classes"] == 3
