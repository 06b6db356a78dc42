"""Plans: equal on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import subject
from tests.golden.conftest import Golden


@pytest.mark.parametrize("name", [*subject.NAMES, "more"])
def test_columns_leaves_and_draws(golden: Golden, drawn: tuple[Path, Path], name: str) -> None:
    golden("plans", name, subject.planned(name, drawn[0]))
