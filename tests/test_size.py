"""The project stays small: files, functions, words and options have limits; one is raised only for what users get."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_cli import all_options

PRODUCT = ("common", "pipeline", "preprocess", "train", "eval", "src")
LINES = 21_640
"""Lines of Python of the product; a data set or a protocol takes some 60."""
TESTS = 16_000
"""Lines of Python of the tests: one test per promise."""
FILE, FUNCTION, TEST_FILE = 350, 60, 600
"""Lines of a file and of a function of the product, and of a file of tests or benchmarks."""
WORDS, OPTIONS = 16_500, 120


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines()]


def product() -> list[Path]:
    """Files of the product; the folders in src are links to the others."""
    return tracked(*(f"{folder}/*.py" for folder in PRODUCT))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Names and lines of the functions of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_the_product_keeps_its_size() -> None:
    assert sum(map(lines, product())) <= LINES


def test_the_tests_keep_their_size() -> None:
    assert sum(map(lines, tracked("tests/*.py"))) <= TESTS


@pytest.mark.parametrize(("paths", "most"), [(product(), FILE), (tracked("tests/*.py", "benchmarks/*.py"), TEST_FILE)])
def test_no_file_is_too_long(paths: list[Path], most: int) -> None:
    assert not [(path.name, lines(path)) for path in paths if lines(path) > most]


def test_no_function_is_too_long() -> None:
    found = [(path.name, *each) for path in product() for each in functions(path)]
    assert not [each for each in found if each[2] > FUNCTION]


def test_pages_keep_their_budget() -> None:
    assert sum(len(path.read_text().split()) for path in tracked("*.md")) <= WORDS


def test_commands_keep_their_budget() -> None:
    """An option that several commands share counts once."""
    assert len(all_options()) <= OPTIONS
