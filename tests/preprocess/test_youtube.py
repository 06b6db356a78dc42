"""Listings of data sets of YouTube segments."""

import itertools
from pathlib import Path

import pytest

from gdt.common.errors import LeftOut
from gdt.preprocess.videos import ListedVideo
from tests.preprocess.test_datasets import listed, missing, segments, table, touch, unlisted

NO_FILE = "there is no file of this name with the suffix of a video"


def test_a_segment_is_one_video_whatever_the_names_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "vggsound.csv").write_text("abcdefghijk,30,dog,test\n")
    touch(tmp_path, "abcdefghijk.mp4", "abcdefghijk_000029.mp4", "abcdefghijk_000030.mp4", "a/abcdefghijk_30.mp4")
    assert table("vggsound", tmp_path) == {"abcdefghijk_000030": ("dog", "test")}  # not the one that was rounded
    kept = "its entry has another file; abcdefghijk_000030.mp4 is kept"
    assert {item.id: (item.reason, item.fault) for item in missing("vggsound", tmp_path)} == {
        "abcdefghijk_000029": (kept, True), "abcdefghijk_30": (kept, True),
        "abcdefghijk": ("its segments have files of their own", True),
    }  # fmt: skip


def test_names_of_yt_dlp(tmp_path: Path) -> None:
    """By default, and with the times that were cut out."""
    (tmp_path / "vggsound.csv").write_text("abcdefghijk,30,dog,test\nlmnopqrstuv,4,cat,train\n")
    touch(tmp_path, "A dog [in a car] [abcdefghijk].mp4", "lmnopqrstuv_4.0-14.0.webm", "No [id].mp4")
    assert segments("vggsound", tmp_path) == {
        "A dog [in a car] [abcdefghijk]": ("A dog [in a car] [abcdefghijk].mp4", (30, 40)),
        "lmnopqrstuv_4.0-14.0": ("lmnopqrstuv_4.0-14.0.webm", None),
    }
    assert missing("vggsound", tmp_path) == [unlisted("No [id].mp4")]
    (tmp_path / "HowTo100M_v1.csv").write_text("video_id,category_1\nabcdefghijk,Pets\n")
    assert table("howto100m", tmp_path) == {"abcdefghijk": ("Pets", "")}


# HowTo100M


def test_howto100m(tmp_path: Path) -> None:
    touch(tmp_path, "0wR5jVB-WPk.mp4", "part1/-caPS4FHFF8.webm", "part2/x/unlisted.mkv")
    assert table("howto100m", tmp_path) == dict.fromkeys(["0wR5jVB-WPk", "-caPS4FHFF8", "unlisted"], ("", ""))
    (tmp_path / "HowTo100M_v1.csv").write_text(
        "video_id,category_1,category_2,rank,task_id\nmissing0001,Pets,Dogs,1,2\n"
        '0wR5jVB-WPk,Food and Entertaining,"Recipes, quick",12,105253\n-caPS4FHFF8,Home and Garden,,1,2\n'
    )
    assert list(listed("howto100m", tmp_path)) == [
        ListedVideo("0wR5jVB-WPk", Path("0wR5jVB-WPk.mp4"), "Food and Entertaining"),
        ListedVideo("-caPS4FHFF8", Path("part1/-caPS4FHFF8.webm"), "Home and Garden"),
        unlisted("part2/x/unlisted.mkv"),
        LeftOut("missing0001", f"listed in HowTo100M_v1.csv, but {NO_FILE}"),
    ]


# VGGSound


def test_vggsound(tmp_path: Path) -> None:
    (tmp_path / "vggsound.csv").write_text(
        '---g-f_I2yQ,1,"people marching",test\n_0_000030_1,30,"people eating, noodles",train\n'
        "0Cfc0r3l5Ww,17,skiing,train\n0Cfc0r3l5Ww,46,dog barking,train\n"
    )
    touch(tmp_path, "---g-f_I2yQ_000001.mp4", "a/_0_000030_1.mp4", "b/0Cfc0r3l5Ww_000046.mp4", "b/holiday.mp4")
    assert table("vggsound", tmp_path) == {
        "---g-f_I2yQ_000001": ("people marching", "test"), "_0_000030_1": ("people eating, noodles", "train"),
        "0Cfc0r3l5Ww_000046": ("dog barking", "train"),
    }  # fmt: skip
    assert segments("vggsound", tmp_path)["_0_000030_1"] == ("_0_000030_1.mp4", (30, 40))
    absent = LeftOut("0Cfc0r3l5Ww_000017_000027", f"listed in the official annotations, but {NO_FILE}")
    assert missing("vggsound", tmp_path) == [unlisted("b/holiday.mp4"), absent]


# AudioSet

SEGMENTS = """\
# Segments csv created Sun Mar  5 10:54:31 2017
# num_ytids=22160, num_segs=22160, num_unique_labels=527, num_positive_labels=52882
# YTID, start_seconds, end_seconds, positive_labels
"""


@pytest.fixture
def audioset(tmp_path: Path) -> Path:
    (tmp_path / "class_labels_indices.csv").write_text(
        'index,mid,display_name\n0,/m/09x0r,"Speech"\n1,/m/05zppz,"Male speech, man speaking"\n'
    )
    (tmp_path / "balanced_train_segments.csv").write_text(SEGMENTS + '-0RWZT-miFs, 420.000, 430.000, "/m/03v3yw"\n')
    return tmp_path


@pytest.mark.parametrize("youtube_id", ["--PJHxphWEs", "_5_10_15_20", "Y_5_10_15_2"])
def test_every_kind_of_audioset_name(audioset: Path, youtube_id: str) -> None:
    row = f'{youtube_id}, 30.000, 40.000, "/m/05zppz,/m/09x0r"\n'
    (audioset / "balanced_train_segments.csv").write_text(SEGMENTS + row)
    whole = ("_30_40", "_30", "_30.000_40.000", "_30.000", "_30000_40000", "_30000", "_000030_000040")
    for prefix, times in itertools.product(("", "Y"), ("", *whole)):
        path = audioset / f"{prefix}{youtube_id}{times}.mp4"
        path.touch()
        segment = None if times else (30, 40)
        expected = ListedVideo(path.stem, Path(path.name), "Male speech, man speaking;Speech", "train", segment=segment)
        assert list(listed("audioset", audioset)) == [expected], path
        path.unlink()


def test_audioset_splits_and_labels(audioset: Path) -> None:
    (audioset / "unbalanced_train_segments.csv").write_text(SEGMENTS + '---1_cCGK4M, 0.500, 8.250, "/m/09x0r,/m/x"\n')
    (audioset / "eval_segments.csv").write_text(SEGMENTS + '--4gqARaEJE, 0.000, 10.000, "/m/068hy,/m/09x0r"\n')
    touch(audioset, "eval/--4gqARaEJE.mp4", "train/---1_cCGK4M_500.mp4", "train/AAAAAAAAAAA_0.mp4")
    labels = {"--4gqARaEJE": ("/m/068hy;Speech", "test"), "---1_cCGK4M_500": ("Speech;/m/x", "train")}
    assert table("audioset", audioset) == labels  # by display names, if there are any
    absent = LeftOut("-0RWZT-miFs_000420_000430", f"listed in the official annotations, but {NO_FILE}")
    assert missing("audioset", audioset) == [unlisted("train/AAAAAAAAAAA_0.mp4"), absent]
