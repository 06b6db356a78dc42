"""AudioSet: segments of up to 10 s, flat or in any folders, and the official csv files of segments.

The csv files are at https://research.google.com/audioset/download.html; the tables that are there choose the videos.
A segment has several labels in AudioSet, and a video has one here: the first, by its display name where
class_labels_indices.csv says it, else by its machine id (/m/09x0r).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gdt.common.errors import UserError
from gdt.common.files import kind
from gdt.preprocess.datasets import youtube
from gdt.preprocess.datasets.listing import DataSet, Missing, Video
from gdt.preprocess.datasets.youtube import Segment

TREE = """\
source/balanced_train_segments.csv           YTID, start_seconds, end_seconds, positive_labels; split train
source/unbalanced_train_segments.csv         the same
source/eval_segments.csv                     the same, split test; at least one of the three
source/class_labels_indices.csv              index,mid,display_name; optional, names of the classes
source/.../-0RWZT-miFs_420_430.mp4           a segment by start and end, or by start only (-0RWZT-miFs_420.mp4), in
                                             seconds (420, 420.000) or milliseconds (420000)
source/.../-0RWZT-miFs.mp4                   the same or the original, cut by the times in the csv
source/.../Y-0RWZT-miFs.mp4                  any of these names with a Y in front"""

_SPLITS = {
    "balanced_train_segments.csv": "train", "unbalanced_train_segments.csv": "train", "eval_segments.csv": "test",
}  # fmt: skip


def listing(source: Path) -> Iterator[Video | Missing]:
    """Videos by their file stems; files that no csv lists have no split, and are left out by name."""
    tables = [source / name for name in _SPLITS if kind(source / name) != "missing"]
    if not tables:
        raise UserError(f"there is none of {', '.join(_SPLITS)} in {source}; expected:\n{TREE}")
    names = _display_names(source / "class_labels_indices.csv")
    rows = (segment for path in tables for segment in _segments(path, names))
    return youtube.listing(source, youtube.table(rows), _name, _unlisted)


def _display_names(path: Path) -> dict[str, str]:
    if kind(path) == "missing":
        return {}
    return dict(youtube.read(path, ("mid", "display_name"), lambda row: (row["mid"], row["display_name"])))


def _segments(path: Path, names: dict[str, str]) -> Iterator[Segment]:
    def segment(row: dict[str, str]) -> Segment:
        label = row["positive_labels"].split(",")[0].strip()
        start, end = float(row["start_seconds"]), float(row["end_seconds"])
        return Segment(row["YTID"], start, end, names.get(label, label), _SPLITS[path.name])

    return youtube.read(path, ("YTID", "start_seconds", "end_seconds", "positive_labels"), segment, header=False)


def _name(segment: Segment) -> str:
    """As AudioSet itself calls segments in its strong labels: start in milliseconds."""
    return f"{segment.youtube_id}_{round(1000 * segment.start)}"


def _unlisted(video: Video) -> Missing:
    return Missing(video.path.stem, "none of the csv files lists it")


DATA = DataSet(listing, TREE)
