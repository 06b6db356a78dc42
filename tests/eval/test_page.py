"""The HTML report: its numbers are those of the files, broken files are listed, and it needs no network."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, sync_playwright

from gdt.common.errors import UserError
from gdt.eval.downstream import downstream
from gdt.eval.metrics import Metric
from gdt.eval.page.collect import Result, choose, collect, subjects
from gdt.eval.page.deviation import mixed, spread
from gdt.eval.page.models import maps
from gdt.eval.page.page import compare, report, smooth
from gdt.eval.page.settings import Report
from gdt.eval.record import RANDOM, read, write
from gdt.eval.settings import Downstream
from gdt.pipeline.shards.index import Index
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES
from tests.conftest import Run
from tests.eval.test_record import ROW
from tests.tamper import annotate, edit_json
from tests.test_cli import sentence

EVIL = "<script>alert('{}')</script>&\"$x$"
VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """The parsed page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.captions: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
            self.captions.append("")
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data
        elif "caption" in self._open:
            self.captions[-1] += data
        if "style" not in self._open:
            self.text += data

    def table(self, caption: str) -> list[list[str]]:
        (found,) = (table for table, title in zip(self.tables, self.captions, strict=True) if title == caption)
        return found


RUNS = "Pretraining; clips/s and data wait are medians, the final loss is a moving mean"
"""Caption of the table of runs."""


def relabelled(shards: Path, folder: Path, label: str) -> Path:
    """A copy of shards with other labels: "" removes them, {} stands for the old label."""
    shutil.copytree(shards, folder, copy_function=shutil.copy)
    annotate(folder, label=[label.format(old) if old else "" for old in Index.open(folder).label])
    return folder


