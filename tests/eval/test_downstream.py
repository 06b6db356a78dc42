"""make eval-ucf and its like: all protocols over official folds, as a user types them."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gdt.common.errors import UserError
from gdt.eval import extract
from gdt.eval.command import settings_of
from gdt.eval.downstream import downstream
from gdt.eval.record import read
from gdt.eval.settings import Downstream
from gdt.eval.subjects import Model
from gdt.pipeline.shards.index import Index
from gdt.preprocess.stage import Preprocess
from gdt.preprocess.stage import run as preprocess
from gdt.train.checkpoint import load_model
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES
from tests.conftest import ROOT, Run

FINETUNE = ("--size", "tiny", "--epochs", "1", "--clips-per-epoch", "2", "--clips", "2")


def official(folder: Path, videos: Path, dataset: str) -> Path:
    """A tree of generated clips under lists in the form of the official ones: every video is tested in one fold."""
    paths = sorted(path for split in ("train", "test") for path in (videos / split).rglob("*.mp4"))
    root = folder / ("UCF-101" if dataset == "ucf101" else "hmdb51_org")
    lists = folder / ("ucfTrainTestlist" if dataset == "ucf101" else "testTrainMulti_7030_splits")
    lists.mkdir(parents=True)
    classes = sorted({path.parent.name for path in paths})
    lines: dict[str, list[str]] = {}
    seen = dict.fromkeys(classes, 0)
    for path in paths:
        name, number = path.parent.name, seen[path.parent.name]
        seen[name] += 1
        file = root / name / f"v_{name}_g{number:02d}_c01.mp4"
        file.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, file)
        for fold in (1, 2, 3):
            test = number % 3 == fold - 1
            if dataset == "hmdb51":
                lines.setdefault(f"{name}_test_split{fold}.txt", []).append(f"{file.name} {2 if test else 1} ")
            elif test:
                lines.setdefault(f"testlist{fold:02d}.txt", []).append(f"{name}/{file.name}")
            else:
                place = classes.index(name) + 1
                lines.setdefault(f"trainlist{fold:02d}.txt", []).append(f"{name}/{file.name} {place}")
    for name, texts in lines.items():
        (lists / name).write_text("\r\n".join(texts) + "\r\n")
    return folder


@pytest.fixture(scope="module")
def ucf(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = official(tmp_path_factory.mktemp("ucf") / "videos", synthetic, "ucf101")
    folder = tmp_path_factory.mktemp("shards") / "ucf101"
    preprocess(Preprocess("ucf101", source, folder, workers=2))
    return folder


@pytest.fixture(scope="module")
def checkpoint(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "synthetic-e"
    return pretrain(replace(SIZES["tiny"][1], shards=shards, out=out, preset="e", batch_size=4, steps=3))


def test_all_protocols_over_three_folds(command: Run, checkpoint: Path, ucf: Path, tmp_path: Path) -> None:
    protocols = ("cross-modal", "retrieval", "few-shot", "linear", "finetune")
    arguments = ("eval", "downstream", "--ckpt", checkpoint, "--dataset", "ucf101", "--shards", ucf, "--protocols",
                 *protocols, *FINETUNE, "--jobs", 1)  # fmt: skip
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs" / "eval-ucf101"
    results = read(out / "results.json")
    found = {(r.protocol, r.model, r.fold) for r in results}
    rows = ("random weights", "synthetic-e")
    assert found == {(p, row, fold) for p in protocols[1:] for row in rows for fold in (1, 2, 3)} | {
        ("cross-modal", row, 0) for row in rows
    }
    index = Index.open(ucf)
    for result in results:
        if result.fold:
            fold = index.fold(result.fold)
            sizes = [int((fold.split == split).sum()) for split in ("train", "test")]
            assert [result.gallery, result.queries] == sizes == [24, 12]
        assert result.provenance.command and result.provenance.device and result.held == 0 and len(result.data) == 64
        assert result.how["precision"] == "float32" and result.pretraining.preset == "e" and result.clips == 2
    for text in ("paper: GDT, K-400", "62.8", "90.9", "SEVERE: GDT, K-400", "chance", "clip top-1", "random weights",
                 "retrieval: clips 2 of 8 frames, every 4-th, 32x32, centre crops; pooling maximum; precision float32",
                 "synthetic-e: e, 3 steps"):  # fmt: skip
        assert text in done.stdout
    assert "finetune: epochs 1, the last one is tested; lr 0.0025 to 0.02 over 0.166667 epochs" in done.stdout
    assert re.search(r"random weights: asked with the picture of one of 12 videos it never saw", done.stdout)
    assert re.search(r"synthetic-e: .* 12 videos \(it is not known whether .* \(chance 8.3 %\)", done.stdout)
    assert "not to be told from random weights" in done.stdout
    rows_of = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert len(rows_of) == sum(len(result.metrics) for result in results)
    assert (out / "table.tex").read_text().count(r"\toprule") == 3
    # once more: nothing is done again, and what it says is the same
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json") if path.name != "results.json"}
    again = command(*arguments[:-1], 2)
    assert again.stdout == done.stdout[done.stdout.index("% on") :]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # finetuned weights are weights like others
    (weights,) = out.glob("synthetic-e-*/finetune-fold1-*/finetuned.pt")
    again = Downstream((weights,), "ucf101", ucf, ("retrieval",), (1,), clips=2, random="no", out=tmp_path / "again")
    assert "finetuned weights" in downstream(again)
    with pytest.raises(UserError, match="was finetuned on fold 1 of these videos"):
        downstream(replace(again, folds=(1, 2)))


def test_folds_side_by_side_that_were_killed_go_on_to_the_numbers_of_one_after_the_other(
    checkpoint: Path, ucf: Path, tmp_path: Path
) -> None:
    def running() -> bool:
        """Whether a process of the killed command, or one that it started, is still there."""
        lines = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.is_file())
        return any(str(tmp_path / "cut").encode() in line for line in lines)

    settings = Downstream((checkpoint,), "ucf101", ucf, ("finetune",), (1, 2), size="tiny", epochs=4, clips=2,
                          clips_per_epoch=2, random="no", threads=1, jobs=1)  # fmt: skip
    command = [sys.executable, "-m", "gdt", "eval", "downstream", "--ckpt", str(checkpoint), "--dataset", "ucf101",
               "--shards", str(ucf), "--protocols", "finetune", "--random", "no", "--folds", "1", "2", "--threads", "1",
               "--jobs", "2", "--out", str(tmp_path / "cut"), *FINETUNE, "--epochs", "4"]  # fmt: skip
    run = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "cut").glob("*/finetune-fold2-*/finetune.pt")):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    run.kill()  # it alone: those that it started end with it
    run.wait()
    while running():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not list((tmp_path / "cut").glob("*/finetune-fold2-*.json"))
    threads = torch.get_num_threads()
    try:
        for out in ("cut", "whole"):
            downstream(replace(settings, out=tmp_path / out))
    finally:
        torch.set_num_threads(threads)
    one, two = (read(tmp_path / name / "results.json") for name in ("cut", "whole"))
    assert [r.metrics for r in one] == [r.metrics for r in two] and len(one) == 2


def test_a_table_grows_by_the_models_that_are_evaluated_alike(checkpoint: Path, ucf: Path, tmp_path: Path) -> None:
    other = tmp_path / "mine.pt"
    other.write_bytes(checkpoint.read_bytes())
    run = Downstream((checkpoint,), "ucf101", ucf, ("retrieval",), (1,), clips=2, out=tmp_path / "out")
    downstream(run)
    downstream(replace(run, clips=3))  # another table
    said = downstream(replace(run, ckpt=(other,), random="no"))
    rows = [line.split("  ")[0] for line in said.splitlines()]
    assert {"random weights", "mine", "chance"} <= set(rows) and rows.count("mine") == 1


def test_a_model_that_lacks_folds_is_compared_on_those_it_has(checkpoint: Path, ucf: Path, tmp_path: Path) -> None:
    settings = Downstream((checkpoint,), "ucf101", ucf, ("retrieval",), clips=2, out=tmp_path)
    downstream(replace(settings, folds=(1,), random="no"))
    said = downstream(replace(settings, folds=(1, 2, 1), random="only"))
    results = read(tmp_path / "results.json")
    assert sorted((result.model, result.fold) for result in results) == [
        ("random weights", 1), ("random weights", 2), ("synthetic-e", 1),
    ]  # fmt: skip
    one, random = (
        {r.fold: r.metrics["R@1"] for r in results if r.model == m} for m in ("synthetic-e", "random weights")
    )
    points = one[1].value - random[1].value
    assert re.search(rf"R@1 of synthetic-e, fold 1: .*{abs(points):.1f} points", said)


@pytest.mark.parametrize("damage", ["", "null", "{}", "[1", "\xff\xfe\x00"])
def test_a_damaged_result_is_made_again_and_that_of_another_model_left_out(
    checkpoint: Path, ucf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    settings = Downstream((checkpoint,), "ucf101", ucf, ("retrieval",), (1,), clips=2, out=tmp_path)
    said = downstream(settings)
    (own,), (random,) = (tmp_path.glob(f"{name}-*/retrieval-*.json") for name in ("synthetic-e", "random-weights"))
    whole = json.loads(own.read_text())[0]["metrics"]
    own.write_bytes(damage.encode("latin1"))
    assert downstream(settings) == said and json.loads(own.read_text())[0]["metrics"] == whole
    random.write_bytes(damage.encode("latin1"))
    assert "random weights" not in downstream(replace(settings, random="no")).replace("from random weights", "")
    assert "holds results of another version" in capsys.readouterr().err


def test_weights_that_are_no_numbers_are_one_sentence(checkpoint: Path, ucf: Path, tmp_path: Path) -> None:
    state = torch.load(checkpoint, weights_only=True)
    state["model"]["video_network.base.stem.0.weight"].fill_(float("nan"))
    torch.save(state, tmp_path / "nan.pt")
    for protocol in ("retrieval", "cross-modal"):
        with pytest.raises(UserError, match="are not finite: the weights are damaged"):
            downstream(
                Downstream((tmp_path / "nan.pt",), "ucf101", ucf, (protocol,), clips=1, random="no", out=tmp_path)
            )


def test_what_changes_the_numbers_changes_the_folder_of_the_results(checkpoint: Path) -> None:
    trained = load_model(checkpoint)
    names = {Model("x", checkpoint, replace(trained, statistics=None), False).folder}
    for changed in (
        {}, {"augmentation": replace(trained.settings.augmentation, scale=(40, 40))},
        {"clip": replace(trained.settings.clip, stride=3)},
    ):  # fmt: skip
        other = replace(trained, settings=replace(trained.settings, **changed))
        names.add(Model("x", checkpoint, other, False).folder)
    assert len(names) == 4


def test_training_videos_can_be_few(checkpoint: Path, ucf: Path, tmp_path: Path) -> None:
    settings = Downstream((checkpoint,), "ucf101", ucf, ("linear",), (1,), clips=2, train_samples=9, random="no",
                          out=tmp_path)  # fmt: skip
    downstream(settings)
    (result,) = read(tmp_path / "results.json")
    assert (result.gallery, result.queries) == (9, 12)


@pytest.fixture
def given(shards: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets evaluations find shards that differ from the generated ones in some of their columns."""
    index = Index.open(shards)
    return lambda **columns: monkeypatch.setattr("gdt.eval.subjects.open_index", lambda *_: replace(index, **columns))


