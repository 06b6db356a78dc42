"""Project files: dependencies, make targets, documented commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT


def test_requirements_are_few_ranges_that_the_pinned_versions_meet() -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = [Requirement(line) for line in project["dependencies"]]
    extras = [Requirement(line) for lines in project["optional-dependencies"].values() for line in lines]
    assert len(base) <= 20
    for each in [*base, *extras]:
        assert "==" not in str(each.specifier)
        assert each.name == "gdt" or each.specifier.contains(pinned[each.name])


def test_make_help_lists_every_target_in_100_columns() -> None:
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert max(map(len, text.splitlines())) <= 100
    listed = set(re.findall(r"^  make ([a-z-]+)", text, re.M))
    targets = re.search(r"^targets := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.M)
    assert targets and listed == set(targets[1].replace("\\", "").split())


@pytest.mark.parametrize("stage", ["preprocess", "train", "eval"])
def test_command_lines_import_nothing_slow(stage: str) -> None:
    """So that `--help` and errors come at once."""
    code = f"import sys, gdt.{stage}.command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "nvidia.dali", "sklearn", "matplotlib"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("pretrain tiny --dataset mine", "there are no shards in data/shards/mine"),
        ("pretrain tiny --dataset mine --factors vido:d", "unknown factor 'vido'; did you mean 'video'?"),
        ("pretrain tiny --shards {shards} --batch-size 1000", "a batch takes 1000 videos but only 24 can be used"),
        ("preprocess --source missing", "missing does not exist"),
        ("verify --dataset mine", "data/shards/mine (no index.h5)"),
    ],
)
def test_mistakes_are_refused_before_slow_imports(shards: Path, tmp_path: Path, command: str, message: str) -> None:
    code = "import sys\nfrom gdt.cli import _run\nfrom gdt.common.errors import exit_with_message as end\n"
    code += "try:\n end(lambda: _run(sys.argv[1], sys.argv[2:]))\nfinally:\n print(*sys.modules)"
    words = command.format(shards=shards).split()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and message in done.stderr and not list(tmp_path.iterdir())
    assert not {"torch", "nvidia.dali", "sklearn", "matplotlib", "distributed"} & set(done.stdout.split())


def test_make_refuses_variables_before_set_up(tmp_path: Path) -> None:
    for words, message in (
        (("bench", "GPUS=2"), "'make bench' takes only SOURCE; remove GPUS"),
        (("eval-hmdb", "DATASET=mine"), "'make eval-hmdb' takes no DATASET; other data sets: 'make eval DATASET=mine'"),
    ):
        command = ["make", *words, f"STAMP={tmp_path / 'stamp'}", "PYTHON=false"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and message in done.stderr and not done.stdout
