"""The benchmarks on a CPU: their help, and videos without audio."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest

from benchmarks import loader, preprocess
from gdt.common.errors import UserError
from gdt.pipeline.shards.index import Index
from tests.conftest import ROOT

NAMES = ("features", "groups", "loader", "memory", "planning", "preprocess", "relabel", "size")


@pytest.mark.parametrize("name", NAMES)
def test_help_is_at_most_100_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as done:
        run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
    text = capsys.readouterr().out
    assert not done.value.code and ("Measure" in text or "Count" in text)
    assert max(map(len, text.splitlines()[1:])) <= 100  # tyro does not wrap the usage


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A folder with a video without audio."""
    folder = tmp_path / "silent"
    folder.mkdir()
    subprocess.run(
        ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=d=3:s=64x48:r=25", folder / "a.mp4"], check=True
    )  # fmt: skip
    return folder


def test_preprocessing_is_measured_with_and_without_audio(silent: Path, real: Path, tmp_path: Path) -> None:
    paths = [silent / "a.mp4", next((real / "grid").glob("*.mpg"))]
    audio = [preprocess.has_audio(path) for path in paths]
    assert audio == [False, True]
    for way in (preprocess.bare, lambda *given: preprocess.usual(*given[:3], True, given[3])):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        way(paths, audio, 1, folder)
        assert all((folder / f"{k}.mjpeg").stat().st_size for k in (0, 1))
    damaged = silent / "b.mp4"
    damaged.write_bytes(b"not a video")
    with pytest.raises(UserError, match="b.mp4 cannot be read: .*; remove it from the source"):
        preprocess.has_audio(damaged)


def test_loading_is_measured_without_audio(index: Index) -> None:
    assert loader.default_rows(index) == ("e", "l")
    assert loader.default_rows(replace(index, mel_count=np.zeros_like(index.mel_count))) == ("a",)
