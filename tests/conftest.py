"""Data that tests share: a small generated set and its shards, and real files where they are at hand."""

from __future__ import annotations

import json
import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several, which share the cores; torch looks when it is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gdt.pipeline.shards.index import Index
from gdt.preprocess.stage import Preprocess
from gdt.preprocess.stage import run as preprocess
from gdt.preprocess.synthetic import Synthetic, generate

for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):  # of `make test`, which would speak of itself in every make below it
    os.environ.pop(name, None)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and its children would

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
def checkpoint(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of picture against sound, after three steps."""
    from gdt.train.pretrain import pretrain  # torch and DALI, which most tests of preprocessing do without
    from gdt.train.settings import SIZES

    out = tmp_path_factory.mktemp("runs") / "e"
    return pretrain(replace(SIZES["tiny"][1], shards=shards, out=out, preset="e", batch_size=4, steps=3))


def write_word2vec(path: Path, texts: Iterable[str], dimensions: int) -> None:
    """A word2vec file, in text form, of the words in some texts, each with random numbers of its own."""
    words = sorted({word for text in texts for word in text.lower().split()})
    rng = np.random.default_rng(0)
    rows = (" ".join([word, *(f"{x:.4f}" for x in rng.normal(size=dimensions))]) for word in words)
    path.write_text("\n".join([f"{len(words)} {dimensions}", *rows]) + "\n")


@pytest.fixture(scope="session")
def word2vec(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of 12 numbers for the words that are said in the generated videos."""
    said = json.loads((synthetic / "captions.json").read_text())
    path = tmp_path_factory.mktemp("words") / "vectors.txt"
    write_word2vec(path, (text for captions in said.values() for text in captions["text"]), 12)
    return path


@pytest.fixture(scope="session")
def captioned(synthetic: Path, word2vec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of the generated videos with what is said in them."""
    folder = tmp_path_factory.mktemp("shards") / "captioned"
    preprocess(Preprocess("synthetic", synthetic, folder, word2vec=word2vec, videos_per_shard=16, workers=2))
    return folder


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


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process that runs commands in forks of itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forked"], env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.stdin.close()
    process.wait()


@pytest.fixture
def command(server: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Runs `python -m ...` as a user would, in an empty folder, but without waiting for Python to import everything."""
    return commands_in(tmp_path, server)


def commands_in(folder: Path, server: subprocess.Popen[str]) -> Run:
    """Runs commands in a folder."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        said, errors = folder / ".said", folder / ".errors"
        for path in (said, errors):
            path.write_bytes(b"")
        request = {
            "command": [*map(str, arguments)], "folder": str(folder), "said": str(said), "errors": str(errors),
            "environment": {"PYTHONPATH": str(ROOT)} | environment,
        }  # fmt: skip
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        done = subprocess.CompletedProcess(arguments, code, said.read_text(), errors.read_text())
        said.unlink()
        errors.unlink()
        return done

    return run