def test_short_videos_take_part(
    given: Callable[..., None], checkpoint: Path, index: Index, shards: Path, tmp_path: Path
) -> None:
    short = np.arange(len(index)) == np.flatnonzero(index.split == "test")[0]
    given(frame_count=np.where(short, 5, index.frame_count))
    said = downstream(Downstream((checkpoint,), "x", shards, ("retrieval",), clips=2, out=tmp_path, random="no"))
    (result,) = read(tmp_path / "results.json")
    assert (result.queries, result.held) == (12, 1) and "1 shorter than a clip, last frame held" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--folds 4", "has no fold 4; its videos have 3 official folds"),
        ("--folds 0", "official folds are numbered from 1"),
        ("--query-split train", "both the split 'train', where every video finds itself"),
        ("--gallery-split test", "both the split 'test', where every video finds itself"),
        ("--gallery-split nix", "no labelled videos in the split 'nix'"),
        ("--lr 5 --protocols retrieval", "--lr has no effect on retrieval; it is of finetune"),
        ("--word2vec x --protocols linear", "--word2vec has no effect on linear; it is of cross-modal"),
        ("--train-samples 25 --protocols linear", "--train-samples is 25, and there are 24 training videos"),
        ("--threads -1", "--threads is -1; it must be 0 or more"),
        ("--query-split holdout --protocols retrieval", "no labelled videos in the split 'holdout'"),
        ("--label colour", "unknown column 'colour'"),
        ("--dataset hmdb51", "were made of the data set 'ucf101', not 'hmdb51'"),
        ("--shards /nowhere", "there are no shards in /nowhere .* 'make preprocess DATASET=folder SOURCE="),
        ("--lr -1", "--lr must be 0 or more"),
        ("--clips 0", "--clips is 0; it must be 1 or more"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    checkpoint: Path, ucf: Path, tmp_path: Path, arguments: str, message: str
) -> None:
    plain = {"--dataset": "ucf101", "--shards": str(ucf), "--ckpt": str(checkpoint), "--out": str(tmp_path)}
    given = [part for option, value in plain.items() if option not in arguments for part in (option, value)]
    with pytest.raises(UserError, match=message):
        downstream(settings_of(["downstream", *given, *arguments.split()]))


