"""Frames, log-mel, words and labels as read back from shards."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden import subject
from tests.golden.conftest import Golden, alike

CLOSE = alike(atol=0.5)
"""Versions of ffmpeg and processors differ by less than a grey level on average."""


@pytest.mark.parametrize("settings", [{"identity": 0.3, "actions_per_video": 3}, {"seed": 1}])
def test_generated_videos(golden: Golden, tmp_path: Path, settings: dict[str, Any]) -> None:
    found = subject.stored(subject.generated(tmp_path, **settings))
    golden("stored", f"generated, seed {settings.get('seed', 0)}", found, CLOSE)


@pytest.mark.slow
def test_real_videos_with_captions(golden: Golden, real: Path, tmp_path: Path) -> None:
    (tmp_path / "videos" / "grid").mkdir(parents=True)
    grid = sorted((real / "grid").glob("*.mpg"))[:6]
    for path in (*grid, *(real / "clips").iterdir()):
        (tmp_path / "videos" / ("grid" if path in grid else "") / path.name).symlink_to(path)
    said = json.loads((real / "captions" / "grid_captions.json").read_text())
    captions = {f"grid/{path.stem}": said[path.stem] for path in grid}
    golden("stored", "real", subject.stored(subject.captioned(tmp_path, captions)), CLOSE)
