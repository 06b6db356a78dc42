"""The HTML report: its numbers are those of the files, broken files are listed, and it needs no network."""

import os
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from playwright.sync_api import Browser

from gdt.common.errors import UserError
from gdt.eval.downstream import downstream
from gdt.eval.page.deviation import group_deviations, mixed, spread
from gdt.eval.page.neighbours import by_features, maps
from gdt.eval.page.page import report
from gdt.eval.results import RANDOM, RESULTS, append, read
from gdt.eval.settings import Downstream, Report
from gdt.pipeline.shards.index import Index
from gdt.preprocess.settings import Preprocess
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES
from tests.conftest import preprocess
from tests.sounds import tone
from tests.tamper import annotate, edit_json

EVIL = "<script>alert('{}')</script>&\"$x$"


class Page:
    """The tags, tables and text of a page; names in it are escaped, so that each < begins a tag."""

    def __init__(self, page: str) -> None:
        found = re.findall(r"<(\w+)([^>]*)>", page)
        self.tags = [(name, dict(re.findall(r'([\w-]+)="(.*?)"', attributes))) for name, attributes in found]
        self.text = unescape(re.sub(r"<[^>]*>", "", page))
        self.tables = [
            [
                [unescape(cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)]
                for row in table.split("<tr>")[1:]
            ]
            for table in re.findall(r"<table.*?</table>", page, re.S)
        ]

    def cells(self) -> dict[tuple[str, str], str]:
        """The cells of all tables, by row and column."""
        return {
            (name, column): value
            for heads, *lines in self.tables
            for name, *values in lines
            for column, value in zip(heads[1:], values, strict=True)
        }


def write_page(folder: Path, **settings: Any) -> str:
    assert report(Report(folder, **settings)) == f"report: {folder}/report.html"
    return (folder / "report.html").read_text(encoding="utf-8")


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
    return write_page(runs)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_numbers_are_those_of_the_json(page: Page, runs: Path) -> None:
    cells = page.cells()
    for row in read(runs / "eval" / RESULTS):
        for column, metric in row.metrics.items():
            column = column.replace("video to audio", "V→A").replace("audio to video", "A→V")
            assert cells[row.model, column] == f"{metric.value:.1f} ({metric.low:.1f}-{metric.high:.1f})"


def test_runs_are_those_of_the_logs(page: Page, runs: Path) -> None:
    for name in ("e <b>$1$", "unlabelled"):
        assert f"{name}: {(runs / name / 'verdict.txt').read_text().strip()}" in page.text
    assert [tag["alt"] for name, tag in page.tags if name == "img" and "learning curves" in str(tag["alt"])] == [
        "learning curves on labelled", "learning curves on quiet"
    ]  # fmt: skip


def test_neighbours_and_confusion_are_those_of_the_stored_features(page: Page, text: str, runs: Path) -> None:
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
    shown = re.findall(r"<figcaption><b>(query|✓|✗)</b> (.*?) <small>(.*?)</small>", text)[: 3 * 6]
    for first in (0, 6, 12):
        (_, _, query), *found = shown[first : first + 6]
        assert [name for _, _, name in found] == ids[query]
        assert [mark == "✓" for mark, _, _ in found] == [label[name] == label[query] for name in ids[query]]
    assert {label[name] for mark, _, name in shown if mark == "query"} == set(label.values())  # one of each class
    players = re.findall(r'<video src="(.*?)" controls preload="none">', text)[: 3 * 6]
    played = [Path(os.path.normpath(runs / unquote(player))) for player in players]
    assert [path.stem for path in played if path.is_file()] == [name for *_, name in shown]
    cells, names = page.cells(), sorted(set(label.values()))
    for name in names:
        mine = [label[ids[q][0]] for q in ids if label[q] == name]
        assert [cells[name, other] for other in names] == [f"{100 * mine.count(o) / len(mine):.0f}" for o in names]


def test_the_report_shows_the_videos_of_the_evaluation(on_shards: Downstream, synthetic: Path, tmp_path: Path) -> None:
    """In a folder that mixes videos and sounds; and nothing once its labels have changed."""
    source, shards = tmp_path / "mixed", tmp_path / "shards"
    shutil.copytree(synthetic, source, ignore=shutil.ignore_patterns("*.json"))
    for split in ("train", "test"):
        for number, folder in enumerate(sorted((source / split).iterdir())):
            tone(folder / "0.wav", 300 * (1 + number), 2.0)
    preprocess(Preprocess("folder", source, shards))
    downstream(replace(on_shards, shards=shards, protocols=("retrieval",), out=tmp_path / "runs" / "eval"))
    (row,) = read(tmp_path / "runs" / "eval" / RESULTS)
    assert (row.gallery, row.queries) == (24, 12)
    page = tmp_path / "runs" / "report.html"
    found = by_features(row, Index.open(row.shards), page)
    assert found.how.endswith(f"R@1 {row.metrics['R@1'].value:.1f} %")
    assert not any(each["id"].endswith(".wav") for line in found.pictures for each in line)
    own = np.mean([line[name] for name, line in found.confusion.items()])
    assert own == pytest.approx(row.metrics["R@1"].value)  # there are 4 queries of each class
    annotate(shards, label=[*Index.open(shards).label[::-1]])
    with pytest.raises(UserError, match="videos, splits or labels of .* have changed since; evaluate again"):
        by_features(row, Index.open(row.shards), page)


