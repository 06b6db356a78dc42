"""`gdt evaluate`: which videos, sounds, labels and modalities are evaluated, and by which protocols."""

import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler

from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.common.serialization import to_json
from gdt.eval.downstream import downstream
from gdt.eval.embed import features
from gdt.eval.extract import extract, read
from gdt.eval.jobs import Pooled
from gdt.eval.nearest import find_query, most_similar
from gdt.eval.protocols.multilabel import mean_average_precision
from gdt.eval.results import Result
from gdt.eval.settings import Downstream, Embed
from gdt.eval.subjects import EvalSet, default_checkpoint, open_index
from gdt.pipeline.clips import uniform_clips
from gdt.pipeline.shards.copies import between_splits
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import centred
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.summary import describe
from gdt.train.checkpoint import load_trained
from gdt.train.experiment import compose, tree_of
from gdt.train.pretrain import pretrain
from gdt.train.record import parsed
from gdt.train.settings import SIZES, RunSettings
from gdt.train.trained import Trained
from tests.conftest import Run, preprocess
from tests.eval.conftest import Evaluated, results
from tests.eval.test_page import Page, write_page
from tests.sounds import esc50, tone
from tests.tamper import annotate

OfTags = Callable[..., tuple[Result, str]]


def test_official_folds_count_every_video_however_short(checkpoint: Path, tmp_path: Path) -> None:
    lists = tmp_path / "testTrainMulti_7030_splits"
    lists.mkdir()
    # frames and sound of the files of each class, half train and half test
    files = [(1, ""), (27, "sine=300"), (45, "sine=500"), (12, "sine=700"), (15, ""), (45, "")]
    for name in ("wave", "run"):
        (tmp_path / "hmdb51_org" / name).mkdir(parents=True)
        for k, (frames, sound) in enumerate(files):
            sources = ["-f", "lavfi", "-i", f"testsrc=s=64x48:r=30:d={frames / 30}"]
            sources += ["-f", "lavfi", "-i", f"{sound}:d={frames / 30}", "-acodec", "pcm_s16le"] if sound else []
            file = tmp_path / "hmdb51_org" / name / f"{name}_{k}.avi"
            subprocess.run(["ffmpeg", "-v", "error", *sources, "-vcodec", "mjpeg", file], check=True)
        for fold in (1, 2, 3):
            lines = "".join(f"{name}_{k}.avi {1 + k % 2} \n" for k in range(6))
            (lists / f"{name}_test_split{fold}.txt").write_text(lines)
    shards = tmp_path / "shards"
    done = preprocess(Preprocess("hmdb51", tmp_path, shards))
    assert done.kept == 12
    assert done.notes == {"shorter than --min-seconds, kept because its official folds count every video": 8}
    index = done.index
    assert sorted(index.frame_count.tolist()) == sorted([frames for frames, _ in files] * 2)
    settings = Downstream((checkpoint,), "hmdb51", shards, ("retrieval", "linear", "cross-modal"), (1,), clips=2,
                          random_weights="exclude", out=tmp_path / "out")  # fmt: skip
    downstream(settings)
    found = {record.protocol: record for record in results(settings.out)}
    for protocol in ("retrieval", "linear"):
        assert (found[protocol].gallery, found[protocol].queries) == (6, 6)
    assert found["cross-modal"].queries == 4  # those of the test videos that have sound
    # the last row of the log-mel bank is held
    video = index.id.tolist().index("wave_3")
    plan = uniform_clips(index, np.array([video]), 1, SIZES["tiny"].clip, centred(36), modalities=["audio"])
    rows = int(index.mel_count[video])
    assert 35 <= rows < 40 and plan.leaves.mel_frames.tolist() == [[min(row, rows - 1) for row in range(99)]]
    embedded = features(Embed(checkpoint, shards=shards, out=tmp_path / "x.h5", clips=1)).features
    assert np.isfinite(embedded["video"]).all() and np.isfinite(embedded["audio"][index.mel_count > 0]).all()
    # pretraining leaves them out, as before
    run = replace(SIZES["tiny"], shards=shards, preset="a", split="test", batch_size=2)
    tree = tree_of(run, compose(run), index)
    assert set(index.frame_count[tree.plan(0, 0).leaves.video]) == {45}


