"""VGGSound: segments of 10 s, flat or in any folders, and the official vggsound.csv.

The csv is at https://www.robots.ox.ac.uk/~vgg/data/vggsound/; some videos have several segments in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gdt.common.errors import UserError
from gdt.common.files import kind
from gdt.preprocess.datasets import youtube
from gdt.preprocess.datasets.listing import SPLITS, DataSet, Missing, Video
from gdt.preprocess.datasets.youtube import Segment

TREE = """\
source/vggsound.csv                        youtube_id,start_seconds,label,split without a header
source/.../--0PQM4-hqg_000030.mp4          the segment that starts at 30 s
source/.../--0PQM4-hqg.mp4                 the same or the original, cut by the times in the csv"""

_SECONDS = 10


def listing(source: Path) -> Iterator[Video | Missing]:
    """Videos by their file stems; files that the csv does not list have no split, and are left out by name."""
    path = source / "vggsound.csv"
    if kind(path) == "missing":
        raise UserError(f"there is no {path}; expected:\n{TREE}")
    rows = youtube.read(path, ("youtube_id", "start_seconds", "label", "split"), _segment, header=False)
    return youtube.listing(source, youtube.table(rows), _name, _unlisted)


def _segment(row: dict[str, str]) -> Segment:
    start = float(row["start_seconds"])
    return Segment(row["youtube_id"], start, start + _SECONDS, row["label"].strip(), SPLITS[row["split"].strip()])


def _name(segment: Segment) -> str:
    return f"{segment.youtube_id}_{int(segment.start):06d}"


def _unlisted(video: Video) -> Missing:
    return Missing(video.path.stem, "vggsound.csv does not list it")


DATA = DataSet(listing, TREE)
