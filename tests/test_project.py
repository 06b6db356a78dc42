"""The project itself: one list of dependencies, documented commands that exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests.conftest import ROOT


def test_environment_yml_is_the_list_of_pyproject_toml() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = project["dependencies"] + project["optional-dependencies"]["test"]
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(item["pip"] for item in listed if isinstance(item, dict))
    assert [line for line in pip if not line.startswith("-c ")] == expected
    assert all("==" in line for line in expected)


def test_make_help_lists_every_target() -> None:
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = set(re.findall(r"^  make ([a-z-]+)", text, re.M))
    phony = set((ROOT / "Makefile").read_text().split(".PHONY:")[1].splitlines()[0].split())
    assert listed == phony


@pytest.mark.parametrize("stage", ["preprocess", "train", "eval", "studies"])
def test_the_command_line_is_there_before_what_takes_seconds_to_import(stage: str) -> None:
    """So `--help` and mistakes are answered at once."""
    code = f"import sys, gdt.{stage}.command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "nvidia.dali", "sklearn", "matplotlib"} & set(done.stdout.split())
