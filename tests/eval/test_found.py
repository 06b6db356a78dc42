"""Videos that were found, as a page with pictures and players, and groups of nearly equal ones."""

import csv
import itertools
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.eval import duplicates
from gdt.eval.features import VERSION, Features, read, write
from gdt.eval.nearest import nearest
from gdt.eval.page.found import Shown, write_found
from gdt.eval.settings import Duplicates, Nearest
from gdt.pipeline.shards.index import Index
from tests.conftest import Run

ABOVE = 0.98


def test_the_page_shows_and_plays_what_there_is(synthetic: Path, tmp_path: Path) -> None:
    """A video that browsers play, a sound, a video that they do not, and one that is not there."""
    (tmp_path / "a folder").mkdir()
    files = [tmp_path / "a folder" / name for name in ("one #1.webm", "two.wav", "three.avi")]
    for path, options in zip(files, ([], ["-vn"], []), strict=True):
        command = ["ffmpeg", "-loglevel", "error", "-i", sorted(synthetic.rglob("*.mp4"))[0], *options, path]
        subprocess.run(command, check=True)
    first, second, third = map(str, files)
    shown = [Shown(first, None, "query"), Shown(first, 1.5, "0.9"), Shown(second, 1, "0.8"), Shown(third, None, "0.7")]
    out = tmp_path / "found.html"
    write_found(out, "Found", [shown[:1], [*shown[1:], Shown("gone.mp4", None, "<0.6>")]], None)
    text = out.read_text()
    images = re.findall(r'<img src="data:image/(\w+);base64', text)
    assert images == ["webp", "webp", "png", "webp"]
    one, two = (quote(os.path.relpath(path, tmp_path)) for path in files[:2])
    assert "%20" in one and "%23" in one
    assert re.findall(r'<(?:video|audio) src="([^"]*)" controls preload="none"', text) == [
        one, f"{one}#t=1.5", f"{two}#t=1",
    ]  # fmt: skip
    assert "&lt;0.6&gt;" in text and len(text) < 5 * 150_000


def test_videos_of_shards_are_shown_from_them(
    command: Run, checkpoint: Path, synthetic: Path, shards: Path, tmp_path: Path
) -> None:
    """Also from another folder than that in which they and the checkpoint were named."""
    shutil.copytree(shards, tmp_path / "mine")
    shutil.copy(checkpoint, tmp_path / "x.pt")
    assert command("embed", "--ckpt", "x.pt", "--shards", "mine", "--every", 1, "--clips", 10).returncode == 0
    first = str(read(tmp_path / "features.h5").id[0])
    (tmp_path / "elsewhere").mkdir()
    out = tmp_path / "elsewhere" / "near.html"
    nearest(Nearest(f"{first}#t=1", tmp_path / "features.h5", k=3, out=out))
    text = out.read_text()
    assert text.count("data:image/webp") == 4
    played, *_ = re.findall(r'<video src="(.*?)#t=1" controls', text)
    assert (out.parent / unquote(played)).samefile(next(synthetic.rglob(f"{first}.mp4")))


def partners(features: Features) -> list[dict[int, float]]:
    """Of each row, those that are nearer in every modality that both have, and their cosines: a loop over all pairs."""
    found: list[dict[int, float]] = [{} for _ in features.id]
    for a, b in itertools.permutations(range(len(features.id)), 2):
        cosines = []
        for values in features.features.values():
            x, y = values[a].astype(np.float64), values[b].astype(np.float64)
            if np.isfinite(x).all() and np.isfinite(y).all():
                cosines.append(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
        if cosines and min(cosines) > ABOVE and features.id[a] != features.id[b]:
            found[a][b] = min(cosines)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_those_of_a_loop_over_all_pairs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several blocks, several moments of a video, missing modalities, chains."""
    monkeypatch.setattr(duplicates, "_BLOCK", 50)
    rng = np.random.default_rng(seed)
    n = 180
    scene = rng.integers(0, 60, n)
    values = {}
    for name in ("video", "audio"):
        values[name] = (rng.normal(size=(60, 3))[scene] + 0.1 * rng.normal(size=(n, 3))).astype(np.float32)
        values[name][rng.random(n) < 0.2] = np.nan
    features = Features(np.array([f"{k}.mp4" for k in rng.integers(0, 120, n)], object), values, {})
    group, cosine = duplicates.groups(features, ABOVE)
    expected = partners(features)
    for row in range(n):
        reached, new = {row}, {row}
        while new:
            new = {other for each in new for other in expected[each]} - reached
            reached |= new
        same = {*np.flatnonzero(group == group[row])} if expected[row] else {row}
        assert same == reached
        assert (group[row] == -1) == (not expected[row])
        assert cosine[row] == pytest.approx(max(expected[row].values(), default=-np.inf), abs=1e-6)
    assert group.max() > 2


def test_groups_across_splits_come_first(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(len(index.id), 64)).astype(np.float32)
    train, test = (np.flatnonzero(index.split == split) for split in ("train", "test"))
    values[train[1]] = values[train[0]]
    values[test[0]] = values[train[2]]
    metadata = {"format": VERSION, "checkpoint": "x.pt", "shards": str(index.folder)}
    settings = Duplicates()
    write(settings.features, Features(index.id, {"video": values}, metadata))
    said = duplicates.duplicates(settings).splitlines()
    assert said[0] == f"2 groups of 4 of {len(index.id)} videos, nearer than 0.98: duplicates.csv"
    assert said[1] == "1 group crosses splits"
    assert said[3:5] == [f"  1.000  {index.id[k]}  {index.split[k]}" for k in sorted((train[2], test[0]))]
    assert Path("duplicates.html").read_text().count("data:image/webp") == 4
    with settings.out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [index.id[k] for k in (*sorted((train[2], test[0])), train[0], train[1])]
    assert [row["group"] for row in rows] == ["0", "0", "1", "1"]
    with pytest.raises(UserError, match="duplicates.csv already exists"):
        duplicates.duplicates(settings)
    settings.out.unlink()
    with pytest.raises(UserError, match="duplicates.html already exists"):
        duplicates.duplicates(settings)
    with pytest.raises(UserError, match="must end in .csv"):
        replace(settings, out=settings.features)
    write(settings.features, Features(index.id, {"video": np.ones_like(values)}, metadata))
    with pytest.raises(UserError, match="nearly the same"):
        duplicates.duplicates(replace(settings, overwrite=True))
