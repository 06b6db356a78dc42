"""Listings: who is there, in which class and split."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.errors import UserError
from preprocess.datasets import listing


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def table(root: Path, dataset: str) -> dict[str, tuple[str, str]]:
    return {video.id: (video.label, video.split) for video in listing(dataset, root).videos}


def test_any_tree_is_a_folder_data_set(tmp_path: Path) -> None:
    touch(
        tmp_path, "a.mp4", "cats/b.AVI", "test/cats/indoor/c.webm", "validation/d.mkv", "train/dogs/e.mov", "notes.txt"
    )
    touch(tmp_path, "cats/.hidden.mp4")
    assert table(tmp_path, "folder") == {
        "a.mp4": ("", "train"), "cats/b.AVI": ("cats", "train"), "test/cats/indoor/c.webm": ("cats/indoor", "test"),
        "validation/d.mkv": ("", "val"), "train/dogs/e.mov": ("dogs", "train"),
    }  # fmt: skip


def test_kinetics_class_folders(tmp_path: Path) -> None:
    touch(tmp_path, "train/riding_a_bike/0wR5jVB-WPk_000417_000427.mp4", "val/abseiling/3caPS4FHFF8_000036_000046.mp4")
    assert table(tmp_path, "kinetics") == {
        "0wR5jVB-WPk_000417_000427": ("riding a bike", "train"), "3caPS4FHFF8_000036_000046": ("abseiling", "val"),
    }  # fmt: skip


def test_kinetics_flat_with_the_official_csv(tmp_path: Path, real: Path) -> None:
    official = (real / "kinetics" / "kinetics-400_val.csv").read_text().splitlines()
    (tmp_path / "kinetics-400_val.csv").write_text("\n".join(official[:11]) + "\n")
    rows = [line.split(",") for line in official[1:11]]
    full = [f"{row[1]}_{int(row[2]):06d}_{int(row[3]):06d}" for row in rows]
    touch(tmp_path, f"{full[0]}.mp4", f"videos/{rows[1][1]}.mp4")  # one with its times, one by its bare id
    found = listing("kinetics", tmp_path)
    assert {video.id: (video.label, video.split) for video in found.videos} == {
        full[0]: (rows[0][0], "val"), rows[1][1]: (rows[1][0], "val"),
    }  # fmt: skip
    assert sorted(missing.id for missing in found.missing) == sorted(full[2:])


def test_a_csv_of_another_kind_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "0wR5jVB-WPk_000417_000427.mp4")
    (tmp_path / "x.csv").write_text("name,class\n")
    with pytest.raises(UserError, match="columns split, time_end, time_start, youtube_id are missing"):
        listing("kinetics", tmp_path)


def test_an_id_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a/0wR5jVB-WPk_000417_000427.mp4", "b/0wR5jVB-WPk_000417_000427.mp4")
    with pytest.raises(UserError, match="two videos have the id '0wR5jVB-WPk_000417_000427'"):
        listing("kinetics", tmp_path)


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "disk/cats/a.mp4", "videos/dogs/b.mp4")
    (tmp_path / "videos" / "cats").symlink_to(tmp_path / "disk" / "cats")
    (tmp_path / "disk" / "cats" / "loop").symlink_to(tmp_path / "disk" / "cats")
    assert set(table(tmp_path / "videos", "folder")) == {"cats/a.mp4", "dogs/b.mp4"}


def test_a_name_that_is_no_text_is_left_out_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.mp4")).touch()
    found = listing("folder", tmp_path)
    assert [video.id for video in found.videos] == ["a.mp4"]
    assert [missing.reason for missing in found.missing] == ["its name is not valid UTF-8; rename it"]
