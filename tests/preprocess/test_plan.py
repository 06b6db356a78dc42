"""The list of videos on disk, and the assignment of videos to shards."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.preprocess.datasets.listing import Missing, Video, Words
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.plan import PLAN, Plan, read_settings, read_shares
from gdt.preprocess.videos import Shares, VideoList

LANGUAGE = {"vocabulary": "", "stop_words": ""}


def video(name: str, root: Path) -> Video:
    return Video(name, root / f"{name}.mp4", "a class", "val")


def cut(root: Path, names: list[str], videos_per_shard: int = 4, megabytes: float = 1e6) -> dict[int, list[str]]:
    """Plan these videos, write the plan, and return the ids by shard number."""
    with VideoList((video(name, root) for name in names), root, root) as videos:
        plan = Plan(videos, root, videos_per_shard, megabytes)
        plan.write({"fps": 30})
        tasks = [plan.task(shard, Extraction(), LANGUAGE) for shard in range(len(plan))]
        return {number: [v.id for v in task.videos] for number, task in zip(plan.numbers, tasks, strict=True)}


def test_video_list_returns_every_field(tmp_path: Path) -> None:
    (tmp_path / "é.mp4").write_bytes(b"12345")
    items = [
        Video(
            "é 'x'", tmp_path / "é.mp4", "läbel", "unused", ("train", "test"), (1.5, 11.5), ((0.0, 4.1), (9.0, 13.0)),
            Words([3, 1], [0.25, 1.0], [1.0, 2.0]), (("cölour", "blue"), ("a/b", "")),
        ),
        Video("b", tmp_path / "deep" / "b.mp4", split="train"),
        Missing("c", "not there"),
    ]  # fmt: skip
    with VideoList(items, tmp_path, tmp_path) as videos:
        assert len(videos) == 2 and videos.missing == 1 and videos.source_bytes == 5
        assert videos.video(0) == (items[0], 5)
        assert videos.video(1) == (items[1], -1)
        assert [videos.number(name) for name in ("b", "é 'x'", "c", "")] == [1, 0, None, None]
        assert list(videos.missing_rows()) == ['{"id": "c", "path": "", "reason": "not there"}\n']
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_duplicate_ids_are_refused_with_their_files(tmp_path: Path) -> None:
    items = [Video("a", tmp_path / "1" / "a.mp4"), Video("b", tmp_path / "b.mp4"), Video("a", tmp_path / "2" / "a.mp4")]
    with pytest.raises(UserError) as error:
        VideoList(items, tmp_path, tmp_path)
    assert str(error.value) == (
        "two videos have the same id; rename them, or pass --duplicates first, which keeps the first of each and lists "
        f"the others in rejected.jsonl:\n  'a': {tmp_path}/1/a.mp4 and {tmp_path}/2/a.mp4"
    )
    many = [Video(f"{k % 13}", tmp_path / str(k) / "a.mp4") for k in range(39)]  # each id three times
    with pytest.raises(UserError, match="^26 videos have the ids of others; rename them, or pass --dup") as error:
        VideoList(many, tmp_path, tmp_path)
    lines = str(error.value).splitlines()[1:]
    assert lines[:20] == [f"  '{k % 13}': {tmp_path}/{k % 13}/a.mp4 and {tmp_path}/{k}/a.mp4" for k in range(13, 33)]
    assert lines[20:] == ["  and 6 more"]


def test_duplicates_first_keeps_the_first_of_each_id(tmp_path: Path) -> None:
    draw = random.Random(0)
    items: list[Video | Missing] = []
    for k in range(300):
        (tmp_path / f"{k}.mp4").write_bytes(bytes(k))
        items.append(Video(f"{draw.randrange(200)}", tmp_path / f"{k}.mp4", f"class {k}", "val"))
    items.insert(7, Missing("lost", "not there"))
    kept: dict[str, Video] = {}
    others = []
    for item in items:
        if isinstance(item, Video) and kept.setdefault(item.id, item) is not item:
            others.append({"id": item.id, "path": str(item.path),
                           "reason": f"it has the id of {kept[item.id].path}, which is kept"})  # fmt: skip
    assert len(others) > 50
    with VideoList(items, tmp_path, tmp_path, duplicates="first") as videos:
        sizes = [video.path.stat().st_size for video in kept.values()]
        assert [videos.video(k) for k in range(len(videos))] == list(zip(kept.values(), sizes, strict=True))
        assert all(videos.number(name) == k for k, name in enumerate(kept))
        assert videos.source_bytes == sum(sizes) and videos.missing == 1 + len(others)
        assert [json.loads(row) for row in videos.missing_rows()][1:] == others
        assert videos.annotations(list(kept))["label"] == [video.label for video in kept.values()]


def test_split_depends_on_the_id_only(tmp_path: Path) -> None:
    def splits(count: int, val: float, test: float) -> dict[str, str]:
        items = (Video(f"v{k}", tmp_path / f"{k}.mp4", split="val" if k % 10 == 0 else "") for k in range(count))
        with VideoList(items, tmp_path, tmp_path, Shares(val, test)) as videos:
            rows = [videos.video(k)[0] for k in range(count)]
            assert videos.annotations([row.id for row in rows])["split"] == [row.split for row in rows]
            return {row.id: row.split for row in rows}

    def moved(before: dict[str, str], after: dict[str, str]) -> set[tuple[str, str]]:
        return {(before[name], after[name]) for name in before if before[name] != after[name]}

    some, more = splits(2000, 0.1, 0.2), splits(3000, 0.1, 0.2)
    assert moved(some, more) == set()  # added videos do not move others
    assert all(some[f"v{k}"] == "val" for k in range(0, 2000, 10))  # a split of the source stays
    free = [some[f"v{k}"] for k in range(2000) if k % 10]
    assert abs(free.count("test") / 1800 - 0.2) < 0.04 and abs(free.count("val") / 1800 - 0.1) < 0.03
    assert moved(some, splits(2000, 0.1, 0.3)) == {("train", "test")}
    assert moved(some, splits(2000, 0.15, 0.2)) == {("train", "val")}
    assert moved(some, splits(2000, 0.0, 0.0)) == {("val", "train"), ("test", "train")}


def test_plan_records_the_shares(tmp_path: Path) -> None:
    def remembered(shares: Shares) -> Shares | None:
        with VideoList([video("a", tmp_path)], tmp_path, tmp_path, shares) as videos:
            Plan(videos, tmp_path, 4, 1e6).write(LANGUAGE)
        assert read_settings(tmp_path) == LANGUAGE  # without the shares, which do not change shards
        return read_shares(tmp_path)

    assert read_shares(tmp_path) is None
    for shares in (Shares(), Shares(0.25, 1 / 3), Shares(0.0, 0.1)):
        assert remembered(shares) == shares


def test_labels_by_id(tmp_path: Path) -> None:
    items = [
        Video("b", tmp_path / "b.mp4", "dogs", "test", ("test", "train"), columns=(("a/b", "1"), (".", "x"))),
        Video("a", tmp_path / "a.mp4", "çats"), Video("c", tmp_path / "c.mp4", columns=(("a/b", ""), ("100%", "y"))),
    ]  # fmt: skip
    with VideoList(items, tmp_path, tmp_path) as videos:
        annotations = videos.annotations(["c", "a", "b"])
        with pytest.raises(KeyError, match="d"):
            videos.annotations(["a", "d"])
    assert annotations == {
        "label": ["", "çats", "dogs"], "split": ["train", "train", "test"], "folds": ["", "", "test,train"],
        "a/b": ["", "", "1"], ".": ["", "", "x"], "100%": ["y", "", ""],
    }  # fmt: skip


def test_shards_are_limited_in_videos_and_megabytes(tmp_path: Path) -> None:
    assert cut(tmp_path, list("abcdefghij")) == {0: list("abcd"), 1: list("efgh"), 2: list("ij")}
    (tmp_path / PLAN).unlink()
    for name in "abcdefghij":
        (tmp_path / f"{name}.mp4").write_bytes(b"x" * (5000 if name == "e" else 1000))
    assert list(cut(tmp_path, list("abcdefghij"), megabytes=0.0035).values()) == [
        list("abc"), list("d"), list("e"), list("fgh"), list("ij"),
    ]  # fmt: skip


def test_random_lists_keep_every_video_once_in_its_shard(tmp_path: Path) -> None:
    draw = random.Random(0)
    names = [f"video {k}" for k in range(60)]
    before: dict[int, list[str]] = {}
    for _ in range(40):
        present = sorted(draw.sample(names, draw.randint(1, 60)))
        now = cut(tmp_path, present)
        assert sorted(name for ids in now.values() for name in ids) == present
        assert all(1 <= len(ids) <= 4 for ids in now.values())
        for number, ids in before.items():
            if kept := [name for name in ids if name in present]:
                assert now[number] == kept  # videos do not move
        assert cut(tmp_path, present) == now
        before = now


def test_content_hash_depends_on_what_determines_the_bytes(tmp_path: Path) -> None:
    def content(one: Video, extraction: Extraction = Extraction(), **language: str) -> str:
        with VideoList([one], tmp_path, tmp_path) as videos:
            return Plan(videos, tmp_path, 4, 1e6).task(0, extraction, LANGUAGE | language).content

    base = video("a", tmp_path)
    same = content(base)
    assert content(base) == same
    assert content(replace(base, path=tmp_path / "moved" / "a.mp4")) == same  # a folder may be rearranged
    for change in ({"label": "other"}, {"split": "test"}, {"columns": (("colour", "blue"),)}):
        assert content(replace(base, **change)) == same  # labels are in the index
    official = content(replace(base, folds=("train",)))
    assert content(replace(base, folds=("test",))) == official
    changes = [{"segment": (0.0, 1.0)}, {"stretches": ((0.0, 1.0),)}, {"words": Words([1], [0.0], [1.0])}]
    contents = [content(replace(base, **change)) for change in changes]
    contents += [content(base, Extraction(fps=25)), content(base, vocabulary="another")]
    base.path.write_bytes(b"x")
    contents += [content(base), official]  # official folds keep videos shorter than a second
    assert len({same, *contents}) == 8


def test_memory_per_video_is_small(tmp_path: Path) -> None:
    def many(count: int) -> Iterator[Video]:
        for k in range(count):
            yield Video(f"{k:011d}_000000_000010", tmp_path / f"class {k % 400}" / f"{k}.mp4", f"class {k % 400}")

    tracemalloc.start()
    with VideoList(many(20_000), tmp_path, tmp_path) as videos:
        plan = Plan(videos, tmp_path, 128, 256)
        assert sum(plan.count(shard) for shard in plan.pending(Extraction(), LANGUAGE)) == 20_000
        held = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(True, f"*{name}*") for name in ("plan", "videos", "numpy")]
        )
    tracemalloc.stop()
    assert 8 < sum(trace.size for trace in held.statistics("filename")) / 20_000 < 80  # bytes; a Video takes 500


def test_every_task_has_its_own_shard(tmp_path: Path) -> None:
    with VideoList((video(f"{k}", tmp_path) for k in range(50)), tmp_path, tmp_path) as videos:
        plan = Plan(videos, tmp_path, 7, 1e6)
        tasks = [plan.task(shard, Extraction(), LANGUAGE) for shard in plan.pending(Extraction(), LANGUAGE)]
    assert len({task.path for task in tasks}) == 8 == len(plan)
    assert np.array_equal([len(task.videos) for task in tasks], [plan.count(shard) for shard in range(8)])
    assert "shard-000000.h5 (0 to 6)" in str(tasks[0])
