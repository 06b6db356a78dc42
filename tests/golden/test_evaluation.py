"""All protocols for one checkpoint, and the epochs of a finetuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden import subject
from tests.golden.conftest import Golden
from tests.train.drawn import draw

FROZEN = ("retrieval", "few-shot", "linear")
TUNING = {"size": "tiny", "epochs": 2, "clips_per_epoch": 8, "random_weights": "exclude"}


def one_answer(recorded: dict[str, list[float]], found: dict[str, list[float]]) -> bool:
    """Rounding may change one answer."""
    assert recorded.keys() == found.keys()
    return all(
        abs(found[name][0] - value) <= 101 / answers and found[name][3:] == [chance, answers]
        for name, (value, _, _, chance, answers) in recorded.items()
    )


def close(recorded: list[list[float]], found: list[list[float]]) -> bool:
    """Rates are high, so rounding differences grow with every step."""
    return len(recorded) == len(found) and bool(np.isclose(found[0][0], recorded[0][0], rtol=0.02))


def same_embeddings(recorded: dict[str, Any], found: dict[str, Any]) -> bool:
    one, other = recorded["embeddings"], found["embeddings"]
    return one.keys() == other.keys() and all(np.allclose(one[name], other[name], rtol=0, atol=1e-4) for name in one)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A checkpoint, shards with labels and folds, and word vectors."""
    folder = tmp_path_factory.mktemp("labelled")
    shards, words = draw(folder, 36, ("train", "test", "train"))
    return subject.pretrain(subject.settings("three", shards, words, steps=2, out=folder / "run")), shards, words


@pytest.mark.parametrize(
    ("protocols", "options"),
    [(FROZEN, {}), (FROZEN, {"modalities": ("video", "audio")}), (("cross-modal",), {"text": True})],
)
def test_protocols(
    golden: Golden,
    subjects: tuple[Path, Path, Path],
    tmp_path: Path,
    protocols: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    path, shards, words = subjects
    options = {"word2vec": words} if "text" in options else options
    for name, metrics in subject.evaluate(path, shards, tmp_path, protocols, **options).items():
        golden("protocols", " ".join([name, *options.get("modalities", ())]), metrics, one_answer)


def test_finetuning(golden: Golden, subjects: tuple[Path, Path, Path], tmp_path: Path) -> None:
    path, shards, _ = subjects
    for name, metrics in subject.evaluate(path, shards, tmp_path, ("finetune",), **TUNING).items():
        golden("protocols", name, metrics, one_answer)
    for name, epochs in subject.finetuned(tmp_path).items():
        golden("protocols", f"epochs of {name}", epochs, close)


def test_embeddings(golden: Golden, subjects: tuple[Path, Path, Path]) -> None:
    path, shards, _ = subjects
    golden("embeddings", "three", subject.embedded(path, shards), same_embeddings)
