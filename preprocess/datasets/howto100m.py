"""HowTo100M: 1.2 million narrated videos of how things are done, with captions.

The official files (HowTo100M_v1.csv, caption.json, ...) are at https://www.di.ens.fr/willow/research/howto100m/;
the videos are your own downloads from YouTube. Captions are found by preprocess/captions/readers.py.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from gdt.common.errors import UserError
from gdt.common.files import kind, open_regular
from gdt.preprocess.datasets.listing import DataSet, Missing, Video, video_files

TABLE = "HowTo100M_v1.csv"
TREE = f"""\
source/0wR5jVB-WPk.mp4            named by the YouTube id, any video format, in folders at any depth
source/part1/3caPS4FHFF8.webm
source/{TABLE}         optional, video_id,category_1,...: labels, and which videos are missing
source/caption.json               captions, or raw_caption.json, captions.json
source/captions/0wR5jVB-WPk.csv   captions, where each video has its own file: start,end,text"""


def listing(source: Path) -> Iterator[Video | Missing]:
    """One video per file, its id the file's stem and its label category_1, then the listed ones that are not there.

    Holds the official table in memory, about 250 MB. Raises UserError where there are no videos or the table is
    damaged.
    """
    labels = {} if kind(source / TABLE) == "missing" else read_labels(source / TABLE)
    listed: set[str] = set()
    video = None
    for path in video_files(source):
        if isinstance(path, Missing):
            yield path
            continue
        video = Video(path.stem, path, labels.get(path.stem, ""))
        if video.id in labels:
            listed.add(video.id)
        yield video
    if video is None:
        raise UserError(f"there are no videos in {source}; expected\n{TREE}")
    for id in labels:
        if id not in listed:
            yield Missing(id, f"listed in {TABLE}, but there is no such file")


def read_labels(path: Path) -> dict[str, str]:
    """category_1 by video_id, in the order of the official table. Raises UserError for any other table."""
    labels: dict[str, str] = {}
    try:
        with io.TextIOWrapper(open_regular(path), newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if not {"video_id", "category_1"} <= set(header):
                raise UserError(
                    f"{path} is not the official table; expected video_id,category_1,category_2,rank,task_id"
                )
            id, category = header.index("video_id"), header.index("category_1")
            for row in filter(None, reader):
                if len(row) != len(header):
                    raise UserError(
                        f"{path}, line {reader.line_num}: {len(row)} fields, but {len(header)} in the header"
                    )
                labels[row[id]] = sys.intern(row[category])  # few, so that the ids take the memory
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}; copy or download it again") from error
    return labels


DATA = DataSet(listing, TREE, needs_captions=True)
