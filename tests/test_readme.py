"""Every block of the README, typed as it stands, on small data in the place of what it names."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gdt.command import COMMANDS
from gdt.eval import command as evaluation
from gdt.preprocess import command as preprocessing
from gdt.studies import command as studies
from gdt.train import command as training
from gdt.train import submit
from tests.conftest import ROOT, Run
from tests.test_mistakes import make

README = (ROOT / "README.md").read_text()
BLOCKS = [(kind, text) for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)]
ONLY_READ = {
    r"^make (demo|test)$": "all of this, and minutes",
    r"GPUS=": "needs GPUs",
    r"SCHEDULER=|^dask ": "needs other machines; tests/preprocess/test_cluster.py, tests/train/test_submit.py",
    r"^(torchrun|srun|mpirun) ": "needs other machines; tests/train/test_launchers.py has them",
    r"^make eval-": "needs UCF-101 or HMDB-51; tests/eval/test_downstream.py has them",
    r"DATASET=(kinetics|howto100m)": "needs the data set; tests/preprocess/test_datasets.py has them",
    r"fresh": "takes minutes",
    r"^make ablation |^gdt eval ablation ": "trains many times; tests/eval/test_ablation.py",
    r"^gdt study figures": "names models of Kinetics; tests/eval/test_figures.py",
    r"^gdt eval search": "trains 30 times; tests/eval/test_search.py",
    r"DATASET=synthetic-hard|study predictions": "takes hours; tests/preprocess/test_synthetic_hard.py",
    r"DATASET=mine CKPT=\.\.\.": "names no file",
}
"""What is not run, and why; all of it is parsed."""
LESS = {
    "pretrain": ["--steps", "2", "--batch-size", "4"], "eval downstream": ["--clips", "2"],
    "eval embed": ["--clips", "2"], "eval theorem": ["--batches", "100"],
}  # fmt: skip
"""What makes the commands short."""


def lines_of(text: str) -> list[str]:
    """The commands of a block, without comments and with what is optional."""
    lines = (re.sub(r"\s+#.*$", "", line).replace("[", "").replace("]", "") for line in text.splitlines())
    return [line for line in lines if line.strip()]


def commands(line: str, stamp: Path) -> list[list[str]]:
    """The commands of gdt and benchmarks that a line starts: a make target's, or its own."""
    if line.startswith(("torchrun ", "srun ", "mpirun ")):
        return [shlex.split(line.split(" gdt ", 1)[1])]
    if line.startswith(("gdt ", "python -m ")):
        return [shlex.split(line.removeprefix("gdt ").removeprefix("python -m "))]
    if not line.startswith("make ") or line.split()[1] in ("demo", "test"):
        return []
    made = make(*shlex.split(line)[1:], stamp=stamp)
    assert made.returncode == 0, made.stderr
    return [shlex.split(command.removeprefix("gdt ")) for command in made.stdout.splitlines()]


def parsed(command: list[str]) -> None:
    """Settings, or an error about the options."""
    name, *arguments = command
    if name == "pretrain":
        training.settings_of(submit.parsed(arguments)[1])
    elif name == "eval":
        evaluation.settings_of(arguments)
    elif name == "study":
        evaluation.settings_of(arguments, studies.COMMANDS)
    elif name == "preprocess":
        preprocessing.settings_of(arguments)
    elif name not in COMMANDS:  # of benchmarks and the like, at least that they are there
        assert importlib.util.find_spec(name) is not None, name


@pytest.fixture
def stamp(tmp_path: Path) -> Path:
    """What tells make that everything is installed."""
    path = tmp_path / ".stamp"
    path.touch()
    return path


@pytest.fixture
def mine(synthetic: Path, tmp_path: Path) -> Path:
    """The videos of somebody: two kinds, in folders, and one beside them."""
    folder = tmp_path / "my" / "videos"
    kinds = sorted(path for path in (synthetic / "train").iterdir() if path.is_dir())[:2]
    for name, kind in zip(("cats", "dogs"), kinds, strict=True):
        (folder / name).mkdir(parents=True)
        for path, letter in zip(sorted(kind.glob("*.mp4")), "abcdefgh", strict=False):
            shutil.copy(path, folder / name / f"{letter}.mp4")
    shutil.copy(folder / "cats" / "a.mp4", folder / "a.mp4")
    return folder


def test_blocks_say_what_they_are() -> None:
    assert {kind for kind, _ in BLOCKS} <= {"sh", "python", "csv", "text", "bibtex"}
    lines = [line for kind, text in BLOCKS if kind == "sh" for line in lines_of(text)]
    assert all(any(re.search(pattern, line) for line in lines) for pattern in ONLY_READ)


def test_commands_do_what_they_say_one_after_the_other(
    command: Run, mine: Path, shards: Path, stamp: Path, tmp_path: Path
) -> None:
    """Those of one's own videos, in the order of the page, and then the Python below them, in the same folder."""
    (tmp_path / "data" / "shards").mkdir(parents=True)
    (tmp_path / "data" / "shards" / "synthetic").symlink_to(shards)
    ran = 0
    for kind, text in BLOCKS:
        if kind != "sh":
            continue
        for line in lines_of(text):
            why = next((why for pattern, why in ONLY_READ.items() if re.search(pattern, line)), "")
            for arguments in commands(line.replace("/my/videos", str(mine)), stamp):
                if why:
                    continue
                name = " ".join(arguments[: 2 if arguments[0] == "eval" else 1])
                done = command(*arguments, *LESS.get(name, []))
                assert done.returncode == 0, (line, done.stderr)
                ran += 1
    assert ran > 10
    assert (tmp_path / "runs" / "report.html").is_file() and (tmp_path / "mine.h5").is_file()
    for kind, text in BLOCKS:
        if kind == "python" and "import gdt" in text:
            (tmp_path / "script.py").write_text(text.replace("/my/videos", str(mine)))
            done = subprocess.run(
                [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True,
                env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr


def test_what_is_not_run_has_options_that_there_are(mine: Path, stamp: Path) -> None:
    for kind, text in BLOCKS:
        if kind == "sh":
            for line in lines_of(text):
                for arguments in commands(line.replace("/my/videos", str(mine)), stamp):
                    parsed(arguments)
