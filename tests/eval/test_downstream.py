"""`gdt evaluate`: all protocols over official folds, as a user runs them."""

import csv
import json
import re
import shlex
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import gdt
from gdt.common.commandline import parse
from gdt.common.errors import UserError
from gdt.eval import extract
from gdt.eval.downstream import downstream
from gdt.eval.embed import Embedder, features
from gdt.eval.factors.evaluate import factors
from gdt.eval.factors.settings import Factors
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome, jobs_of
from gdt.eval.metrics import Measured, Metric
from gdt.eval.protocols import PROTOCOLS, Protocol
from gdt.eval.results import RESULTS
from gdt.eval.settings import Downstream, Embed
from gdt.eval.similarity import unit
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import load_model
from gdt.train.models.network import OwnNetworks
from tests.conftest import Run, few
from tests.eval.conftest import Evaluated, results
from tests.tamper import edit_record
from tests.train import own_networks

FINETUNE = ("--epochs", "1", "--clips-per-epoch", "2", "--clips", "2")


def test_all_protocols_on_folds(command: Run, checkpoint: Path, ucf: Path, on_ucf: Downstream, tmp_path: Path) -> None:
    protocols = ("cross-modal", "retrieval", "few-shot", "knn", "linear", "finetune")
    arguments = ("evaluate", "--ckpt", checkpoint, "--dataset", "ucf101", "--shards", ucf, "--protocols",
                 *protocols, *FINETUNE, "--jobs", 1)  # fmt: skip
    done = command(*arguments, check=True)
    out = tmp_path / "runs" / "eval-ucf101"
    every = results(out)
    rows = ("random weights", "e")
    assert {(r.protocol, r.model, r.fold) for r in every} == {
        *((p, row, fold) for p in protocols[1:] for row in rows for fold in (1, 2, 3)),
        *(("cross-modal", row, 0) for row in rows),
    }
    index = Index.open(ucf)
    for each in every:
        if each.fold:
            fold = index.fold(each.fold)
            sizes = [int((fold.split == split).sum()) for split in ("train", "test")]
            assert [each.gallery, each.queries] == sizes == [24, 12]
        assert each.provenance["device"] and each.data == fingerprint(index)
        assert each.provenance["command"].endswith(shlex.join(["gdt", *map(str, arguments)]))
        trained = each.model != "random weights"
        expected = ("e", 3, 3, 12) if trained else ("random weights", 0, 0, 0)
        assert (each.preset, each.step, each.steps, each.videos) == expected
        assert (each.tflop > 0) == trained
    (retrieval,) = (each for each in every if (each.protocol, each.model, each.fold) == ("retrieval", "e", 1))
    clip = "8 frames, stride 4, 32x32"
    assert retrieval.details == {"clip": clip, "precision": "float32", "pooling": "maximum"}
    details = next(each.details for each in every if each.protocol == "knn")
    assert details["neighbours"] == "200-NN of all 24 training videos, which are fewer"
    assert all("lr" in each.details and each.settings["epochs"] == 1 for each in every if each.protocol == "finetune")
    printed = done.stdout[done.stdout.index("ucf101: ") :]
    assert (out / "table.txt").read_text().strip() in printed and max(map(len, printed.splitlines())) <= 100
    assert "paper: " not in printed and "SEVERE" not in printed  # 36 videos are not UCF-101
    for text in ("† differs from random weights: p < 0.05 on the same queries", "chance", "clip top-1",
                 "random weights", "ucf101, folds 1 2 3: 12 queries against 24 videos of 3 classes",
                 "95 % intervals over folds", "next: "):  # fmt: skip
        assert text in printed
    assert printed.count("warning: only 12 queries") == 1
    csv_rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert len(csv_rows) == sum(len(each.metrics) for each in every)
    assert (out / "table.tex").read_text().count(r"\toprule") == 3
    # the same command again computes nothing and prints the same tables
    before = (out / RESULTS).read_bytes()
    again = command(*arguments[:-1], 2)
    assert again.stdout == printed and (out / RESULTS).read_bytes() == before
    # finetuned weights can be evaluated, but not on folds whose test labels they have seen
    (weights,) = out.glob("e-*/finetune-fold1-*/finetuned.pt")
    finetuned = replace(on_ucf, ckpt=(weights,), out=tmp_path / "again")
    downstream(finetuned)
    assert results(tmp_path / "again")[0].preset == "finetuned weights"
    known = r"was finetuned on \d+ queries of fold 2, so it knows their labels; set --folds 1"
    with pytest.raises(UserError, match=known):
        downstream(replace(finetuned, folds=(1, 2)))
    with pytest.raises(UserError, match="was finetuned on 24 queries of fold 1, .*; set --query-split or --folds"):
        downstream(replace(finetuned, query_split="train", gallery_split="test"))


