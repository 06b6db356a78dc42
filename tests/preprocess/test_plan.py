"""The list of videos on disk, and which video goes into which shard."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import UserError
from preprocess.datasets.listing import Missing, Video, Words
from preprocess.ffmpeg import Extraction
from preprocess.plan import PLAN, Plan, VideoList

LANGUAGE = {"vocabulary": "", "stop_words": ""}


def video(name: str, root: Path) -> Video:
    return Video(name, root / f"{name}.mp4", "a class", "val")


def cut(root: Path, names: list[str], videos_per_shard: int = 4, megabytes: float = 1e6) -> dict[int, list[str]]:
    """Plan these videos, write the plan, and say which number has which ids."""
    with VideoList((video(name, root) for name in names), root, root) as videos:
        plan = Plan(videos, root, videos_per_shard, megabytes)
        plan.write({"fps": 30})
        tasks = [plan.task(shard, Extraction(), LANGUAGE) for shard in range(len(plan))]
        return {number: [v.id for v in task.videos] for number, task in zip(plan.numbers, tasks, strict=True)}


def test_a_video_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "é.mp4").write_bytes(b"12345")
    items = [
        Video(
            "é 'x'", tmp_path / "é.mp4", "läbel", "unused", ("train", "test"), (1.5, 11.5), ((0.0, 4.1), (9.0, 13.0)),
            Words([3, 1], [0.25, 1.0], [1.0, 2.0]),
        ),
        Video("b", tmp_path / "deep" / "b.mp4"),
        Missing("c", "not there"),
    ]  # fmt: skip
    with VideoList(items, tmp_path, tmp_path) as videos:
        assert len(videos) == 2 and videos.missing == 1 and videos.source_bytes == 5
        assert videos.video(0) == (items[0], 5)
        assert videos.video(1) == (items[1], -1)
        assert [videos.place(name) for name in ("b", "é 'x'", "c", "")] == [1, 0, None, None]
        assert list(videos.missing_rows()) == ['{"id": "c", "path": "", "reason": "not there"}\n']
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_id_that_occurs_twice_is_refused_with_both_files(tmp_path: Path) -> None:
    items = [Video("a", tmp_path / "1" / "a.mp4"), Video("b", tmp_path / "b.mp4"), Video("a", tmp_path / "2" / "a.mp4")]
    with pytest.raises(UserError, match=r"two videos have the id 'a': .*/1/a.mp4 and .*/2/a.mp4; rename one of them"):
        VideoList(items, tmp_path, tmp_path)


def test_shards_are_full_by_number_and_by_bytes(tmp_path: Path) -> None:
    assert cut(tmp_path, list("abcdefghij")) == {0: list("abcd"), 1: list("efgh"), 2: list("ij")}
    (tmp_path / PLAN).unlink()
    for name in "abcdefghij":
        (tmp_path / f"{name}.mp4").write_bytes(b"x" * (5000 if name == "e" else 1000))
    assert list(cut(tmp_path, list("abcdefghij"), megabytes=0.0035).values()) == [
        list("abc"), list("d"), list("e"), list("fgh"), list("ij"),
    ]  # fmt: skip


def test_whatever_happens_to_the_list_nothing_is_lost_or_doubled_and_nothing_moves(tmp_path: Path) -> None:
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
                assert now[number] == kept  # what stays, stays where it is
        assert cut(tmp_path, present) == now
        before = now


def test_the_content_says_whether_a_shard_has_to_be_made_again(tmp_path: Path) -> None:
    def content(one: Video, extraction: Extraction = Extraction(), **language: str) -> str:
        with VideoList([one], tmp_path, tmp_path) as videos:
            return Plan(videos, tmp_path, 4, 1e6).task(0, extraction, LANGUAGE | language).content

    base = video("a", tmp_path)
    same = content(base)
    assert content(base) == same
    assert content(replace(base, path=tmp_path / "moved" / "a.mp4")) == same  # a folder may be rearranged
    changes = [
        {"label": "other"}, {"split": "test"}, {"folds": ("train",)}, {"segment": (0.0, 1.0)},
        {"stretches": ((0.0, 1.0),)}, {"words": Words([1], [0.0], [1.0])},
    ]  # fmt: skip
    contents = [content(replace(base, **change)) for change in changes]
    contents += [content(base, Extraction(fps=25)), content(base, vocabulary="another")]
    base.path.write_bytes(b"x")
    contents.append(content(base))
    assert len({same, *contents}) == 10


def test_a_damaged_plan_where_there_are_no_shards_is_as_none(tmp_path: Path) -> None:
    (tmp_path / PLAN).write_text('{"settings": {}}\n{"shard": 7, "vid')
    assert cut(tmp_path, ["a"]) == {0: ["a"]}


def test_memory_hardly_grows_with_the_list(tmp_path: Path) -> None:
    def many(count: int) -> Iterator[Video]:
        for k in range(count):
            yield Video(f"{k:011d}_000000_000010", tmp_path / f"class {k % 400}" / f"{k}.mp4", f"class {k % 400}")

    tracemalloc.start()
    with VideoList(many(20_000), tmp_path, tmp_path) as videos:
        plan = Plan(videos, tmp_path, 128, 256)
        assert sum(plan.count(shard) for shard in plan.pending(Extraction(), LANGUAGE)) == 20_000
        held = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(True, f"*{name}*") for name in ("plan", "numpy")]
        )
    tracemalloc.stop()
    assert 20 < sum(trace.size for trace in held.statistics("filename")) / 20_000 < 80  # bytes; the video takes 500


def test_every_task_has_its_own_shard(tmp_path: Path) -> None:
    with VideoList((video(f"{k}", tmp_path) for k in range(50)), tmp_path, tmp_path) as videos:
        plan = Plan(videos, tmp_path, 7, 1e6)
        tasks = [plan.task(shard, Extraction(), LANGUAGE) for shard in plan.pending(Extraction(), LANGUAGE)]
    assert len({task.path for task in tasks}) == 8 == len(plan)
    assert np.array_equal([len(task.videos) for task in tasks], [plan.count(shard) for shard in range(8)])
    assert "shard-000000.h5 (0 to 6)" in str(tasks[0])
