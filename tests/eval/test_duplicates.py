"""Groups of nearly equal features against a loop over all pairs, and the command."""

import csv
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.eval import duplicates
from gdt.eval.features import VERSION, Features, write
from gdt.eval.settings import Duplicates
from gdt.pipeline.shards.index import Index

ABOVE = 0.98


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
