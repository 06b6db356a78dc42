"""The project stays small: budgets of lines, words and options. One is raised only for something new that users get."""

from __future__ import annotations

import subprocess

import pytest

from gdt.cli import COMMANDS, below_gdt
from gdt.common.commandline import options
from tests.conftest import ROOT

LINES = {
    "src": 504, "common": 546, "pipeline": 4069, "preprocess": 4694, "train": 3405, "eval": 4527, "benchmarks": 869,
    "tests": 16314,
}  # fmt: skip
"""Lines of Python by folder."""
WORDS, OPTIONS = 16_800, 118


def tracked(pattern: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return listed.splitlines()


@pytest.mark.parametrize("folder", LINES)
def test_folders_keep_their_budgets(folder: str) -> None:
    lines = sum(len((ROOT / name).read_text().splitlines()) for name in tracked(f"{folder}/*.py"))
    assert lines <= LINES[folder]


def test_pages_keep_their_budget() -> None:
    assert sum(len((ROOT / name).read_text().split()) for name in tracked("*.md")) <= WORDS


def test_commands_keep_their_budget() -> None:
    """An option that several commands share counts once."""
    assert len(set().union(*(options(below_gdt(command.settings)) for command in COMMANDS.values()))) <= OPTIONS
