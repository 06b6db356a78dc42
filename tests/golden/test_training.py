"""Losses of short runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden import subject
from tests.golden.conftest import Golden


def close(recorded: dict[str, Any], found: dict[str, Any]) -> bool:
    """SSE4.1, AVX2 and AVX-512 differ by up to 0.04 % and 0.7 %."""
    same = len(recorded["losses"]) == len(found["losses"])
    same = same and np.allclose(found["losses"], recorded["losses"], rtol=2e-3, atol=0)
    return same and bool(np.isclose(found["moved"], recorded["moved"], rtol=0.02, atol=0))


@pytest.mark.parametrize("name", ["a", "e", "l", "three"])
def test_losses_without_dropout(golden: Golden, drawn: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    words = drawn[1] if name == "three" else None
    golden("losses", name, subject.train(subject.settings(name, drawn[0], words, out=tmp_path)), close)


@pytest.mark.parametrize(
    "name", ["l", *(pytest.param(name, marks=pytest.mark.slow) for name in ("a", "e", "m", "three", "more"))]
)
def test_losses_with_dropout(golden: Golden, drawn: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    words = drawn[1] if name == "three" else None
    short = subject.settings(name, drawn[0], words, dropout=0.3, steps=8, out=tmp_path)
    golden("losses-dropout", name, subject.train(short), close)
