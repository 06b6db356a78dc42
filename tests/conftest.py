"""Data that tests share: a small generated set and its shards, and real files where they are at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.shards.index import Index
from preprocess.stage import Preprocess
from preprocess.stage import run as preprocess
from preprocess.synthetic import Synthetic, generate

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(os.environ.get("GDT_TEST_DATA", ROOT.parent / "shared" / "data"))
"""Real clips to test with, where they are at hand; see the fixture `real`."""


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real MP4 files: 3 classes, 8 training, 2 validation and 4 test videos each."""
    folder = tmp_path_factory.mktemp("videos") / "synthetic"
    generate(folder, Synthetic(train=8, val=2, test=4, classes=3, seconds=3.0), workers=2, progress=False)
    return folder


@pytest.fixture(scope="session")
def shards(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated videos, preprocessed into three shards."""
    folder = tmp_path_factory.mktemp("shards") / "synthetic"
    preprocess(Preprocess("synthetic", synthetic, folder, videos_per_shard=16, workers=2))
    return folder


@pytest.fixture(scope="session")
def index(shards: Path) -> Index:
    return Index.open(shards)


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of real clips; tests that need it are skipped where it is absent."""
    if not REAL.is_dir():
        pytest.skip(f"real clips are not at hand: no folder {REAL}; set GDT_TEST_DATA")
    return REAL


@pytest.fixture(scope="session")
def grid_shards(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 talking-face videos with sound, preprocessed."""
    folder = tmp_path_factory.mktemp("shards") / "grid"
    preprocess(Preprocess("folder", real / "grid", folder, videos_per_shard=30, workers=2))
    return folder


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(tmp_path: Path) -> Run:
    """Runs `python -m ...` as a user would, in an empty folder."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *map(str, arguments)],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    return run
