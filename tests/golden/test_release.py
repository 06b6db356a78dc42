"""Embeddings by weights in the form of the published release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden import subject
from tests.golden.conftest import Golden


def close(recorded: dict[str, Any], found: dict[str, Any]) -> bool:
    one, other = recorded["embeddings"], found["embeddings"]
    same = recorded["statistics"] == found["statistics"] and one.keys() == other.keys()
    return same and all(np.allclose(one[name], other[name], rtol=0, atol=1e-5) for name in one)


@pytest.mark.parametrize("name", ["gdt_K400.pth", "gdt_HT100M.pth"])
def test_embeddings_of_the_release(golden: Golden, tmp_path: Path, name: str) -> None:
    golden("release", name, subject.released(tmp_path / name, text="HT100M" in name), close)
