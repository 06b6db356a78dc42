"""Official folds, settings and changed indices that several tests of evaluations share."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from gdt.eval.downstream import downstream
from gdt.eval.results import RESULTS, Result, read
from gdt.eval.settings import Downstream
from gdt.pipeline.shards.index import Index
from gdt.preprocess.settings import Preprocess
from tests.conftest import once, preprocess

Evaluated = Callable[..., str]


def official(folder: Path, videos: Path) -> Path:
    """A tree of generated clips with lists like those of UCF-101: every video is a test video of one fold."""
    paths = sorted(path for split in ("train", "test") for path in (videos / split).rglob("*.mp4"))
    (folder / "ucfTrainTestlist").mkdir(parents=True)
    classes = sorted({path.parent.name for path in paths})
    lines: dict[str, list[str]] = {}
    seen = dict.fromkeys(classes, 0)
    for path in paths:
        name, number = path.parent.name, seen[path.parent.name]
        seen[name] += 1
        file = folder / "UCF-101" / name / f"v_{name}_g{number:02d}_c01.mp4"
        file.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, file)
        for fold in (1, 2, 3):
            if number % 3 == fold - 1:
                lines.setdefault(f"testlist{fold:02d}.txt", []).append(f"{name}/{file.name}")
            else:
                line = f"{name}/{file.name} {classes.index(name) + 1}"
                lines.setdefault(f"trainlist{fold:02d}.txt", []).append(line)
    for name, texts in lines.items():
        (folder / "ucfTrainTestlist" / name).write_text("\r\n".join(texts) + "\r\n")
    return folder


@pytest.fixture(scope="session")
def ucf(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = once(tmp_path_factory, "videos/ucf101", lambda folder: official(folder, synthetic))
    return once(tmp_path_factory, "shards/ucf101", lambda folder: preprocess(Preprocess("ucf101", source, folder)))


@pytest.fixture
def on_shards(checkpoint: Path, shards: Path, tmp_path: Path) -> Downstream:
    """The default protocols on the generated videos, without random weights."""
    return Downstream((checkpoint,), "x", shards, clips=1, random_weights="exclude", out=tmp_path)


@pytest.fixture
def on_ucf(on_shards: Downstream, ucf: Path) -> Downstream:
    """Retrieval on fold 1, without random weights."""
    return replace(on_shards, dataset="ucf101", shards=ucf, protocols=("retrieval",), folds=(1,), clips=2)


@pytest.fixture
def evaluated(on_shards: Downstream, index: Index, monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    """Evaluates the generated shards with other columns of their index; returns the tables."""

    def run(columns: dict[str, Any], **settings: Any) -> str:
        monkeypatch.setattr("gdt.eval.subjects.open_index", lambda *_: replace(index, **columns))
        return downstream(replace(on_shards, **settings))

    return run


def results(folder: Path) -> list[Result]:
    return read(folder / RESULTS)


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