def test_a_folder_without_labels_is_evaluated_across_modalities(command: Run, synthetic: Path, tmp_path: Path) -> None:
    """The first commands of the README."""
    (tmp_path / "videos").mkdir()
    for path in synthetic.rglob("*.mp4"):
        os.link(path, tmp_path / "videos" / path.name)
    command("preprocess", "--dataset", "folder", "--source", "videos", "--test", 0.3, check=True)
    held_out = int((Index.open(tmp_path / "data" / "shards" / "folder").split == "test").sum())
    assert 4 < held_out < 24  # of 42
    done = command("pretrain", "--dataset", "folder", "--preset", "e", "--batch-size", 4, "--steps", 4,
                   "--probe-every", 2, "--out", "runs/folder-e", check=True)  # fmt: skip
    assert "held-out rank" in done.stderr
    done = command("evaluate", "--ckpt", "runs/folder-e", "--dataset", "folder", check=True)
    assert f"{held_out} queries" in done.stdout and re.search(rf"chance +{100 / held_out:.1f}", done.stdout)
    for row in ("folder-e", "random weights"):
        assert re.search(rf"{row}( +\d+\.\d \(\d+\.\d-\d+\.\d\))+", done.stdout), row
    assert "V→A R@1" in done.stdout and "A→V R@5" in done.stdout
    assert "R@20" not in done.stdout  # retrieval needs labels


