"""`gdt embed` goes on where it was stopped, adds videos to its file, and replaces nothing without being asked."""

import errno
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.common.files import locked
from gdt.eval.embed import embed
from gdt.eval.features import read
from gdt.eval.parts import Parts
from gdt.eval.settings import Embed
from gdt.preprocess import named
from tests.test_kills import EMBEDDING, kill, run_command


@pytest.fixture
def videos(synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight videos and a broken one, in groups of two."""
    monkeypatch.setattr(named, "_GROUP", 2)
    folder = tmp_path / "mine"
    folder.mkdir()
    for path in sorted(synthetic.rglob("*.mp4"))[:8]:
        shutil.copy(path, folder)
    (folder / "broken.mp4").write_bytes(b"nonsense")
    return folder


@pytest.mark.parametrize("of", ["files", "shards"])
def test_a_stopped_run_goes_on_where_it_was(
    checkpoint: Path, videos: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    source: dict[str, Any] = {"shards": shards} if of == "shards" else {"source": (videos,), "workers": 1}
    asked = Embed(str(checkpoint), clips=2, out=tmp_path / "a.h5", **source)
    said = embed(asked)
    kept: list[str] = []
    keep = Parts.keep

    def counted(self: Parts, name: str, *arguments: Any) -> None:
        if len(kept) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", "rows")
        kept.append(name)
        keep(self, name, *arguments)

    other = replace(asked, out=tmp_path / "b.h5")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Parts, "keep", counted)
        embed(other)
    with pytest.raises(UserError, match="b.h5.parts has features of other weights or settings: clips was 2, now 3; "):
        embed(replace(other, clips=3))
    before = kept.copy()
    kept[:] = []
    monkeypatch.setattr(Parts, "keep", lambda self, name, *rest: (kept.append(name), keep(self, name, *rest)))
    assert embed(other) == said.replace("a.h5", "b.h5")
    assert not set(before) & set(kept) and len(kept) == (1 if of == "shards" else 3)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    assert not [*tmp_path.glob("*.parts")]


def test_videos_are_added_and_gone_ones_left_out_if_asked(checkpoint: Path, videos: Path, tmp_path: Path) -> None:
    added = videos / "a.mp4"  # before the others
    first = next(path for path in sorted(videos.glob("*.mp4")) if path.stem != "broken")
    asked = Embed(str(checkpoint), (videos, first), clips=2, out=tmp_path / "f.npz", workers=1)
    embed(asked)
    before = read(asked.out)
    assert len(before.id) == 8  # the first once
    shutil.copy(first, added)
    assert "\n1 video new or changed; the others had their rows\n" in embed(asked)
    after = read(asked.out)
    assert after.id.tolist() == [str(added), *before.id]
    assert np.array_equal(after.features["video"][1:], before.features["video"])
    shutil.copy(next(path for path in after.id[::-1] if path != str(first)), added)
    os.utime(added, (time.time() + 9,) * 2)
    assert "\n1 video new or changed; the others had their rows\n" in embed(asked)
    assert not np.array_equal(read(asked.out).features["video"][0], after.features["video"][0])
    os.utime(added)
    for change, what in (({"clips": 3}, "clips was 2, now 3"), ({"kind": "features"}, "kind was embeddings, now fea")):
        with pytest.raises(UserError, match=f"f.npz has features of other weights or settings: {what}"):
            embed(replace(asked, **change))
    added.unlink()
    with pytest.raises(UserError, match=rf"f.npz has rows of 1 video no longer there \(first: {added}\)"):
        embed(asked)
    embed(replace(asked, drop_missing=True))
    assert read(asked.out).id.tolist() == before.id.tolist()
    embed(replace(asked, clips=1, overwrite=True))
    assert read(asked.out).metadata["clips"] == "1"


def test_of_two_runs_that_write_one_file_the_second_is_refused(checkpoint: Path, videos: Path, tmp_path: Path) -> None:
    with locked(tmp_path / "f.h5.parts"), pytest.raises(UserError, match="another run is writing to .*f.h5.parts; "):
        embed(Embed(str(checkpoint), (videos,), out=tmp_path / "f.h5"))
    assert [path.name for path in (tmp_path / "f.h5.parts").iterdir()] == [".lock"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("workers", "moments"), [
    pytest.param(2, EMBEDDING[4:5], id="one"),
    pytest.param(1, EMBEDDING, id="many", marks=pytest.mark.slow),
])  # fmt: skip
def test_kills_change_nothing(
    checkpoint: Path, synthetic: Path, tmp_path: Path, workers: int, moments: list[str]
) -> None:
    (tmp_path / "videos").mkdir()
    for path in sorted(synthetic.rglob("*.mp4")):
        shutil.copy(path, tmp_path / "videos")
    command = ["embed", "--ckpt", checkpoint, "--source", tmp_path / "videos", "--clips", 2]
    assert run_command([*command, "--out", "whole.h5"], tmp_path) == 0
    for moment in moments:
        kill([*command, "--workers", workers, "--out", "f.h5"], tmp_path, moment)
        assert (tmp_path / "f.h5.parts").is_dir() and not (tmp_path / "f.h5").exists()
    assert run_command([*command, "--out", "f.h5"], tmp_path) == 0
    assert (tmp_path / "f.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert not (tmp_path / "f.h5.parts").exists()
