"""Code that executes plans has no branches on names of factors or presets."""

import ast
from pathlib import Path

import pytest

from gdt.pipeline.notation import TRANSFORMATIONS
from gdt.pipeline.presets import PRESETS
from tests.conftest import ROOT

FILES = [
    *(ROOT / "pipeline" / name for name in ("loader.py", "graphs.py", "colour.py", "leaves.py", "tree.py")),
    *(ROOT / "pipeline" / "sources").glob("*.py"),
    *(ROOT / "train").glob("*.py"), *(ROOT / "eval").glob("*.py"), *(ROOT / "eval" / "page").glob("*.py"),
    *(ROOT / "train" / "models").glob("*.py"),
]  # fmt: skip
MODALITY = "video"  # the name of a modality, and of a column of the index, too
SETTINGS = {"augmentation"}  # the name of a group of settings, too
PROTOCOLS = {"cross-modal"}  # the name of a protocol of evaluation, too


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_factor_is_looked_up_by_name(path: Path) -> None:
    names = TRANSFORMATIONS.keys() - {MODALITY} - SETTINGS
    tree = ast.parse(path.read_text())
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert not names & set(strings)
    subscripts = [
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if getattr(node.value, "attr", "") == "columns"
    ]
    assert set(subscripts) <= {"leaf"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_preset_decides_anything(path: Path) -> None:
    """Names of presets may be defaults of settings only."""
    tree = ast.parse(path.read_text())
    compared = [
        side.value
        for node in ast.walk(tree) if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators) if isinstance(side, ast.Constant)
    ]  # fmt: skip
    assert not (PRESETS.keys() - PROTOCOLS) & set(compared) - ({"l"} if path.name == "settings.py" else set())
