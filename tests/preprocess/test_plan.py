"""The list of videos, and the assignment of videos to shards."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from gdt.common.folders import Folder
from gdt.preprocess.datasets.listing import SourceFiles
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.plan import Listed, Plan, ShardTask, Shares, assign, collect
from gdt.preprocess.videos import ListedVideo, TimedWords

HERE = Path("/videos")


def cut(root: Path, names: list[str], shard_bytes: float = 1e6) -> dict[int, list[str]]:
    """Plan these videos, write the plan, and return the ids by shard number."""
    videos = {name: ListedVideo(name, root / name, size=5000 if name == "e" else 1000) for name in names}
    shards = assign(videos, Plan.read(Folder(root)).shards, 4, shard_bytes)
    ids = {number: [video.id for video in members] for number, members in shards.items()}
    Plan(Shares(0.25, 1 / 3), ids).write(Folder(root))
    assert Plan.read(Folder(root)) == Plan(Shares(0.25, 1 / 3), ids)
    return ids


def test_split_depends_on_the_id_only() -> None:
    def splits(count: int, val: float, test: float) -> dict[str, str]:
        items = (ListedVideo(f"v{k}", HERE / f"{k}.mp4", split="val" if k % 10 == 0 else "") for k in range(count))
        found = collect(items, SourceFiles(Folder(HERE)), Shares(val, test)).videos
        return {id: video.split for id, video in found.items()}

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


def test_a_split_that_was_asked_for_is_not_empty_and_keeps_its_video(tmp_path: Path) -> None:
    def listed(count: int, shares: Shares) -> Listed:
        videos = [ListedVideo(f"v{k}", HERE / f"{k}.mp4") for k in range(count)]
        return collect(videos, SourceFiles(Folder(HERE)), shares).settled([video.id for video in videos])

    for count in range(2, 60):
        few = listed(count, Shares(val=0.001, test=0.001))
        splits = [video.split for video in few.videos.values()]
        assert splits.count("test") == 1 and splits.count("val") == min(1, count - 2)
        Plan(few.shares).write(Folder(tmp_path))
        more = listed(200, Plan.read(Folder(tmp_path)).shares)
        assert all(more.videos[name].split == video.split for name, video in few.videos.items())
    assert not listed(1, Shares(test=0.5)).shares.chosen  # the only video is for training
    assert not listed(200, Shares(val=0.1, test=0.1)).shares.chosen
    back = listed(10, replace(listed(10, Shares(test=0.001)).shares, test=0.0))
    assert {video.split for video in back.videos.values()} == {"train"}


def test_shards_are_limited_in_videos_and_bytes(tmp_path: Path) -> None:
    assert cut(tmp_path, list("abcdefghij")) == {0: list("abcd"), 1: list("efgh"), 2: list("ij")}
    (tmp_path / "plan.jsonl").unlink()
    assert list(cut(tmp_path, list("abcdefghij"), 3500).values()) == [
        list("abc"), list("d"), list("e"), list("fgh"), list("ij"),
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "largest"), [(10, 10), (300, 16), (1000, 50), (5000, 128)])
def test_shards_of_small_sets_are_smaller_so_that_a_kill_costs_little(count: int, largest: int) -> None:
    videos = {f"{k:04d}": ListedVideo(f"{k:04d}", HERE / f"{k}.mp4") for k in range(count)}
    shards = assign(videos, {}, 128, 1e6)
    assert max(map(len, shards.values())) == largest and sum(map(len, shards.values())) == count


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


def test_content_hash_depends_on_what_determines_the_bytes() -> None:
    here = Folder(HERE)

    def content(one: ListedVideo, **details: str) -> str:
        return ShardTask(here, "shard-000000.h5", here, [one], Extraction(), {"fps": 30} | details).content

    base = ListedVideo("a", HERE / "a.mp4", "a class", "val", size=5)
    by_default = ShardTask(here, "shard-000000.h5", here, [base], Extraction(), Extraction().identity).content
    # another one would make all shards that people have again
    assert by_default == "1e0f2fffbe5478f457c5c6f7178da3005278ecfb1b65bf82a16cded59da1b837"
    same = content(base)
    assert content(replace(base, path=HERE / "moved" / "a.mp4")) == same  # a folder may be rearranged
    for change in ({"label": "other"}, {"split": "test"}, {"folds": ("test",)}, {"columns": (("colour", "blue"),)}):
        assert content(replace(base, **change)) == same  # labels are in the index
    official = content(replace(base, official=True))
    words = TimedWords([1], [0.0], [1.0])
    changes = [{"segment": (0.0, 1.0)}, {"stretches": ((0.0, 1.0),)}, {"words": words}, {"size": 6}]
    contents = [content(replace(base, **change)) for change in changes]
    contents += [content(base, vocabulary="another"), official]  # official folds keep videos shorter than a second
    assert len({same, *contents}) == 7