def test_an_unfinished_run_is_named(on_ucf: Downstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (whole,), path = on_ucf.ckpt, tmp_path / "stopped.pt"
    state = torch.load(whole, weights_only=True)
    torch.save(edit_record(state, step=2), path)
    warning = f"warning: {path} is from step 2 of 3: its run has not finished; repeat the command "
    measured = Factors((path,), shards=on_ucf.shards, videos=6, out=tmp_path / "factors")
    uses: list[Callable[[], object]] = [
        lambda: downstream(replace(on_ucf, ckpt=(path,), clips=1)), lambda: factors(measured), lambda: gdt.load(path),
        lambda: features(Embed(path, shards=on_ucf.shards, clips=1)),
    ]  # fmt: skip
    for use in uses:
        use()
        assert capsys.readouterr().err.count(warning) == 1
    for folder, said in ((tmp_path, "its run had done 2 of 3 steps"), (tmp_path / "factors", "stopped: e, 2 steps")):
        text = " ".join((folder / "table.txt").read_text().split())
        assert text.count(said) == 1, text


def test_tables_include_models_of_earlier_calls_with_the_same_settings(on_ucf: Downstream, tmp_path: Path) -> None:
    """Of one name, those of the call."""
    state = torch.load(on_ucf.ckpt[0], weights_only=True)
    paths = [tmp_path / folder / "mine.pt" for folder in ("former", "now")]
    for path in paths:
        path.parent.mkdir()
        torch.save(state, path)
        state["model"]["video_network.base.stem.0.weight"].mul_(2)
    run = replace(on_ucf, random_weights="include")
    downstream(run)
    downstream(replace(run, clips=3))  # in another table
    former, now = (downstream(replace(on_ucf, ckpt=(path,))) for path in paths)
    for text in (former, now):
        rows = [line.split("  ")[0] for line in text.splitlines()]
        assert [rows.count(name) for name in ("random weights", "e", "mine", "chance")] == [1] * 4
        assert rows.index("mine") < rows.index("e")  # the model of the call is what others are compared with
    assert downstream(replace(on_ucf, ckpt=(paths[0],))) == former
    both = downstream(replace(on_ucf, ckpt=tuple(paths)))
    assert len(re.findall(r"^mine \([0-9a-f]{6}\) ", both, re.M)) == 2


def test_a_model_with_fewer_folds_is_named_with_them(on_ucf: Downstream, tmp_path: Path) -> None:
    downstream(on_ucf)
    text = downstream(replace(on_ucf, folds=(1, 2, 1), random_weights="only"))
    found = {(r.model, r.fold): r.metrics["R@1"].value for r in results(tmp_path)}
    assert sorted(found) == [("e", 1), ("random weights", 1), ("random weights", 2)]
    assert "folds differ in number: random weights (2); e (1)" in text


@pytest.mark.parametrize("damage", few([b"", b"{}\n", b"\xff\xfe\x00\n", b'{"model": "ab', b"unknown"], 2))
def test_damaged_lines_are_computed_again(
    on_ucf: Downstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes
) -> None:
    """A line may be cut by a kill, too."""
    settings, path = replace(on_ucf, random_weights="include"), tmp_path / RESULTS
    text = downstream(settings)
    first, second = results(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    unknown = damage == b"unknown"
    path.write_bytes(lines[0] + (lines[1].replace(b'"retrieval"', b'"of-tomorrow"') if unknown else damage))
    capsys.readouterr()
    assert downstream(settings) == text
    assert [each.metrics for each in results(tmp_path)] == [first.metrics, second.metrics]
    said = capsys.readouterr().err
    assert (f"warning: line 2 of {path} is damaged or of another version (" in said) == bool(damage)


def test_what_the_weights_do_not_say_changes_folders_and_keys(on_ucf: Downstream) -> None:
    """Statistics, crops and clips, and other vectors of the same words."""
    (job,) = jobs_of(replace(on_ucf, protocols=("cross-modal",), folds=()), {})
    trained, statistics = job.subject.trained, job.subject.trained.inputs.statistics
    records = [replace(trained.record, statistics=replace(statistics, mel_mean=statistics.mel_mean + 1)), *(
        replace(trained.record, settings=replace(trained.settings, **changed))
        for changed in ({"augmentation": replace(trained.settings.augmentation, scale=(40, 40))},
                        {"clip": replace(trained.settings.clip, stride=3)})
    )]  # fmt: skip
    models = [trained, *(replace(trained, record=record) for record in records)]
    assert len({replace(job.subject, trained=model).folder for model in models}) == 4
    job = replace(job, settings=replace(job.settings, word2vec=Path("vectors")))
    one = WordVectors(np.ones((2, 3), np.float16), ("a", "b"))
    words = one, replace(one, vectors=2 * one.vectors), None
    assert len({replace(job, words=each).key for each in words}) == 3


def test_train_samples_limits_the_training_videos(on_ucf: Downstream, tmp_path: Path) -> None:
    downstream(replace(on_ucf, protocols=("linear",), train_samples=9))
    (record,) = results(tmp_path)
    assert (record.gallery, record.queries) == (9, 12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--folds 4", "has an official fold 4; leave --folds out"),
        ("--query-split train --protocols retrieval", "both the split 'train', so every video would find itself"),
        ("--gallery-split nix", "has no labelled videos in the split 'nix' .*are in: test, train"),
        ("--modalities audio video --protocols linear finetune", "finetune trains one network"),
        ("--modalities video video", "'video video'; set it to video, audio, or video audio"),
        ("--lr 5 --protocols retrieval", "--lr has no effect on retrieval; it applies only to finetune"),
        ("--lr nan --protocols finetune", "--lr is nan; it must be 0 or more"),
        ("--train-samples 25 --protocols linear", "--train-samples is 25, but there are only 24 training videos"),
        ("--label colour", "unknown column 'colour'"),
        ("--shards /nowhere", "there are no shards in /nowhere .* '.*gdt preprocess --dataset nowhere"),
        ("--clips 0", "--clips is 0; it must be from 1 to 1,000"),
    ],
)
def test_wrong_settings_are_refused(checkpoint: Path, ucf: Path, tmp_path: Path, arguments: str, message: str) -> None:
    plain = {"--dataset": "ucf101", "--shards": str(ucf), "--ckpt": str(checkpoint), "--out": str(tmp_path)}
    given = [part for option, value in plain.items() if option not in arguments for part in (option, value)]
    with pytest.raises(UserError, match=message):
        downstream(parse(Downstream, "gdt evaluate", [*given, *arguments.split()]))


def test_protocols_are_functions_and_lines(on_ucf: Downstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(job: Job, fold: Fold) -> Outcome:
        metric = Metric(100 * job.settings.linear_c, 10.0, len(fold.queries))
        return Outcome({"count": Measured(metric, np.zeros(len(fold.queries)))})

    monkeypatch.setitem(sys.modules, "gdt.eval.protocols.count", SimpleNamespace(count=count))
    monkeypatch.setitem(PROTOCOLS, "count", Protocol("count", ("folds", "linear_c"), "counts"))
    settings: dict[str, Any] = {"protocols": ("count",), "linear_c": 0.5}
    text = downstream(replace(on_ucf, **settings))
    (record,) = results(tmp_path)
    assert (record.protocol, record.metrics["count"].value, record.fold) == ("count", 50.0, 1)
    assert re.search(r"\be +50\.0 \(", text)
    with pytest.raises(UserError, match="--lr has no effect on count"):
        replace(on_ucf, protocols=("count",), lr=0.1)


def changes(settings: Downstream, others: dict[str, Any]) -> dict[str, Downstream]:
    """Settings with one field changed, by the name of each that matters with --ckpt; `others` has values that exist."""
    hints = get_type_hints(Downstream)
    changed = {}
    for name in [field.name for field in fields(Downstream)]:
        value, choices = getattr(settings, name), get_args(hints[name])
        if name not in others:
            assert isinstance(value, int | float | str), f"give another value of {name}"
            others[name] = not value if hints[name] is bool else next((one for one in choices if one != value), None)
            others[name] = value + 1 if others[name] is None else others[name]
        changed[name] = replace(settings, **{name: others[name]})
    return changed


def test_whatever_changes_a_number_changes_what_identifies_it(
    checkpoint: Path, captioned: Path, word2vec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocols' numbers are checksums of all that they are given, and every setting is changed in turn."""

    def checksum(name: str, job: Job, fold: Fold) -> Outcome:
        given = vars(job.settings) | {
            "folds": fold.digest(job.eval_set.index.id), "data": job.eval_set.fingerprint, "split": job.eval_set.split,
            "model": job.subject.digest, "word2vec": job.settings.word2vec and job.words.checksum,
        }  # fmt: skip
        number = zlib.crc32(json.dumps([name, given], default=str).encode()) % 10**6 / 10**4
        metric = Metric(number, 1.0, len(fold.queries))
        return Outcome({"video to audio R@1": Measured(metric, np.zeros(len(fold.queries)))})

    for name, protocol in PROTOCOLS.items():
        function = f"gdt.{protocol.function}".replace(":", ".")
        monkeypatch.setattr(function, partial(checksum, name))
    real = Index.open(captioned)
    swapped = {"val": "test", "test": "val"}
    index = replace(
        real, columns={"parity": np.array(["even", "odd"], object)[np.arange(len(real)) % 2]},
        folds=np.array([f"{split},{swapped.get(split, split)}" for split in real.split], object),
    )  # fmt: skip
    monkeypatch.setattr(
        "gdt.eval.subjects.open_index",
        lambda _, folder, cache: replace(index, settings=index.settings | {"other": str(folder)}) if folder else index,
    )
    state = torch.load(checkpoint, weights_only=True)
    state["model"]["video_network.base.stem.0.weight"].mul_(2)
    (tmp_path / "other").mkdir()
    torch.save(state, tmp_path / "other" / "checkpoint.pt")
    monkeypatch.setattr("gdt.eval.downstream.job_limit", lambda _: 1)  # without subprocesses
    load = cache(load_model)
    load_once = lambda path, _: load(path)  # noqa: E731
    for module in ("jobs", "subjects"):
        monkeypatch.setattr(f"gdt.eval.{module}.load_trained", load_once)
    settings = Downstream((checkpoint,), "x", captioned, tuple(PROTOCOLS), (1,), random_weights="exclude")
    everything = changes(settings, {
        "ckpt": (tmp_path / "other",), "dataset": "y", "shards": tmp_path, "protocols": ("linear",), "folds": (2,),
        "word2vec": word2vec, "label": "parity",
        "modalities": ("video",), "gallery_split": "test", "query_split": "val",
        "random_weights": "only", "out": tmp_path, "cache": "1GB",
        "own_networks": OwnNetworks((own_networks.__name__ + ":Net",)),
    })  # fmt: skip
    labelled = ("retrieval", "few-shot", "knn", "linear")
    everything["modalities"] = replace(settings, modalities=("audio",), protocols=labelled)
    everything["gallery_split"] = replace(everything["gallery_split"], query_split="val")
    numbers: dict[str, set[float]] = {}
    changed = {}
    for name, one in {"": settings, **everything}.items():
        out = tmp_path / f"out-{name}"
        downstream(replace(one, out=out, tables=True))
        values = {each.key: each.metrics["video to audio R@1"].value for each in results(out)}
        for key, value in values.items():
            numbers.setdefault(key, set()).add(value)
        changed[name] = {*values.values()}
    assert [key for key, values in numbers.items() if len(values) > 1] == []
    # these change no number, so that the test above is of all others
    same = [name for name in everything if changed[name] <= changed[""]]
    assert {*same} == {"dataset", "protocols", "jobs", "out", "own_networks", "tables", "cache"}


def test_a_finetuning_process_gets_every_setting(
    evaluated: Evaluated, checkpoint: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parity = np.array(["even", "odd"], object)[np.arange(len(index)) % 2]
    run_parallel = Mock(return_value=[])
    monkeypatch.setattr("gdt.eval.downstream.run_parallel", run_parallel)
    values = {
        "ckpt": (str(checkpoint),), "dataset": "x", "shards": index.folder, "protocols": ("finetune",), "folds": (2,),
        "label": "-x", "gallery_split": "val", "query_split": "test", "random_weights": "only", "out": tmp_path,
        "jobs": 2, "tables": False, "word2vec": None, "linear_c": 1.0, "modalities": ("video",),
        "own_networks": OwnNetworks((own_networks.__name__ + ":Net",)), "cache": "1GB",
    }  # fmt: skip
    changes(Downstream((checkpoint,)), values)  # fills in the others
    folds = np.array([f"{split},{split}" for split in index.split], object)
    evaluated({"columns": {"-x": parity}, "folds": folds}, **values)
    ((task,), *_), _ = run_parallel.call_args
    ((name, *sent),) = task.commands
    assert name == "evaluate"
    assert parse(Downstream, "gdt evaluate", sent) == Downstream(**values | {"jobs": 1})


def test_protocols_evaluate_audio_or_both(evaluated: Evaluated, checkpoint: Path, index: Index, tmp_path: Path) -> None:
    silent = [np.flatnonzero(index.split == split)[0] for split in ("train", "test")]
    mel_count = np.where(np.isin(np.arange(len(index)), silent), 50, index.mel_count)
    evaluate = partial(evaluated, {"mel_count": mel_count}, protocols=("retrieval", "few-shot", "linear"), clips=2)
    videos = evaluate()
    found = {("video",): results(tmp_path)}
    choices: list[Any] = [("audio",), ("video", "audio")]
    for modalities in choices:
        text = evaluate(modalities=modalities)
        found[modalities] = [row for row in results(tmp_path) if row.settings["modalities"] == list(modalities)]
        assert f", features of {' and '.join(modalities)}: 11 queries" in " ".join(text.split())
        assert [row.protocol for row in found[modalities]] == ["retrieval", "few-shot", "linear"]
        for row in found[modalities]:
            what = " or ".join(modalities)
            assert row.details["left out"] == f"2 videos whose {what} is missing, or sound is shorter than a clip"
            assert (row.gallery, row.queries) == (23, 11)
            assert row.metrics and all(0 <= m.low <= m.value <= m.high <= 100 for m in row.metrics.values())
        assert "left out: 2 videos whose " in text
    assert "features of" not in videos and {(row.gallery, row.queries) for row in found["video",]} == {(24, 12)}
    before = len(results(tmp_path))
    evaluate(modalities=("audio", "video"))
    assert len(results(tmp_path)) == before  # the order does not matter
    text = evaluate(modalities=("audio",), protocols=())
    assert "1-shot" in text and "→" not in text  # cross-modal retrieval, which --modalities does not affect
    # the features are those of the networks, and R@1 is that of the joined ones
    kept = np.setdiff1d(np.flatnonzero(np.isin(index.split, ("train", "test"))), silent)
    trained, device = load_model(checkpoint), torch.device("cpu")
    asked = Embed("x", shards=Path(), modalities=("audio",), clips=2, kind="features")
    embedded = Embedder(asked, trained).rows(replace(index, mel_count=mel_count), np.arange(len(index)))
    (file,) = tmp_path.glob("e-*/features-audio-*.npz")
    audio, video = extract.read(file), extract.extract(trained, index, kept, 2, device)
    assert audio is not None and np.allclose(audio.average, embedded.features["audio"][kept], atol=1e-5)
    assert (audio.maximum >= audio.average).all() and not np.allclose(audio.maximum, audio.average)
    joined = np.concatenate([unit(video.maximum), unit(audio.maximum)], axis=1)
    query, gallery = (index.split[kept] == split for split in ("test", "train"))
    right = index.label[kept][gallery][(joined[query] @ joined[gallery].T).argmax(1)] == index.label[kept][query]
    row = found["video", "audio"][0]
    assert row.metrics["R@1"].value == pytest.approx(100 * right.mean())
    with pytest.raises(UserError, match="0 videos of the gallery and 0 queries have audio as long as .*to video"):
        evaluated({"mel_count": np.zeros_like(mel_count)}, protocols=("retrieval",), modalities=("audio",))


def test_lines_without_answers_have_no_marks_and_are_not_computed_again(on_ucf: Downstream, tmp_path: Path) -> None:
    settings = replace(on_ucf, random_weights="include", protocols=("retrieval", "few-shot", "knn"))
    text = downstream(settings)
    before = (tmp_path / RESULTS).read_bytes()
    assert "p < 0.05 on the same queries" in text
    columns = (tmp_path / "results.csv").read_text().splitlines()[0]
    assert "above_random,p_random" in columns and "p_first" not in columns  # there is one model
    shutil.rmtree(tmp_path / "answers")
    text = downstream(settings)
    assert "p < 0.05" not in text and (tmp_path / RESULTS).read_bytes() == before
    assert "p_random" not in (tmp_path / "results.csv").read_text()