@pytest.fixture(scope="module")
def runs(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one evaluated on videos with hostile labels, one on videos without labels."""
    root = tmp_path_factory.mktemp("page")
    labelled = relabelled(shards, root / "labelled", EVIL)
    silent = relabelled(shards, root / "unlabelled", "")
    out = root / "runs" / "e <b>$1$"
    settings = replace(SIZES["tiny"], shards=labelled, out=out, preset="e", batch_size=6, steps=5, probe_every=3)
    pretrain(settings)
    downstream(Downstream((out,), "mine", labelled, clips=2, out=root / "runs" / "eval"))
    other = root / "runs" / "unlabelled"
    shutil.copytree(out, other)
    edit_json(other / "settings.json", lambda values: values | {"shards": str(silent), "dataset": "quiet"})
    return root / "runs"


@pytest.fixture(scope="module")
def text(runs: Path) -> str:
    return report(Report(runs, queries=3)).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def rows_of(page: Page, folder: Path) -> dict[tuple[str, str], str]:
    """The cells of the tables of an evaluation, by row and column."""
    cells = {}
    for table, title in zip(page.tables, page.captions, strict=True):
        if title.startswith("Percent on ") and title.split("; ")[1] == str(folder):
            for name, *values in table[1:]:
                cells |= {(name, column): value for column, value in zip(table[0][1:], values, strict=True)}
    return cells


def test_numbers_are_those_of_the_json(page: Page, runs: Path) -> None:
    rows = json.loads((runs / "eval" / "results.json").read_text())
    expected: dict[tuple[str, str], str] = {}
    for row in rows:
        for column, values in row["metrics"].items():
            head, metric = column.replace("video to audio", "V→A").replace("audio to video", "A→V"), Metric(*values)
            expected[row["model"], head] = f"{metric.value:.1f} ({metric.low:.1f}-{metric.high:.1f})"
            expected["chance", head] = f"{metric.chance:.1f}"
    assert rows_of(page, runs / "eval") == expected
    assert len(expected) == 3 * (6 + 3 + 2)  # 8 training videos of a class give no 20 shots
    for row in rows:  # and their conditions
        for value in (row["weights"][:8], row["data"][:8], row["labels"][:8], row["provenance"]["started"],
                      row["provenance"]["device"], row["details"]["clips"], row["details"]["precision"]):  # fmt: skip
            assert value in page.text


def test_runs_are_those_of_the_logs(page: Page, runs: Path) -> None:
    lines = page.table(RUNS)
    cells = {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[1:]}
    for name in ("e <b>$1$", "unlabelled"):
        log = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        start = json.loads((runs / name / "run.json").read_text())
        assert cells[name]["final loss"] == f"{np.mean([row['loss'] for row in log]):.3f}"  # within 10 steps
        assert cells[name]["clips/s"] == f"{np.median([row['clips_per_second'] for row in log]):.0f}"
        assert cells[name]["started"] == start["started"]
    assert "Common to all runs: composition e; steps 5 of 5; seed 0; device " in page.text
    assert "probe: video to audio R@1" in page.text and "probe: audio to video R@1" in page.text


def test_neighbours_and_confusion_are_those_of_the_stored_features(page: Page, runs: Path) -> None:
    (path,) = (path for path in (runs / "eval").glob("*/features-*.npz") if "random" not in path.parent.name)
    index = Index.open(runs.parent / "labelled")
    with np.load(path) as file:
        videos, maximum = file["videos"], file["maximum"]
    length = maximum / np.linalg.norm(maximum, axis=1, keepdims=True)
    train, test = (np.flatnonzero(index.split[videos] == split) for split in ("train", "test"))
    order = np.argsort(-(length[test] @ length[train].T), axis=1)
    ids = {str(index.id[videos[q]]): [str(index.id[videos[train[g]]]) for g in row[:5]]
           for q, row in zip(test, order, strict=True)}  # fmt: skip
    label = dict(zip(map(str, index.id), index.label, strict=True))
    shown = re.findall(r"<figcaption><b>(query|✓ correct|✗ wrong)</b> (.*?) <small>(.*?)</small>", page_text(runs))
    query = ""
    ranks: Counter[str] = Counter()
    for mark, _, name in shown[: 3 * 6]:
        if mark == "query":
            query = name
            continue
        assert name == ids[query][ranks[query]]
        assert (mark == "✓ correct") == (label[name] == label[query])
        ranks[query] += 1
    assert sorted(ranks.values()) == [5, 5, 5]
    assert len({label[name] for name in ranks}) == 3  # of different classes
    table = page.table("Percent of the videos of a class (row) by the class of their nearest neighbour (column)")
    names = table[0][1:]
    assert names == sorted(set(label.values()))
    for name, *cells in table[1:]:
        mine = [q for q in ids if label[q] == name]
        assert cells == [f"{100 * np.mean([label[ids[q][0]] == other for q in mine]):.0f}" for other in names]


def page_text(runs: Path) -> str:
    return (runs / "report.html").read_text(encoding="utf-8")


def test_without_labels_videos_are_searched_by_audio(page: Page, text: str) -> None:
    part = unescape(text[text.index("<h3>unlabelled</h3>") :])
    assert "whose frames match their sound best" in part
    assert re.search(r"12 videos of the split 'test', 2 clips each; audio-to-video R@1 .*\(chance 8\.3 %\)", part)
    assert part.count('alt="spectrogram of one second of ') == 3
    assert "rank of its own video" in part or part.count("✓ correct") == 3
    assert "Confusion matrix" not in part
    assert "positive pairs (12)" in page.text and "negative pairs (60)" in page.text  # 6 videos of 2 leaves each


def test_deviation_is_shown_within_a_video_a_class_and_between_any_videos(page: Page) -> None:
    medians = r"([\d.]+) \(([\d.]+)\)"
    of_class = rf"median over clips of a video {medians}; a class {medians}; any videos {medians}, in brackets random"
    labelled, unlabelled = re.findall(r"12 videos of the split 'test', 10 clips each; (median.*)\.", page.text)
    assert all(float(value) > 0 for value in re.match(of_class, labelled).groups())
    assert "a class" not in unlabelled  # its videos have no labels


def test_deviation_is_the_mean_standard_deviation_over_clips() -> None:
    """Two clips at an angle to either side of the video's direction: the sine in one number, 0 in the others."""
    angle = np.array([0.1, 0.2, 0.4])
    features = np.zeros((3, 2, 6))
    features[np.arange(3), :, np.arange(3)] = np.cos(angle)[:, None]
    features[np.arange(3), :, np.arange(3) + 3] = np.sin(angle)[:, None] * [-1, 1]
    assert spread(features) == pytest.approx(np.sqrt(2) * np.sin(angle) / 6)
    ids = np.stack(np.broadcast_arrays(np.arange(5)[:, None], np.arange(3)), 2)  # video and clip
    sets = mixed(ids)
    assert sets.shape == (5, 3, 2) and (sets[..., 1] == np.arange(3)).all()
    assert all(len({*row}) == 3 for row in sets[..., 0].tolist())
    assert mixed(ids[:2]).shape == (2, 2, 2)  # of two videos, two clips


def test_names_and_labels_are_escaped(page: Page, text: str) -> None:
    assert not any(tag in ("script", "b") and attrs for tag, attrs in page.tags)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script>alert('shake')</script>" not in text
    labels = {line[0] for table in page.tables for line in table if line[0].startswith("<script>")}
    assert len(labels) == 3 and all(label.endswith('&"$x$') for label in labels)
    assert "e <b>$1$" in {line[0] for table in page.tables for line in table}


def test_the_page_is_self_contained_and_accessible(page: Page, text: str) -> None:
    identifiers = Counter(attrs["id"] for _, attrs in page.tags if "id" in attrs)
    assert identifiers.most_common(1)[0][1] == 1
    for tag, attrs in page.tags:
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster", "data"):
            target = attrs.get(name) or ""
            assert target.startswith(("data:", "#")) or not target or (tag, target) == (
                "a", "https://arxiv.org/abs/2003.04298")  # fmt: skip
            if target.startswith("#"):
                assert target[1:] in identifiers
        assert not any(name.startswith("on") for name in attrs)
        if tag == "img":
            assert attrs["alt"]
        if tag == "svg":
            assert attrs["role"] == "img" and attrs["aria-label"]
        if tag == "th":
            assert attrs["scope"] in ("row", "col")
    assert all(url.startswith("#") and url[1:] in identifiers for url in re.findall(r"url\(([^)]*)\)", text))
    assert "@import" not in text and all(page.captions)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(text) < 5e6


def test_equal_inputs_give_equal_pages(runs: Path, text: str, tmp_path: Path) -> None:
    path = report(Report(runs, tmp_path / "again.html", queries=3))
    assert path.read_text(encoding="utf-8") == text


def test_broken_files_are_listed_and_the_rest_is_shown(runs: Path, page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    rows = (folder / "eval" / "results.json").read_text()
    (folder / "older").mkdir()
    (folder / "older" / "results.json").write_text(rows[: len(rows) // 2])
    (folder / "newer").mkdir()
    (folder / "newer" / "results.json").write_text(rows)
    edit_json(folder / "newer" / "results.json", lambda row: row | {"steps": 1})
    run = folder / "unlabelled"
    log = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(log[:-30])
    (run / "run.json").write_text("{")
    (run / "checkpoint.pt").write_bytes((run / "checkpoint.pt").read_bytes()[:1000])
    (folder / "cut").mkdir()
    (folder / "cut" / "metrics.jsonl").write_text(log)
    (folder / "cut" / "settings.json").write_text("[")
    shown = Page(report(Report(folder, figures_of=("unlabelled",))).read_text(encoding="utf-8"))
    listed = shown.text[shown.text.index("Files that could not be read") : shown.text.rindex("Evaluations")]
    for name, why in (
        ("older/results.json", "is damaged .(Expecting|Untermin)"), ("newer/results.json", "unknown: steps"),
        ("unlabelled/metrics.jsonl", "1 of 5 lines are damaged .first: line 5."),
        ("unlabelled/run.json", "not a file that this program writes"),
        ("cut/settings.json", "holds no settings of this version"),
    ):  # fmt: skip
        assert re.search(rf"{name}: .*{why}", listed), name
    assert "cannot be read as a checkpoint" in shown.text  # next to its model
    assert rows_of(shown, folder / "eval") == rows_of(page, runs / "eval")
    assert "cut has no checkpoint: " in shown.text


def test_a_result_that_an_ablation_repeats_is_shown_once_with_its_neighbours(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    rows = read(folder / "eval" / "results.json")
    write(folder / "results.json", [replace(row, equal="videos: 6 per step, 5 steps", tflop=1.0) for row in rows])
    page = Page(report(Report(folder, queries=3, figures_of=("e <b>$1$",))).read_text(encoding="utf-8"))
    assert not [title for title in page.captions if f"; {folder / 'eval'}" in title]
    assert "has lost the features" not in page.text and "✓ correct" in page.text


def altered(runs: Path, folder: Path, **values: Any) -> None:
    """Results of the model in another folder, with other values."""
    folder.mkdir(parents=True)
    rows = [row for row in read(runs / "eval" / "results.json") if row.model != RANDOM]
    write(folder / "results.json", [replace(row, **values) for row in rows])


def test_ablations_are_averaged_over_seeds_and_published_results_are_shown(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    altered(runs, folder / "ucf", dataset="ucf101")
    altered(runs, folder / "demo" / "e-0" / "eval", model="e-0", seed=0)
    altered(runs, folder / "demo" / "e-1" / "eval", model="e-1", seed=1)
    both = [row for name in ("e-0", "e-1") for row in read(folder / "demo" / name / "eval" / "results.json")]
    kept = [row for row in both if row.protocol == "retrieval"]
    for row, value in zip(kept, (25.0, 50.0), strict=True):
        row.metrics["R@1"] = row.metrics["R@1"]._replace(value=value)
    write(folder / "demo" / "results.json", kept)
    page = Page(report(Report(folder, models=1)).read_text(encoding="utf-8"))
    assert rows_of(page, folder / "demo")["row e: AV, TR ., TS .", "R@1"] == "37.5 (0.0-100.0)"
    (bars,) = (image for tag, image in page.tags if tag == "img" and "as bars" in str(image["alt"]))
    assert str(folder / "demo") in str(bars["alt"]) and str(bars["src"]).startswith("data:image/png;base64,")
    cells = rows_of(page, folder / "ucf")
    assert cells["paper: GDT, K-400 (split 1)", "R@1"] == "62.8"
    assert cells["paper: GDT, K-400 (split 1)", "1-shot"] == "26.7"
    assert "published results were obtained with their authors" in page.text
    assert "No evaluations yet; run" not in page.text
    assert "No runs yet; run gdt pretrain" in page.text


def test_other_budgets_have_their_own_table(tmp_path: Path) -> None:
    rows = [
        replace(ROW, model=f"e-{seed}", seed=seed, pretraining=replace(ROW.pretraining, seed=seed, steps=steps))
        for seed, steps in enumerate((3, 600, 600))
    ]
    for row in rows:
        (tmp_path / row.model / "eval").mkdir(parents=True)
    random = replace(ROW, model=RANDOM, preset=RANDOM)
    tables, _ = compare(tmp_path, [Result(row, tmp_path) for row in (random, *rows)])
    assert [len(table.lines) for table in tables] == [4, 4]  # headings, random weights, row e, chance
    assert {table.caption for table in tables} == {f"Percent on {ROW.dataset}; {tmp_path}"}
    equal = [
        replace(row, equal=text, tflop=2.0)
        for row, text in zip(rows, ("videos: x", "clips: y", "videos: x"), strict=True)
    ]
    titled, bars = compare(tmp_path, [Result(row, tmp_path) for row in (random, *equal)])
    assert not bars  # one picture would mix what the tables keep apart
    start = f"Percent on {ROW.dataset}; {tmp_path}; equal "
    assert [(table.caption, len(table.lines), table.lines[0][1:3]) for table in titled] == [
        (f"{start}videos: x", 4, ["clips", "TFLOP"]), (f"{start}clips: y", 4, ["clips", "TFLOP"])
    ]  # fmt: skip
    linear = [replace(row, protocol="linear", metrics={"linear top-1": Metric(9.0, 5.0, 20)}) for row in rows[1:]]
    sky = [replace(row, label="sky") for row in rows[1:]]
    both, _ = compare(tmp_path, [Result(row, tmp_path) for row in (*rows[1:], *linear, *sky)])
    assert [(table.caption, table.lines[0][1:]) for table in both] == [
        (f"Percent on {ROW.dataset}; {tmp_path}", [*ROW.metrics, "linear top-1"]),
        (f"Percent on {ROW.dataset}, label sky; {tmp_path}", [*ROW.metrics]),
    ]
    assert sorted(table.brief[0].split("seeds ")[1][:4] for table in tables) == [
        "0, 2",
        "1, 2",
    ]  # 2 is of random weights


def test_a_model_without_stored_features_is_searched_by_audio(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    for path in (folder / "eval").rglob("*.npz"):
        path.unlink()
    for path in (folder / "eval").rglob("*.json"):
        rows = [replace(row, checkpoint=folder / "e <b>$1$") for row in read(path)]
        labelled = ("few-shot", "linear", "retrieval")
        write(path, [replace(row, protocol="finetune") if row.protocol in labelled else row for row in rows])
    page = Page(report(Report(folder, models=1)).read_text(encoding="utf-8"))
    assert "has lost the features" not in page.text and "audio-to-video R@1" in page.text


def test_evaluations_of_other_weights_than_the_checkpoint_are_noted(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    for path in (folder / "eval").rglob("*.json"):
        rows = [replace(row, checkpoint=folder / "e <b>$1$") for row in read(path)]
        write(path, [row if row.model == RANDOM else replace(row, weights="0" * 64) for row in rows])
    page = Page(report(Report(folder, models=1)).read_text(encoding="utf-8"))
    noted = (
        r"neighbours with the weights of the checkpoint \(the evaluation used weights 00000000; run \S*gdt evaluate "
    )
    assert re.search(noted + "--ckpt ", page.text)


def test_choice_of_models(runs: Path, tmp_path: Path) -> None:
    models = subjects(collect(runs))
    assert [subject.name for subject in models] == ["e <b>$1$", "unlabelled"]
    assert [subject.name for subject in choose(models, (), 4)] == ["e <b>$1$", "unlabelled"]
    assert [subject.name for subject in choose(models, ("unlabelled",), 1)] == ["unlabelled"]
    assert [subject.name for subject in choose([replace(models[0], checkpoint=None), models[1]], (), 4)] == [
        "unlabelled"
    ]
    with pytest.raises(UserError, match=r"unknown model 'nix'; set --figures-of to some of: e .*, unlabelled"):
        report(Report(runs, tmp_path / "x.html", figures_of=("nix",)))


def test_the_evaluation_of_the_first_illustrated_model_comes_first(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs, tmp_path / "runs")
    rows = read(folder / "eval" / "results.json")
    (folder / "a").mkdir()
    gone = {"model": "gone", "checkpoint": Path("gone.pt"), "weights": "0" * 64}
    write(folder / "a" / "results.json", [replace(row, **gone) for row in rows])
    text = report(Report(folder, models=1)).read_text(encoding="utf-8")
    assert text.index(f"<h3>{folder / 'eval'}</h3>") < text.index(f"<h3>{folder / 'a'}</h3>")


def test_missing_results_are_listed_with_commands(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs, tmp_path / "runs")
    page = Page(report(Report(folder, models=1)).read_text(encoding="utf-8"))
    _, missing = page.text.rsplit("Missing results", 1)
    listed = dict(re.findall(r"(.+): \S*gdt (.+)", missing))
    assert [*listed] == ["unlabelled is not evaluated", "Figures of 1 model"]
    assert listed["Figures of 1 model"] == f"report --runs {folder} --models 2"
    (folder / "unlabelled" / "checkpoint.pt").unlink()
    text = report(Report(folder, models=1)).read_text(encoding="utf-8")
    (again,) = re.findall(r"unlabelled has no checkpoint: <code>\S*gdt pretrain (.+)</code>", text)
    run = folder / "unlabelled"
    assert shlex.split(unescape(again)) == ["--config", f"{run}/settings.json", "--out", str(run)]


def test_a_name_that_is_not_utf_8_is_escaped(command: Run, runs: Path, tmp_path: Path) -> None:
    """In output, tables and the page."""
    out, shards = Path(os.fsdecode(b"runs/run-\xff")), ("--shards", runs.parent / "labelled")
    said = sentence(command("pretrain", *shards, "--out", out))
    assert said == r"runs/run-\udcff is not UTF-8, which TensorBoard needs; set --out to another folder"
    shutil.copytree(runs / "e <b>$1$", tmp_path / out)
    for arguments in (
        ("evaluate", *shards, "--ckpt", out, "--clips", 1, "--protocols", "retrieval", "--out", out / "eval"),
        ("report", "--runs", "runs", "--models", 1),
    ):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
    page = Page((tmp_path / "runs" / "report.html").read_text(encoding="utf-8"))
    assert page.table(RUNS)[1][0] == "run-\\udcff" and "Files that could not be read" not in page.text
    assert "run-\\udcff" in (tmp_path / out / "eval" / "results.csv").read_text(encoding="utf-8")


def test_of_many_runs_the_last_started_are_drawn(runs: Path, tmp_path: Path) -> None:
    """Next to the models that are drawn; the table has all of them."""
    for k in range(60):
        folder = tmp_path / "runs" / f"run{k:02d}"
        folder.mkdir(parents=True)
        for name in ("settings.json", "metrics.jsonl", "probe.jsonl", "run.json"):
            shutil.copy(runs / "unlabelled" / name, folder)
        started = {"started": f"2026-01-01T00:00:{k:02d}"}
        edit_json(folder / "run.json", lambda row, now=started: row | now)
    text = report(Report(tmp_path / "runs", figures_of=("run07",))).read_text(encoding="utf-8")
    page = Page(text)
    drawn = set(re.findall(r"(run\d\d)</li>", text.split('</ul>\n<p class="soft">Moving')[0]))
    assert drawn == {"run07", *(f"run{k}" for k in range(41, 60))}
    assert "20 of 60 runs are drawn: those of the models below, then the last started" in page.text
    assert len(page.table(RUNS)) == 61
    assert text.count("has no checkpoint: ") == 50 and "10 more are not listed." in page.text


def test_curves_are_centred_moving_means() -> None:
    values = np.random.default_rng(0).normal(size=50)
    values[7] = np.nan
    for width in (1, 4, 21, 200):
        half = width // 2
        with pytest.warns(RuntimeWarning) if width == 1 else np.errstate():
            expected = [np.nanmean(values[max(0, k - half) : k + half + 1]) for k in range(50)]
        assert np.allclose(smooth(values, width), expected, equal_nan=True)


def test_bad_settings_are_one_sentence(command: Run, tmp_path: Path) -> None:
    (tmp_path / "runs" / "deep").mkdir(parents=True)
    done = command("report")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "runs has no runs or evaluations; set --runs to the folder of your runs" in done.stderr
    done = command("report", "--out", "page.txt")
    assert done.returncode == 2 and "--out is page.txt; its name must end in .html" in done.stderr


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs chromium or google-chrome")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


_COLOURS = """() => [...document.querySelectorAll('p,li,td,th,figcaption,small,b,caption,summary,h1,h2,h3,h4,a,code')]
  .filter(e => e.textContent.trim() && e.getClientRects().length)
  .map(e => {
    const behind = [];
    for (let at = e; at; at = at.parentElement) behind.push(getComputedStyle(at).backgroundColor);
    return [getComputedStyle(e).color, ...behind].join(';');
  })"""


def luminance(rgb: np.ndarray) -> float:
    part = rgb / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(chain: str) -> float:
    """WCAG 2 contrast of the first colour with the others behind it, the nearest first."""
    colours = [np.array([float(x) for x in re.findall(r"[\d.]+", colour)]) for colour in chain.split(";")]
    ink, *behind = (colour if len(colour) == 4 else np.append(colour, 1.0) for colour in colours)
    under = np.full(3, 255.0)
    for colour in reversed(behind):
        under = colour[3] * colour[:3] + (1 - colour[3]) * under
    light, dark = sorted((luminance(ink[:3]), luminance(under)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page_on_a_phone(browser: Browser, text: str, runs: Path, scheme: Any) -> None:
    messages: list[str] = []
    with browser.new_page(viewport={"width": 360, "height": 740}, color_scheme=scheme) as view:
        view.on("console", lambda message: messages.append(message.text))
        view.on("pageerror", lambda error: messages.append(str(error)))
        view.on("dialog", lambda dialog: messages.append(dialog.message))
        view.on("request", lambda request: messages.append(request.url))
        address = (runs / "report.html").as_uri()
        view.goto(address)
        assert [line for line in messages if not line.startswith("data:")] == [address]
        assert view.evaluate("document.documentElement.scrollWidth") == 360
        wide = view.evaluate(
            "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
        )
        assert wide > 0  # tables scroll in their own boxes
        worst = min(set(view.evaluate(_COLOURS)), key=contrast)
        assert contrast(worst) >= 4.5, worst
        assert view.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        ink = view.evaluate("getComputedStyle(document.querySelector('svg.plot text')).fill")
        assert ink == view.evaluate("getComputedStyle(document.documentElement).color")


@pytest.mark.parametrize("values", [np.zeros((20, 8)), np.ones((20, 8)), np.full((20, 8), np.nan)])
def test_collapsed_features_are_an_error(values: np.ndarray) -> None:
    """t-SNE would crash."""
    with pytest.raises(UserError, match="features of all 20 points are the same, or contain NaN"):
        maps(values, np.full(20, "a"), 0, "k")
