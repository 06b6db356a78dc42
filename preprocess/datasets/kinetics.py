"""Kinetics-400/600/700: class folders or one folder, with the official annotation csv if there is one.

The csv files (kinetics-400_train.csv, ...) are those of the official annotations or of
https://github.com/cvdfoundation/kinetics-dataset; test files have no label column.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from gdt.common.folders import File
from gdt.preprocess.datasets import folder, youtube
from gdt.preprocess.datasets.listing import SPLIT_NAMES, DataSet, Item, SourceFiles
from gdt.preprocess.datasets.youtube import Segment
from gdt.preprocess.textfiles import Row, composed, read_csv
from gdt.preprocess.videos import ListedVideo

TREE = """\
source/train/riding_a_bike/0wR5jVB-WPk_000417_000427.mp4    split and class folders, if val or test is beside train
source/riding_a_bike/0wR5jVB-WPk_000417_000427.mp4          class folders
source/0wR5jVB-WPk_000417_000427.mp4                        one folder; split and class from the csv
source/0wR5jVB-WPk.mp4                                      the segment, or the original, which is cut by the csv
source/*.csv or source/annotations/*.csv                    label,youtube_id,time_start,time_end,split[,is_cc]; files
                                                            that they do not name are left out"""

_COLUMNS = ("youtube_id", "time_start", "time_end", "split")  # and a label, except in test files

_TIMES = re.compile(r"(.{11})_(\d{6})_(\d{6})", re.ASCII)


def listing(source: SourceFiles) -> Iterator[Item]:
    """Videos by the names of their files; label and split are from the csv or, if there is none, from the folders."""
    paths = [*source.folder.glob("[!.]*.csv"), *source.folder.glob("annotations/[!.]*.csv")]
    if not paths:
        named = [(name, path, composed(path)) for name, path in source.named()]
        splits = folder.read_folders(source, [below for _, _, below in named])
        return (_named(folder.placed(ListedVideo(name, path), below, splits)) for name, path, below in named)
    rows = (row for path in paths for row in read_csv(File(source.folder, path), _COLUMNS, _segment))
    return youtube.listing(source, rows)


def _named(video: ListedVideo) -> ListedVideo:
    times = _TIMES.fullmatch(video.id)
    part = (times[1], float(times[2]), float(times[3])) if times else None
    return replace(video, label=video.label.replace("_", " "), part=part)


def _segment(row: Row) -> Segment:
    start = float(row["time_start"])
    end = float(row["time_end"])
    return Segment(
        row["youtube_id"], start, end, row.get("label", "").strip(), SPLIT_NAMES[row["split"].strip().lower()]
    )


DATA = DataSet(listing, TREE)
