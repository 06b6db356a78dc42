"""Frames, log-mel, words and labels as read back from shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden import subject
from tests.golden.conftest import Golden


def similar(recorded: dict[str, Any], found: dict[str, Any]) -> bool:
    """With other versions of ffmpeg, or other processors, values may differ slightly."""
    if isinstance(recorded, list):
        return recorded == found
    exact = ("shapes", "labels", "words")
    return all(recorded[name] == found[name] for name in exact) and np.allclose(
        recorded["means"], found["means"], rtol=0, atol=0.5
    )


@pytest.mark.parametrize("settings", [{}, {"identity": 0.0, "actions_per_video": 1, "seed": 1}])
def test_generated_videos(golden: Golden, tmp_path: Path, settings: dict[str, Any]) -> None:
    for name, found in subject.stored(subject.generated(tmp_path, **settings)).items():
        golden("stored-generated", f"seed{settings.get('seed', 0)} {name}", found, similar)


def test_real_videos_with_captions(golden: Golden, real: Path, tmp_path: Path) -> None:
    (tmp_path / "videos" / "grid").mkdir(parents=True)
    grid = sorted((real / "grid").glob("*.mpg"))[:6]
    for path in (*grid, *(real / "clips").iterdir()):
        (tmp_path / "videos" / ("grid" if path in grid else "") / path.name).symlink_to(path)
    said = json.loads((real / "captions" / "grid_captions.json").read_text())
    shards = subject.captioned(tmp_path, tmp_path / "videos", {f"grid/{path.stem}": said[path.stem] for path in grid})
    for name, found in subject.stored(shards).items():
        golden("stored-real", name, found, similar)