def test_without_labels_videos_are_searched_by_sound(text: str) -> None:
    part = unescape(text[text.index("<h2>unlabelled</h2>") :])
    assert re.search(r"by sound among 12 videos; correct: the video itself; R@1 [\d.]+ %", part)
    assert part.count('alt="asked"') == 5 and "Confusion" not in part
    assert 'alt="Deviation of features over clips"' in part


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
    drawn = np.random.default_rng(0).normal(size=(5, 3, 4))
    found = group_deviations(drawn, np.array(["a", "a;b", "b", "", "c"]))  # a video is in the class of each label
    expected = [spread(mixed(drawn[members])) for members in ([0, 1], [1, 2])]
    assert np.array_equal(found["a class"], np.concatenate(expected)) and len(found["a video"]) == 5


def test_the_page_is_self_contained_and_names_are_escaped(page: Page, text: str) -> None:
    assert not {"script", "link", "a"} & {tag for tag, _ in page.tags} and "@import" not in text and "url(" not in text
    assert all(str(attrs["src"]).startswith("data:") and attrs["alt"] for tag, attrs in page.tags if tag == "img")
    names = {line[0] for table in page.tables for line in table}
    assert "e <b>$1$" in names and len({name for name in names if name.endswith('&"$x$')}) == 3
    assert len(text) < 5e6


def test_broken_files_are_listed_and_the_rest_is_shown(runs: Path, page: Page, tmp_path: Path) -> None:
    folder = shutil.copytree(runs, tmp_path / "runs")
    log = (folder / "unlabelled" / "metrics.jsonl").read_text()
    (folder / "unlabelled" / "metrics.jsonl").write_text(log[:-30])  # a line that is being written
    (folder / "unlabelled" / "checkpoint.pt").write_bytes(b"PK")
    shutil.copytree(folder / "unlabelled", folder / "cut")
    (folder / "cut" / "settings.json").write_text("[")
    for path in (folder / "eval").rglob("features-*.npz"):
        path.unlink()
    shown = Page(write_page(folder))
    listed = shown.text[shown.text.index("Files that could not be read") :]
    assert re.search(rf"{folder}/cut: .*holds no settings of this version", listed)
    assert "cannot be read as a checkpoint" in shown.text and "; evaluate again" in shown.text  # next to their models
    assert shown.cells()["random weights", "R@20"] == page.cells()["random weights", "R@20"]


def test_faults_of_the_program_are_not_noted_as_those_of_files(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdt.eval.page.page.deviation", lambda *_: {}["a typo"])
    with pytest.raises(KeyError, match="a typo"):
        write_page(runs)


def test_ablations_are_averaged_over_seeds_and_published_results_are_shown(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for name in ("ucf", "demo"):
        (folder / name).mkdir(parents=True)
    rows = {row.protocol: row for row in read(runs / "eval" / RESULTS) if row.model != RANDOM}
    for row in rows.values():
        append(folder / "ucf" / RESULTS, replace(row, dataset="ucf101", queries=3783, gallery=9537))
    row = rows["retrieval"]
    for seed, value in enumerate((25.0, 50.0)):
        metrics = row.metrics | {"R@1": row.metrics["R@1"]._replace(value=value)}
        of_seed = replace(row, model=f"e-{seed}", seed=seed, weights=str(seed), metrics=metrics)
        append(folder / "demo" / RESULTS, of_seed)
    (folder / "demo" / "table.png").write_bytes(b"picture")
    page = Page(write_page(folder, models=1))
    cells = page.cells()
    assert cells["row e: video-audio", "R@1"].startswith("37.5 (")
    assert any("as bars" in str(attrs.get("alt")) for _, attrs in page.tags)
    assert cells["paper: GDT, K-400 (split 1)", "R@1"] == "62.8"
    assert cells["paper: GDT, K-400 (split 1)", "1-shot"] == "26.7"


def test_the_best_models_are_shown_and_the_others_counted(runs: Path) -> None:
    text = write_page(runs, models=1)
    assert "<h2>e &lt;b&gt;$1$</h2>" in text and "<h2>unlabelled</h2>" not in text
    assert "--models 2 shows 1 more." in text


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs" / "deep").mkdir(parents=True)
    with pytest.raises(UserError, match="has no runs or evaluations; set --runs to the folder of your runs"):
        write_page(tmp_path / "runs")


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_the_page_without_scrollbars(browser: Browser, text: str, runs: Path, width: int) -> None:
    messages: list[str] = []
    with browser.new_page(viewport={"width": width, "height": 740}) as view:
        view.on("console", lambda message: messages.append(message.text))
        view.on("pageerror", lambda error: messages.append(str(error)))
        view.on("request", lambda request: messages.append(request.url))
        (runs / "shown.html").write_text(text, encoding="utf-8")
        address = (runs / "shown.html").as_uri()
        view.goto(address)
        assert [line for line in messages if not line.startswith("data:")] == [address]
        assert view.evaluate("document.documentElement.scrollWidth") == width
        assert view.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        moving = view.locator("figure img").first
        seen = set()
        for _ in range(10):
            seen.add(moving.screenshot())
            view.wait_for_timeout(100)
        assert len(seen) > 2
        player = view.locator("video").first
        player.click(position={"x": 24, "y": 80})  # the button of its controls
        view.wait_for_function("player => player.currentTime > 0.1", arg=player.element_handle(), timeout=5000)


@pytest.mark.parametrize("values", [np.zeros((20, 8)), np.ones((20, 8)), np.full((20, 8), np.nan)])
def test_collapsed_features_are_an_error(values: np.ndarray) -> None:
    """t-SNE would crash."""
    with pytest.raises(UserError, match="features of all 20 points are the same, or contain NaN"):
        maps(values, np.full(20, ""))