def test_a_folder_without_labels_gets_recall_among_held_out_videos(
    command: Run, synthetic: Path, tmp_path: Path
) -> None:
    """The three commands of the README."""
    (tmp_path / "videos").mkdir()
    for path in synthetic.rglob("*.mp4"):
        os.link(path, tmp_path / "videos" / path.name)
    done = command("preprocess", "--dataset", "folder", "--source", "videos", "--test", 0.3)
    assert done.returncode == 0, done.stderr
    held_out = int((Index.open(tmp_path / "data" / "shards" / "folder").split == "test").sum())
    assert 4 < held_out < 24  # of 42
    done = command("pretrain", "tiny", "--dataset", "folder", "--preset", "e", "--batch-size", 4, "--steps", 4,
                   "--probe-every", 2)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "V R@1" in done.stderr or "video to audio R@1" in done.stderr
    done = command("eval", "downstream", "--ckpt", "runs/folder-e", "--dataset", "folder")
    assert done.returncode == 0, done.stderr
    chance = f"{100 / held_out:.1f}"
    assert re.search(rf"one of {held_out} videos it never saw, .* \(chance {chance} %\)", done.stdout)
    assert re.search(r"folder-e +\d+\.\d \(\d+\.\d-\d+\.\d\)", done.stdout) and "random weights" in done.stdout
    assert "R@20" not in done.stdout  # which needs labels
    done = command("eval", "downstream", "--ckpt", "runs/folder-e", "--dataset", "folder", "--protocols", "retrieval")
    assert done.returncode == 2 and "has no labelled videos in the split 'train'" in done.stderr


