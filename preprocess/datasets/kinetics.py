"""Kinetics 400/600/700: class folders or flat, with the official annotation csv where there is one.

    source/train/abseiling/0wR5jVB-WPk_000417_000427.mp4     split and class folders
    source/abseiling/0wR5jVB-WPk_000417_000427.mp4           class folders
    source/0wR5jVB-WPk_000417_000427.mp4 or .../0wR5jVB-WPk.mp4   flat, split and class from the csv
    source/*.csv                                             label,youtube_id,time_start,time_end,split[,is_cc]

The csv files (kinetics-400_train.csv, ...) come with the official annotations; test files have no label column.
Videos that a csv lists but that are not there are counted and named in rejected.jsonl.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import UserError
from preprocess.datasets import folder
from preprocess.datasets.listing import SPLITS, Listing, Missing, Video

_NAME = re.compile(r"^(?P<id>.{11})(?:_(?P<start>\d{6})_(?P<end>\d{6}))?$")


class Annotation(NamedTuple):
    """One row of an official csv."""

    label: str
    split: str


def listing(source: Path) -> Listing:
    """Videos by the official names; label and split from the csv, else from the folders."""
    annotations = read_annotations(source)
    videos, found = [], set()
    for video in folder.listing(source).videos:
        name = video.path.stem
        match = _NAME.match(name)
        keys = [name] if match is None else [name, match["id"]]
        key = next((key for key in keys if key in annotations), None)
        annotation = annotations[key] if key else Annotation(video.label.replace("_", " "), video.split)
        if key:
            found.add(key)
        videos.append(Video(name, video.path, annotation.label, annotation.split))
    # a csv row is known by its full name and by its bare id; it is missing if neither was found
    names = {key for key in annotations if (match := _NAME.match(key)) and match["start"]}
    absent = sorted(name for name in names if name not in found and name[:11] not in found)
    return Listing(videos, [Missing(name, "listed in the annotations, but there is no such file") for name in absent])


def read_annotations(source: Path) -> dict[str, Annotation]:
    """All rows of the csv files in `source`, under `<id>_<start>_<end>` and, where it is unique, under `<id>`."""
    rows: dict[str, Annotation] = {}
    by_id: dict[str, list[Annotation]] = {}
    for path in sorted(source.glob("*.csv")):
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            needed = {"youtube_id", "time_start", "time_end", "split"}
            if missing := needed - set(reader.fieldnames or []):
                raise UserError(
                    f"{path} is no Kinetics annotation: columns {', '.join(sorted(missing))} are missing; "
                    "expected label,youtube_id,time_start,time_end,split"
                )
            for row in reader:
                split = SPLITS.get(row["split"].strip().lower(), row["split"])
                annotation = Annotation((row.get("label") or "").strip(), split)
                start, end = int(float(row["time_start"])), int(float(row["time_end"]))
                rows[f"{row['youtube_id']}_{start:06d}_{end:06d}"] = annotation
                by_id.setdefault(row["youtube_id"], []).append(annotation)
    return rows | {key: values[0] for key, values in by_id.items() if len(values) == 1}
