"""Nearest neighbours, their page with pictures and players, and groups of nearly equal videos."""

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
from gdt.eval.nearest import address, find_query, most_similar, nearest
from gdt.eval.page.found import Shown, write_found
from gdt.eval.settings import Duplicates, Nearest
from gdt.pipeline.shards.index import Index
from tests.conftest import Run

ABOVE = 0.98


def test_a_sound_is_a_query_by_audio_and_neighbours_are_other_videos() -> None:
    made = {"kind": "embeddings", "weights": "w"}
    alone = Features(np.array(["one.mp4"]), {"video": np.ones((1, 4))}, made)
    with pytest.raises(UserError, match=r"one\.mp4 is the only video"):
        most_similar(alone, find_query(alone, "one.mp4", "video"), "video", "video", 5)
    rows = Features(np.array(["a", "b"]), {"video": np.eye(2), "audio": np.eye(2)}, made)
    sound = Features(np.array(["c"]), {"audio": np.eye(2)[:1]}, made)
    with pytest.raises(UserError, match="there are no video features of these videos; set --by audio"):
        most_similar(rows, find_query(rows, sound, "video"), "video", "video", 5)
    silent = replace(rows, features=rows.features | {"audio": np.array([[1.0, 0.0], [np.nan, np.nan]])})
    with pytest.raises(UserError, match="the audio of every other video is missing, .*; set --among video"):
        most_similar(silent, find_query(silent, "a", "audio"), "audio", "audio", 5)
    assert [*most_similar(rows, find_query(rows, sound, "audio"), "audio", "video", 5).rows] == [0, 1]


def test_moments_are_found_apart_and_asked_by_their_time() -> None:
    """A row per second of two videos; clips of 1.5 s."""
    made = {"kind": "embeddings", "weights": "w", "every": "1.0", "seconds": "1.5"}
    ids = np.repeat(["a.mp4", "b.mp4"], 4)
    angle = np.array([0.0, 0.1, 0.3, 0.9, 0.05, 0.2, 1.2, 1.5])
    values = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    rows = Features(ids, {"video": values}, made, start=np.tile(np.arange(4.0), 2))

    def found(text: str) -> list[str]:
        query = find_query(rows, text, "video")
        return [address(rows, row) for row in most_similar(rows, query, "video", "video", 3).rows]

    # moments that overlap the query are left out, and those that overlap a more similar one
    assert found("a.mp4#t=0.2") == ["b.mp4#t=0", "a.mp4#t=2", "b.mp4#t=2"]
    assert found("a.mp4#t=1.9,4") == ["b.mp4#t=1", "a.mp4#t=0", "b.mp4#t=3"]
    assert found("a.mp4") == ["b.mp4#t=0", "b.mp4#t=2"]  # the best of its moments counts
    with pytest.raises(UserError, match="ends before it begins"):
        found("a.mp4#t=3,2")
    with pytest.raises(UserError, match="a.mp4 has nothing at 5.5 s; its last moment is #t=3"):
        found("a.mp4#t=5.5")


def test_a_sound_is_found_in_a_long_video(checkpoint: Path, synthetic: Path, tmp_path: Path, command: Run) -> None:
    """The moment, not the mean; the sound alone, with silence after it, as a query by sound among sounds."""
    videos = sorted((synthetic / "test").rglob("*.mp4"))[:6]
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"file '{path}'\n" for path in videos))
    long, sound = tmp_path / "long.mp4", tmp_path / "sound.wav"
    ffmpeg = ("ffmpeg", "-loglevel", "error", "-y")
    joined = ["-f", "concat", "-safe", "0", "-i", listed, "-c:v", "copy", "-c:a", "aac", long]
    subprocess.run([*ffmpeg, *joined], check=True)
    # of the fourth video, from 1 s on
    subprocess.run([*ffmpeg, "-ss", "10", "-t", "1.2", "-i", long, "-af", "apad=pad_dur=6", sound], check=True)
    assert command("embed", "--ckpt", checkpoint, "--source", long, "--every", 0.5).returncode == 0
    done = command("nearest", "--query", sound, "--by", "audio", "--k", 2, check=True)
    first = done.stdout.splitlines()[2].split()
    assert first[1:] == [f"{long}#t=10", "0:10.0"] and float(first[0]) > 0.99
    assert "moments of the query are silent, and do not count" in done.stdout
    again = command("nearest", "--query", f"{long}#t=10", "--by", "audio", "--k", 2)
    assert again.returncode == 0 and f"{long}#t=10 " not in again.stdout
    part = command("nearest", "--query", f"{sound}#t=0,1", "--by", "audio", "--k", 1)
    assert part.stdout.splitlines()[2].split()[1] == f"{long}#t=10"
    beyond = command("nearest", "--query", f"{sound}#t=10", "--by", "audio")
    assert beyond.returncode == 2 and f"the query {sound}#t=10 cannot be embedded: " in beyond.stderr


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
    players = re.findall(r'<(?:video|audio) src="([^"]*)" controls preload="none"', text)
    assert players == [one, f"{one}#t=1.5", f"{two}#t=1"]
    assert "&lt;0.6&gt;" in text and len(text) < 5 * 150_000


def test_shards_show_videos(command: Run, checkpoint: Path, synthetic: Path, shards: Path, tmp_path: Path) -> None:
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
