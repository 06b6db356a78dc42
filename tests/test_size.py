"""The project stays small: budgets of lines, words and options. One is raised only for something new that users get."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import Any, get_args, get_type_hints

import pytest
import tyro

from gdt.cli import COMMANDS, below_gdt
from tests.conftest import ROOT

LINES = {
    "src": 504, "common": 507, "pipeline": 3876, "preprocess": 4321, "train": 3099, "eval": 4454, "benchmarks": 869,
    "tests": 14302,
}  # fmt: skip
"""Lines of Python by folder."""
WORDS, OPTIONS = 16_300, 119


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


def options(kind: Any, prefix: str = "") -> set[str]:
    found: set[str] = set()
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        marks = getattr(hints[field.name], "__metadata__", ())
        bare = get_args(hints[field.name])[0] if marks else hints[field.name]
        if dataclasses.is_dataclass(bare):
            flat = any(getattr(mark, "name", None) == "" for mark in marks)
            found |= options(bare, prefix if flat else f"{prefix}{field.name}.")
        elif tyro.conf.Suppress not in marks:
            found.add(prefix + field.name)
    return found
