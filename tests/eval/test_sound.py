"""Evaluation of the audio network on sounds."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.eval.downstream import downstream
from gdt.eval.embed import features
from gdt.eval.jobs import Pooled
from gdt.eval.nearest import find_query, most_similar
from gdt.eval.protocols.multilabel import mean_average_precision
from gdt.eval.results import RESULTS, read
from gdt.eval.settings import Downstream, Embed
from gdt.pipeline.shards.copies import between_splits
from gdt.pipeline.shards.index import Index
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.summary import describe
from gdt.train.checkpoint import load_trained
from tests.conftest import preprocess
from tests.eval.test_page import Page, write_page
from tests.sounds import esc50, tone


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return esc50(tmp_path_factory.mktemp("esc50") / "esc50")


@pytest.fixture(scope="module")
def sound_shards(sounds: Path) -> Path:
    folder = sounds.parent / "shards"
    preprocess(Preprocess("esc50", sounds, folder))
    return folder


def test_esc50_by_all_protocols(on_shards: Downstream, sound_shards: Path, tmp_path: Path) -> None:
    """Five folds; the finetuned audio network loads, and the report shows sounds as spectrograms."""
    protocols = ("finetune", "retrieval", "few-shot", "linear", "svm")
    quick = replace(on_shards, clips=2, epochs=1, clips_per_epoch=8, modalities=("audio",), jobs=1)
    settings = replace(quick, dataset="esc50", shards=sound_shards, protocols=protocols, out=tmp_path / "eval")
    table = downstream(settings)
    assert all(name in table for name in ("SVM top-1", "finetune top-1"))
    assert "CrissCross" not in table  # twenty sounds in the layout of ESC-50 are not ESC-50
    results = read(settings.out / RESULTS)
    assert {(each.protocol, each.fold) for each in results} == {*itertools.product(protocols, range(1, 6))}
    fitted = [metric for each in results if each.protocol in ("linear", "svm") for metric in each.metrics.values()]
    assert all(metric.value == 100 for metric in fitted)
    finetuned = load_trained(next(tmp_path.rglob("finetuned.pt")))
    assert finetuned.model.modalities == ("audio",)
    page = Page(write_page(tmp_path))
    pictures = [tag["src"] for name, tag in page.tags if name == "img" and tag["alt"] in ("asked", "right", "wrong")]
    assert len(pictures) == 2 * 6 and all(str(source).startswith("data:image/png") for source in pictures)
    assert page.cells()["dog", "rain"] == "0" and "Not shown: nearest neighbours" not in page.text


def test_sounds_find_videos(checkpoint: Path, sounds: Path, synthetic: Path) -> None:
    rows = features(Embed(checkpoint, (sounds / "audio", synthetic / "test"), clips=1, workers=1))
    heard = np.array([name.endswith(".wav") for name in rows.id])
    assert heard.sum() == 20 and np.array_equal(np.isnan(rows.features["video"][:, 0]), heard)
    query = features(Embed(checkpoint, (sounds / "audio" / "1-000.wav",), clips=1, workers=1, modalities=("audio",)))
    asked = find_query(rows, query, "audio")
    found = most_similar(rows, asked, "audio", "video", 5).rows
    assert len(found) and not heard[found].any()
    assert rows.id[most_similar(rows, asked, "audio", "audio", 5).rows[0]] == str(sounds / "audio" / "1-000.wav")


def test_labels_that_are_not_in_both_parts_are_refused() -> None:
    features = np.random.default_rng(0).normal(size=(80, 5))
    with pytest.raises(UserError, match="joined"):
        mean_average_precision(Pooled(features[40:], np.full(40, "x"), features[:40], np.full(40, "x")), c=1.0)


def test_copies_between_splits_are_told(on_shards: Downstream, tmp_path: Path) -> None:
    """Of another name, by preprocessing and below every table; they count as they are."""
    for label, hertz in (("low", 300), ("high", 3000)):
        for split in ("train", "test"):
            folder = tmp_path / "sounds" / split / label
            folder.mkdir(parents=True)
            for take in range(3):  # the last is another sound in each split
                tone(folder / f"{split}{take}.wav", hertz, 2.0, seed=take + 9 * (take == 2 and split == "test"))
    summary = preprocess(Preprocess("folder", tmp_path / "sounds", tmp_path / "shards"))
    said = "4 of 6 test videos are also in train, as other files"
    assert f"warning: {said}" in describe(summary).splitlines()
    asked = replace(on_shards, shards=tmp_path / "shards", protocols=("retrieval", "knn"), modalities=("audio",))
    table = downstream(replace(asked, out=tmp_path / "results"))
    assert table.count(f"copies: {said}") == 1 and table.count("6 queries") == 2


def test_copies_between_folds_are_told(tmp_path: Path) -> None:
    source = esc50(tmp_path / "esc50")
    (source / "audio" / "2-000.wav").write_bytes((source / "audio" / "1-000.wav").read_bytes())
    said = describe(preprocess(Preprocess("esc50", source, tmp_path / "shards"))).splitlines()
    copies = [f"warning: fold {fold}: 1 of 4 test videos are also in train, as other files" for fold in (1, 2)]
    assert [line for line in said if "other files" in line] == copies


def test_segments_of_a_file_are_no_copies(index: Index) -> None:
    count = len(index)
    columns = {
        "split": np.array(["train", "test"] * (count // 2), object), "hash": np.full(count, "same", object),
        "segment": np.array([f"{k} to {k + 1}" for k in range(count)], object),
    }  # fmt: skip
    index = replace(index, **columns)
    assert between_splits(index) == []
    index.segment[1] = index.segment[0]
    assert between_splits(index) == [f"1 of {count // 2} test videos are also in train, as other files"]
    index.hash[:] = ""  # unknown
    assert between_splits(index) == []