def test_a_text_model_without_word2vec_is_told_to_set_it(
    on_shards: Downstream, captioned: Path, word2vec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = replace(SIZES["tiny"], preset="text-b", word2vec=word2vec, batch_size=4, steps=1)
    path, unlabelled = pretrain(replace(tiny, shards=captioned, out=tmp_path / "text-b")), tmp_path / "shards"
    downstream(replace(on_shards, ckpt=(path,), shards=captioned))
    assert "text is not evaluated; set --word2vec to the file that the shards were made" in capsys.readouterr().out
    shutil.copytree(captioned, unlabelled, copy_function=shutil.copy)
    annotate(unlabelled, label=[""] * len(Index.open(unlabelled)))
    settings = replace(on_shards, ckpt=(path,), shards=unlabelled, out=tmp_path / "eval")
    with pytest.raises(UserError, match="^nothing to evaluate: .* two modalities with these videos .*--word2vec"):
        downstream(settings)
    assert "V→T" in downstream(replace(settings, word2vec=word2vec))
    head, *lines = word2vec.read_text().splitlines()
    vectors = tmp_path / "other.txt"
    vectors.write_text("\n".join([head, *(line.rsplit(" ", 1)[0] + " 0.5" for line in lines)]) + "\n")
    with pytest.raises(UserError, match=f"trained with other word vectors than those of {vectors}; set --word2vec"):
        downstream(replace(settings, word2vec=vectors))
    with pytest.raises(UserError, match="trained with other word vectors"):
        pretrain(replace(tiny, shards=captioned, out=tmp_path / "next", init=str(path), word2vec=vectors))


def test_a_data_set_outside_the_usual_folder_is_found_by_the_name_it_was_trained_under(
    checkpoint: Path, shards: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are named after the shards, and no name from a file becomes a path or an address."""
    monkeypatch.chdir(tmp_path)
    first = load_trained(checkpoint)
    name = first.settings.dataset

    def opened(dataset: str, folder: Path | None = None, trained: Trained = first) -> EvalSet:
        return EvalSet.open(checkpoint, trained, dataset, folder, "")

    assert opened(name).index.folder == Folder(shards) and opened("", copy).dataset == "copy"
    with pytest.raises(UserError, match=r"there are no shards in data/shards/another"):
        opened("another")
    Path("data/shards").mkdir(parents=True)
    copy.rename(Path("data/shards") / name)
    assert opened(name).index.folder == Folder(Path("data/shards") / name)
    for wrong in ("../x", "/tmp/x", "a/b", "..", "a\nb"):
        settings = json.loads(to_json(first.settings)) | {"dataset": wrong}
        with pytest.raises(UserError, match="--dataset is .*; give a name without slashes and control characters"):
            parsed(RunSettings, json.dumps(settings), "this text")
    elsewhere = replace(first.settings, shards=Folder("http://127.0.0.1:1/shards"))
    with pytest.raises(UserError, match="was trained on http://127.0.0.1:1/shards; pass it as --shards to use it"):
        opened("", trained=replace(first, record=replace(first.record, settings=elsewhere)))


def test_without_labels_in_train_the_gallery_is_val_and_in_test_protocols_are_skipped(
    evaluated: Evaluated, index: Index, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated({"label": np.where(index.split == "train", "", index.label).astype(object)})
    (record,) = (each for each in results(tmp_path) if each.protocol == "retrieval")
    assert record.settings["gallery_split"] == "val" and record.gallery == (index.split == "val").sum()
    assert "R@20" not in evaluated({"label": np.where(index.split == "test", "", index.label).astype(object)})
    said = f"retrieval and few-shot and knn skipped: {shards} has no labelled videos in the split 'test' "
    assert said + "(labels of 'label' are in: train, val); " in capsys.readouterr().out


@pytest.mark.parametrize("protocol", ["linear", "finetune"])
def test_a_classifier_of_one_class_is_refused(evaluated: Evaluated, index: Index, protocol: str) -> None:
    sky = {"columns": {"sky": np.full(len(index), "blue", object)}}
    with pytest.raises(UserError, match="needs at least two classes; the gallery has only 'blue'"):
        evaluated(sky, protocols=(protocol,), label="sky", jobs=1)


def test_queries_without_their_class_in_the_gallery_are_named(evaluated: Evaluated, index: Index) -> None:
    label = index.label.copy()
    label[np.flatnonzero(index.split == "test")[:2]] = "new"
    text = evaluated({"label": label}, protocols=("retrieval",))
    assert "warning: 2 of 12 queries are of classes without gallery videos: any model gets them wrong" in text


def test_a_sound_among_the_videos_leaves_short_videos_in(evaluated: Evaluated, index: Index, tmp_path: Path) -> None:
    train, test = (np.flatnonzero(index.split == split) for split in ("train", "test"))
    for sounds in ((), train[:1], test[1:2]):
        frames, out = index.frame_count.copy(), tmp_path / str(sounds)
        frames[test[0]] = 20  # shorter than a clip
        frames[list(sounds)] = 0
        text = evaluated({"frame_count": frames}, protocols=("retrieval",), out=out)
        (record,) = results(out)
        lacking = [int(np.isin(sounds, part).sum()) for part in (train, test)]
        assert (record.gallery, record.queries) == (24 - lacking[0], 12 - lacking[1])
        assert ("left out: 1 video whose video is missing\n" in text) == bool(len(sounds))


def test_published_results_are_not_shown_next_to_other_videos(ucf: Path) -> None:
    assert len(open_index("ucf101", ucf)) == len(open_index("mine", ucf)) == 36
    with pytest.raises(UserError, match="were made from the data set 'ucf101', not 'hmdb51'"):
        open_index("hmdb51", ucf)


def test_every_column_of_labels_has_a_table_and_models_and_features_are_read_once(
    evaluated: Evaluated, checkpoint: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parity = {"columns": {"parity": np.array(["even", "odd", ""], object)[np.arange(len(index)) % 3]}}
    calls: list[int] = []
    monkeypatch.setattr("gdt.eval.jobs.extract", lambda *given: calls.append(len(given[2])) or extract(*given))
    reads: list[Path] = []
    monkeypatch.setattr("gdt.eval.jobs.load_trained", lambda path, _: reads.append(path) or load_trained(path))
    text = " ".join(evaluated(parity, label="label,parity").split())
    assert text.count("V→A R@5") == 1 and text.count("1-shot") == 2 and "labels of the column parity" in text
    records = results(tmp_path)
    assert [(row.protocol, row.label, row.classes) for row in records] == [
        ("cross-modal", "", 0), ("retrieval", "", 3), ("few-shot", "", 3), ("knn", "", 3), ("retrieval", "parity", 2),
        ("few-shot", "parity", 2), ("knn", "parity", 2),
    ]  # fmt: skip
    assert calls == [36] and reads == [checkpoint]
    evaluated(parity, label="parity", out=tmp_path / "alone")
    alone = [row.metrics for row in results(tmp_path / "alone") if row.protocol != "cross-modal"]
    assert alone == [row.metrics for row in records[4:]]
    assert calls == [36, 24]


def test_cross_modal_retrieval_needs_two_modalities(shards: Path, tmp_path: Path) -> None:
    path = pretrain(replace(SIZES["tiny"], shards=shards, out=tmp_path / "a", preset="a", batch_size=4, steps=1))
    with pytest.raises(UserError, match="without audio, so it has no audio features; .* --modalities to video$"):
        downstream(Downstream((path,), modalities=("audio",), out=tmp_path / "eval"))
    with pytest.raises(UserError, match="cross-modal retrieval needs two modalities; .* has video for these"):
        downstream(Downstream((path,), protocols=("cross-modal",), out=tmp_path / "eval"))


def test_a_fold_without_test_videos_is_refused_but_no_other(evaluated: Evaluated, index: Index, tmp_path: Path) -> None:
    folds = np.array([f"train,{split}" for split in index.split], object)
    evaluate = partial(evaluated, {"split": np.full(len(index), "train", object), "folds": folds})
    with pytest.raises(UserError, match=r"fold 1 of .* no labelled videos in the split 'test' .*are in: train\)"):
        evaluate(protocols=("retrieval",))
    evaluate(protocols=("retrieval",), folds=(2,))
    assert [row.fold for row in results(tmp_path)] == [2]
    with pytest.raises(UserError, match="has no videos in the split 'test', only in train"):
        evaluate(protocols=("cross-modal",))


def test_without_ckpt_the_latest_run_is_taken_only_on_the_data_set_of_its_training(
    shards: Path, ucf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A benchmark takes the run of another data set, as after `make pretrain DATASET=kinetics`."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no checkpoint in runs"):
        default_checkpoint("mine", None)
    for number, name in enumerate(("kinetics", "mine")):
        path = Path("runs") / f"{name}-l" / "checkpoint.pt"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (number, number))
        settings = RunSettings.of(SIZES["tiny"], dataset=name, shards=shards if name == "mine" else None)
        (path.parent / "settings.json").write_text(to_json(settings))
    for asked in (("mine", None), ("", shards), ("", None), ("ucf101", None), ("ucf101", ucf)):
        assert default_checkpoint(*asked) == Path("runs/mine-l/checkpoint.pt")
    assert default_checkpoint("kinetics", None) == Path("runs/kinetics-l/checkpoint.pt")
    with pytest.raises(UserError, match=f"^no run in runs was trained on {ucf}; choose one with --ckpt$"):
        downstream(Downstream(shards=ucf))
    Path("runs/mine-l/settings.json").unlink()  # as of weights that were put there
    with pytest.raises(UserError, match="no run in runs was trained on mine"):
        default_checkpoint("mine", shards)
    with pytest.raises(UserError, match="there are no shards in data/shards/mime"):
        default_checkpoint("mime", None)


def tags(index: Index) -> list[set[str]]:
    """Of each video: a third have none; rare is in the gallery alone, and odd in the queries alone."""
    every = []
    for video, split in enumerate(index.split):
        k = int((index.split[:video] == split).sum())
        own = {"dog"} if k % 3 == 0 else {"cat", "loud"} if k % 3 == 1 else set()
        every.append(own | ({"rare" if split == "train" else "odd"} if k == 3 else set()))
    return every


@pytest.fixture
def of_tags(evaluated: Evaluated, tmp_path: Path) -> OfTags:
    """Evaluates the column `tags` with the given cells; returns the last result, and the table."""

    def run(cells: list[str], name: str = "out", **settings: Any) -> tuple[Result, str]:
        text = evaluated({"columns": {"tags": np.array(cells, object)}}, label="tags", out=tmp_path / name, **settings)
        return results(tmp_path / name)[-1], " ".join(text.split())

    return run


def test_videos_without_a_label_are_negatives_of_all(of_tags: OfTags, index: Index, tmp_path: Path) -> None:
    """Against mAP over all clips of the two splits; order, blanks and empty names in a cell do not count."""
    own = tags(index)
    row, text = of_tags([";".join(sorted(each)) for each in own])
    assert row.protocol == "multilabel"  # chosen, since videos have several labels
    assert (row.gallery, row.queries, row.classes) == (24, 12, 4)
    (path,) = tmp_path.glob("out/*/features-video-*.npz")
    stored = read(path)
    train, test = (np.flatnonzero(index.split == split) for split in ("train", "test"))
    values = [stored.average[stored.positions(part)] for part in (train, test)]
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
    untidy, _ = of_tags([" ; ".join([*sorted(each)[::-1], *sorted(each)[:1], ""]) for each in own], "untidy")
    assert (untidy.metrics, untidy.classes, untidy.key) == (row.metrics, row.classes, row.key)
    single, _ = of_tags([("a;", " a", "b ; b")[k % 3] for k in range(len(index))], protocols=("retrieval",))
    assert single.classes == 2


@pytest.mark.parametrize("protocol", ["retrieval", "few-shot", "knn", "linear", "svm", "finetune"])
def test_several_labels_are_refused_where_a_video_has_one_class(of_tags: OfTags, index: Index, protocol: str) -> None:
    with pytest.raises(UserError, match=rf"\(first: 'cat;loud'\), and {protocol} takes one; set --protocols multi"):
        of_tags([";".join(each) for each in map(sorted, tags(index))], protocols=(protocol,))


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return esc50(tmp_path_factory.mktemp("esc50") / "esc50")


def test_esc50_by_all_protocols(on_shards: Downstream, sounds: Path, tmp_path: Path) -> None:
    """Five folds; the finetuned audio network loads, and the report shows sounds as spectrograms."""
    protocols = ("finetune", "retrieval", "few-shot", "linear", "svm")
    quick = replace(on_shards, clips=2, epochs=1, clips_per_epoch=8, modalities=("audio",), jobs=1)
    preprocess(Preprocess("esc50", sounds, tmp_path / "shards"))
    settings = replace(quick, dataset="esc50", shards=tmp_path / "shards", protocols=protocols, out=tmp_path / "eval")
    table = downstream(settings)
    assert all(name in table for name in ("SVM top-1", "finetune top-1"))
    assert "CrissCross" not in table  # twenty sounds in the layout of ESC-50 are not ESC-50
    found = results(settings.out)
    assert {(each.protocol, each.fold) for each in found} == {*itertools.product(protocols, range(1, 6))}
    fitted = [metric for each in found if each.protocol in ("linear", "svm") for metric in each.metrics.values()]
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
    split, same = (np.array(names * (count // 2), object) for names in (["train", "test"], ["same", "same"]))
    index = replace(index, split=split, hash=same, segment=np.arange(count).astype(str).astype(object))
    assert between_splits(index) == []
    index.segment[1] = index.segment[0]
    assert between_splits(index) == [f"1 of {count // 2} test videos are also in train, as other files"]
    index.hash[:] = ""  # unknown
    assert between_splits(index) == []