def test_words_take_part_where_their_vectors_are_named(captioned: Path, word2vec: Path, tmp_path: Path) -> None:
    tiny = replace(SIZES["tiny"][1], preset="three", word2vec=word2vec, batch_size=4, steps=2)
    path = pretrain(replace(tiny, shards=captioned, out=tmp_path / "three"))
    settings = Downstream((path,), "x", captioned, ("cross-modal",), clips=2, random="no", out=tmp_path / "eval")
    downstream(settings)
    (without,) = read(tmp_path / "eval" / "results.json")
    said = downstream(replace(settings, word2vec=word2vec))
    (result,) = read(tmp_path / "eval" / "results.json")
    pairs = {name.rpartition(" ")[0] for name in result.metrics}
    assert {name.rpartition(" ")[0] for name in without.metrics} == {"video to audio", "audio to video"}
    assert pairs == {f"{a} to {b}" for a in ("video", "audio", "text") for b in ("video", "audio", "text") if a != b}
    assert 2 <= result.queries <= without.queries == 12 and "V→T R@1" in said


def test_several_labels_make_a_table_each_of_features_that_are_extracted_once(
    given: Callable[..., None], checkpoint: Path, index: Index, shards: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given(columns={"parity": np.array(["even", "odd", ""], object)[np.arange(len(index)) % 3]})
    calls: list[int] = []
    real = extract.extract
    monkeypatch.setattr(extract, "extract", lambda *a, **k: calls.append(len(a[2])) or real(*a, **k))
    settings = Downstream((checkpoint,), "x", shards, clips=2, out=tmp_path / "o", random="no", label="label,parity")
    said = downstream(settings)
    assert said.count("first in ") == 1 and said.count("1-shot") == 2 and "labels of the column parity" in said
    results = read(tmp_path / "o" / "results.json")
    assert [(row.protocol, row.label, row.classes) for row in results] == [
        ("cross-modal", "", 0), ("retrieval", "", 3), ("few-shot", "", 3), ("retrieval", "parity", 2),
        ("few-shot", "parity", 2),
    ]  # fmt: skip
    assert calls == [36]
    downstream(replace(settings, label="parity", out=tmp_path / "alone"))
    alone = read(tmp_path / "alone" / "results.json")
    assert len({row.labels for row in results if row.protocol == "retrieval"}) == 2
    assert [row.metrics for row in alone if row.protocol != "cross-modal"] == [row.metrics for row in results[3:]]
    assert calls == [36, 24]


def test_a_checkpoint_without_sound_has_no_recall_across_modalities(shards: Path, tmp_path: Path) -> None:
    path = pretrain(replace(SIZES["tiny"][1], shards=shards, out=tmp_path / "a", preset="a", batch_size=4, steps=1))
    with pytest.raises(UserError, match="recall across modalities needs two of them, .* only video can be used"):
        downstream(Downstream((path,), protocols=("cross-modal",), out=tmp_path / "eval"))


def test_shards_without_held_out_videos_say_how_to_get_some(
    given: Callable[..., None], checkpoint: Path, index: Index, shards: Path, tmp_path: Path
) -> None:
    given(split=np.full(len(index), "train", object))
    with pytest.raises(UserError, match=r"no held-out videos .* ARGS=\"--test 0.1\" sets .* so pretrain anew"):
        downstream(Downstream((checkpoint,), "x", shards, ("cross-modal",), clips=2, out=tmp_path))
