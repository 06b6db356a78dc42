"""Project files: dependencies, make targets, documented commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT


def test_environment_yml_has_the_dependencies_of_pyproject_toml() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = project["dependencies"] + project["optional-dependencies"]["test"]
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(item["pip"] for item in listed if isinstance(item, dict))
    assert [line for line in pip if not line.startswith("-c ")] == expected
    assert all("==" in line for line in expected)


def test_make_help_lists_every_target_in_100_columns() -> None:
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert max(map(len, text.splitlines())) <= 100
    listed = set(re.findall(r"^  make ([a-z-]+)", text, re.M))
    targets = re.search(r"^targets := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.M)
    assert targets and listed == set(targets[1].replace("\\", "").split())


@pytest.mark.parametrize("stage", ["preprocess", "train", "eval", "studies"])
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
