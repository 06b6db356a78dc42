"""Protocols and embeddings by one checkpoint, and embeddings by weights in the form of the published release."""

from pathlib import Path
from typing import Any

import pytest

from tests.golden import subject
from tests.golden.conftest import Golden, alike
from tests.train.drawn import draw

ONE_ANSWER = alike(atol=12)
"""Rounding may change one answer of twelve, and the ends of its interval."""
FROZEN = ("retrieval", "few-shot", "linear")
TUNED = {"epochs": 2, "lr": 1e-4, "clips_per_epoch": 8, "random_weights": "exclude"}
Subjects = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    """A checkpoint, shards with labels and folds, and word vectors."""
    folder = tmp_path_factory.mktemp("labelled")
    shards, words = draw(folder, 36, ("train", "test", "train"))
    settings = subject.settings("three", shards, words, lr=1e-5, steps=2, out=folder / "run")
    return subject.pretrain(settings), shards, words


@pytest.mark.parametrize("modalities", [("video",), ("video", "audio")])
def test_protocols_on_frozen_features(
    golden: Golden, subjects: Subjects, tmp_path: Path, modalities: tuple[Any, ...]
) -> None:
    path, shards, _ = subjects
    found = subject.evaluate(path, shards, tmp_path, FROZEN, modalities=modalities)
    golden("protocols", " and ".join(modalities), found, ONE_ANSWER)


def test_cross_modal_retrieval(golden: Golden, subjects: Subjects, tmp_path: Path) -> None:
    path, shards, words = subjects
    found = subject.evaluate(path, shards, tmp_path, ("cross-modal",), word2vec=words)
    golden("protocols", "cross-modal", found, ONE_ANSWER)


def test_finetuning(golden: Golden, subjects: Subjects, tmp_path: Path) -> None:
    path, shards, _ = subjects
    golden("protocols", "finetune", subject.evaluate(path, shards, tmp_path, ("finetune",), **TUNED), ONE_ANSWER)
    golden("protocols", "epochs of finetune", subject.finetuned(tmp_path), alike(2e-3, accuracies=0.1))


def test_embeddings(golden: Golden, subjects: Subjects) -> None:
    path, shards, _ = subjects
    golden("embeddings", "drawn", subject.embedded(path, shards), alike(atol=1e-4))


@pytest.mark.parametrize("name", ["gdt_K400.pth", "gdt_HT100M.pth"])
def test_embeddings_of_the_release(golden: Golden, tmp_path: Path, name: str) -> None:
    golden("embeddings", name, subject.released(tmp_path / name, text="HT100M" in name), alike(atol=1e-5))
