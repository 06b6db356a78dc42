"""The list of HowTo100M."""

from pathlib import Path

from gdt.common.errors import LeftOut
from gdt.common.folders import Folder
from gdt.preprocess.datasets import DATASETS, howto100m
from gdt.preprocess.datasets.listing import SourceFiles
from gdt.preprocess.videos import ListedVideo
from tests.preprocess.test_datasets import touch, unlisted


def test_howto100m(tmp_path: Path) -> None:
    touch(tmp_path, "0wR5jVB-WPk.mp4", "part1/-caPS4FHFF8.webm", "part2/x/unlisted.mkv")
    assert [(video.id, video.label) for video in howto100m.listing(SourceFiles(Folder(tmp_path)))] == [
        ("0wR5jVB-WPk", ""), ("-caPS4FHFF8", ""), ("unlisted", ""),
    ]  # fmt: skip
    (tmp_path / "HowTo100M_v1.csv").write_text(
        "video_id,category_1,category_2,rank,task_id\nmissing0001,Pets,Dogs,1,2\n"
        '0wR5jVB-WPk,Food and Entertaining,"Recipes, quick",12,105253\n-caPS4FHFF8,Home and Garden,,1,2\n'
    )
    assert list(DATASETS["howto100m"].listing(SourceFiles(Folder(tmp_path)))) == [
        ListedVideo("0wR5jVB-WPk", Path("0wR5jVB-WPk.mp4"), "Food and Entertaining"),
        ListedVideo("-caPS4FHFF8", Path("part1/-caPS4FHFF8.webm"), "Home and Garden"),
        unlisted("part2/x/unlisted.mkv"),
        LeftOut(
            "missing0001", "listed in HowTo100M_v1.csv, but there is no file of this name with the suffix of a video"
        ),
    ]
    assert DATASETS["howto100m"].needs_captions
