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

import eval.command
import preprocess.command
import train.command
import train.submit
from tests.conftest import ROOT, Run

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
    r"^make ablation |^python -m eval ablation ": "trains many times; tests/eval/test_ablation.py",
    r"^python -m eval figures": "names models of Kinetics; tests/eval/test_figures.py",
    r"^python -m eval search": "trains 30 times; tests/eval/test_search.py",
    r"DATASET=synthetic-hard|benchmarks\.predictions": "takes hours; tests/preprocess/test_synthetic_hard.py",
    r"DATASET=mine CKPT=\.\.\.": "names no file",
}
"""What is not run, and why; all of it is parsed."""
LESS = {
    "train": ["--steps", "2", "--videos-per-batch", "4"], "eval downstream": ["--clips", "2"],
    "eval embed": ["--clips", "2"], "eval theorem": ["--batches", "100"],
}  # fmt: skip
"""What makes the commands short."""


def lines_of(text: str) -> list[str]:
    """The commands of a block, without comments and with what is optional."""
    lines = (re.sub(r"\s+#.*$", "", line).replace("[", "").replace("]", "") for line in text.splitlines())
    return [line for line in lines if line.strip()]


def python_commands(line: str, stamp: Path) -> list[list[str]]:
    """The `python -m` commands that a line starts: a make target's, or its own."""
    if line.startswith(("torchrun ", "srun ", "mpirun ")):
        return [shlex.split(line.split(" -m ", 1)[1])]
    if not line.startswith("make "):
        return [shlex.split(line.replace("python -m ", ""))] if line.startswith("python -m ") else []
    made = subprocess.run(
        ["make", "-n", "PYTHON=python", f"STAMP={stamp}", *shlex.split(line)[1:]], cwd=ROOT, capture_output=True,
        text=True, check=True,
    ).stdout  # fmt: skip
    recipes = re.sub(r"\\\n\s*", "", made).splitlines()
    return [shlex.split(recipe.split("python -m ", 1)[1]) for recipe in recipes if "python -m " in recipe]


def parsed(command: list[str]) -> None:
    """Settings, or an error about the options."""
    module, *arguments = command
    if module == "train.submit":
        module, arguments = "train", train.submit.parsed(arguments)[1]
    if module == "train.launch":
        arguments = arguments[1:]
    if module in ("train", "train.launch"):
        train.command.settings_of(arguments)
    elif module == "eval":
        eval.command.settings_of(arguments)
    elif module == "preprocess":
        preprocess.command.settings_of(arguments)
    else:  # of benchmarks and the like, at least that they are there
        assert importlib.util.find_spec(module) is not None, module


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
            for arguments in python_commands(line.replace("/my/videos", str(mine)), stamp):
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
                for arguments in python_commands(line.replace("/my/videos", str(mine)), stamp):
                    parsed(arguments)
