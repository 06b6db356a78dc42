"""Shared test data: a small synthetic set and its shards, and real files if there are any."""

import fcntl
import itertools
import json
import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; torch reads this at import
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.pipeline.shards.index import Index
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import run as preprocess
from gdt.preprocess.synthetic.files import generate
from gdt.preprocess.synthetic.moments import Synthetic

for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):  # of `make test`, for make in tests
    os.environ.pop(name, None)

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it, and so would children
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as under nohup

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(os.environ.get("GDT_TEST_DATA", ROOT.parent / "shared" / "data"))
"""Folder of real clips; see the fixture `real`."""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
"""Before any test changes it."""


def few(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """Cases of pytest.mark.parametrize of which all but the first few are slow."""
    every = [pytest.param(*case) if type(case) is tuple else pytest.param(case) for case in cases]
    slow = (pytest.param(*case.values, marks=pytest.mark.slow) for case in every[count:])
    return [*every[:count], *slow]


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first of the workers of pytest that needs it makes for all; they only read it."""
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    folder = (factory.getbasetemp().parent if parallel else factory.getbasetemp()) / "once" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    whole = folder.parent / f".{folder.name}-is-whole"
    with folder.with_name(f".{folder.name}-lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            make(folder)
            whole.touch()
    return folder


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real MP4 files: 3 classes, 8 training, 2 validation and 4 test videos each."""
    videos = Synthetic(train=8, val=2, test=4, classes=3, seconds=3.0)
    return once(tmp_path_factory, "videos/synthetic", lambda folder: generate(folder, videos, workers=2))


@pytest.fixture(scope="session")
def shards(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated videos, preprocessed into three shards."""
    settings = Preprocess("synthetic", synthetic, videos_per_shard=16)
    return once(tmp_path_factory, "shards/synthetic", lambda folder: preprocess(replace(settings, destination=folder)))


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    """Shards that a test may damage."""
    return shutil.copytree(shards, tmp_path / "copy")


@pytest.fixture(scope="session")
def index(shards: Path) -> Index:
    return Index.open(shards)


@pytest.fixture(scope="session")
def checkpoint(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small audio-visual model after three steps."""
    from gdt.train.pretrain import pretrain  # slow imports, which tests of preprocessing do not need
    from gdt.train.settings import SIZES

    settings = replace(SIZES["tiny"], shards=shards, preset="e", batch_size=4, steps=3)
    run = once(tmp_path_factory, "runs/e", lambda folder: pretrain(replace(settings, out=folder)))
    return run / "checkpoint.pt"


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Shards of 12 videos drawn by formulas, and the vectors of their words."""
    from tests.train.drawn import draw  # which imports this file

    return draw(tmp_path_factory.mktemp("drawn"), videos=12)


def write_word2vec(path: Path, texts: Iterable[str], dimensions: int) -> None:
    """Write a word2vec text file of the words in some texts, with random vectors."""
    words = sorted({word for text in texts for word in text.lower().split()})
    rng = np.random.default_rng(0)
    rows = (" ".join([word, *(f"{x:.4f}" for x in rng.normal(size=dimensions))]) for word in words)
    path.write_text("\n".join([f"{len(words)} {dimensions}", *rows]) + "\n")


@pytest.fixture(scope="session")
def word2vec(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of 12 numbers for the words of the synthetic captions."""
    said = json.loads((synthetic / "captions.json").read_text())
    texts = [text for captions in said.values() for text in captions["text"]]
    return once(tmp_path_factory, "words/vectors.txt", lambda path: write_word2vec(path, texts, 12))


@pytest.fixture(scope="session")
def captioned(synthetic: Path, word2vec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of the synthetic videos with captions."""
    settings = Preprocess("synthetic", synthetic, word2vec=word2vec, videos_per_shard=16)
    return once(tmp_path_factory, "shards/captioned", lambda folder: preprocess(replace(settings, destination=folder)))


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of real clips; tests that need it are skipped without it."""
    if not REAL.is_dir():
        pytest.skip(f"no real clips in {REAL}; set GDT_TEST_DATA")
    return REAL


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@cache
def server() -> subprocess.Popen[str]:
    """A process that forks to run commands, and ends with this one."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.forked"], env=ENVIRONMENT, cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def command(tmp_path: Path) -> Run:
    """Run `gdt ...` in an empty folder, without the seconds of imports."""
    return commands_in(tmp_path)


NUMBERS = itertools.count()


class Forked:
    """A command that the server has started in a folder, as a subprocess.Popen."""

    def __init__(self, folder: Path, command: Iterable[object], environment: Mapping[str, str]) -> None:
        self.files = folder / f".{next(NUMBERS)}"
        request = [*map(str, command)], str(folder), {"PYTHONPATH": str(ROOT), **environment}, str(self.files)
        print(json.dumps(request), file=server().stdin, flush=True)
        self.pid = int(server().stdout.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        while not self.files.with_suffix(".status").is_file():
            time.sleep(0.005)
        self.returncode = int(self.files.with_suffix(".status").read_text())

    def communicate(self) -> tuple[str, str]:
        self.wait()
        return self.files.with_suffix(".said").read_text(), self.files.with_suffix(".errors").read_text()


def commands_in(folder: Path) -> Run:
    """Runs commands in a folder; those with `check` must succeed."""

    def run_command(*arguments: object, check: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        process = Forked(folder, arguments, environment)
        try:
            output = process.communicate()
        except BaseException:  # such as a timeout
            os.killpg(process.pid, signal.SIGKILL)
            raise
        for path in folder.glob(f"{process.files.name}.*"):
            path.unlink()
        assert process.returncode == 0 or not check, (arguments, output)
        return subprocess.CompletedProcess(arguments, process.returncode, *output)

    return run_command
