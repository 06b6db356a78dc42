"""Pretrained weights beat random ones on official lists, and shuffled labels give chance."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gdt.eval.downstream import downstream
from gdt.eval.results import RESULTS, Result, read
from gdt.eval.settings import Downstream
from gdt.pipeline.shards.index import Index
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import run as preprocess
from gdt.preprocess.synthetic.files import generate
from gdt.preprocess.synthetic.moments import Synthetic
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES
from tests.eval.conftest import official

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
CLASSES = 6


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos") / "generated"
    generate(folder, Synthetic(train=30, val=1, test=15, classes=CLASSES, seconds=4.0), workers=2)
    return folder


@pytest.fixture(scope="module")
def checkpoint(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row e, pretrained without labels on videos of the same kind."""
    folder = tmp_path_factory.mktemp("pretraining")
    others = Synthetic(seed=1, train=120, val=1, test=1, classes=CLASSES, seconds=4.0)
    generate(folder / "others", others, workers=2)
    preprocess(Preprocess("folder", folder / "others", folder / "shards", workers=2))
    fast = replace(SIZES["tiny"].optimization, lr=3e-3)  # which drawn shapes bear
    settings = replace(SIZES["tiny"], shards=folder / "shards", out=folder / "e", preset="e", optimization=fast)
    return pretrain(replace(settings, batch_size=64, steps=500))


def evaluate(settings: Downstream) -> dict[tuple[str, bool], list[Result]]:
    downstream(settings)
    found: dict[tuple[str, bool], list[Result]] = {}
    for result in read(settings.out / RESULTS):
        found.setdefault((result.protocol, result.model == "e"), []).append(result)
    return found


def test_pretrained_weights_beat_random_ones_on_official_lists(checkpoint: Path, videos: Path, tmp_path: Path) -> None:
    preprocess(Preprocess("ucf101", official(tmp_path / "videos", videos), tmp_path / "shards", workers=2))
    protocols = ("retrieval", "few-shot", "linear", "finetune")
    found = evaluate(Downstream((checkpoint,), "ucf101", tmp_path / "shards", protocols, out=tmp_path / "eval"))
    for protocol in protocols:
        pretrained, random = (
            [next(iter(result.metrics.values())).value for result in found[protocol, learned]]
            for learned in (True, False)
        )
        assert len(pretrained) == len(random) == 3
        assert min(pretrained) > max(random) + 10, protocol


def test_shuffled_labels_give_chance(checkpoint: Path, videos: Path, tmp_path: Path) -> None:
    source = tmp_path / "videos"
    paths = sorted(path for split in ("train", "test") for path in (videos / split).rglob("*.mp4"))
    shuffled = np.random.default_rng(0).permutation([path.parent.name for path in paths])
    source.mkdir()
    with (source / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split", "shuffled"])
        for path, other in zip(paths, shuffled, strict=True):
            (source / path.name).hardlink_to(path)
            rows.writerow([path.name, path.parent.name, path.parent.parent.name, other])
    preprocess(Preprocess("folder", source, tmp_path / "shards", workers=2))
    assert len(Index.open(tmp_path / "shards").classes) == CLASSES
    found = {}
    for label in ("label", "shuffled"):
        found[label] = evaluate(
            Downstream((checkpoint,), "x", tmp_path / "shards", ("retrieval", "linear", "finetune"), label=label,
                       random_weights="exclude", out=tmp_path / label)
        )  # fmt: skip
    for protocol in ("retrieval", "linear", "finetune"):
        (true,), (false,) = (found[label][protocol, True] for label in ("label", "shuffled"))
        right, guessed = (next(iter(result.metrics.values())) for result in (true, false))
        assert right.interval[0] > 50, protocol
        low, high = guessed.interval
        assert low < guessed.chance < high, protocol
