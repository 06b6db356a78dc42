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
OTHERS = {"video", "augmentation", "cross-modal"}  # of a modality and a column, a group of settings and a protocol, too


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_factors_and_presets_decide_nothing(path: Path) -> None:
    """Names of presets may be defaults of settings only."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not strings & TRANSFORMATIONS.keys() - OTHERS
    subscripts = [
        node.slice.value
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if getattr(node.value, "attr", "") == "columns"
    ]
    assert {*subscripts} <= {"leaf"}
    compared = [
        side.value
        for node in nodes if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators) if isinstance(side, ast.Constant)
    ]  # fmt: skip
    assert not {*compared} & PRESETS.keys() - OTHERS - ({"l"} if path.name == "settings.py" else set())
