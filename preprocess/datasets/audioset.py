"""AudioSet: segments of up to 10 s, in any folders, and the official csv files of segments.

The csv files are at https://research.google.com/audioset/download.html; the downloaded ones choose the videos. A
segment has several labels: display names from class_labels_indices.csv, or else machine ids (/m/09x0r).
"""

from collections.abc import Iterator
from operator import itemgetter

from gdt.common.folders import File
from gdt.pipeline.shards.index import LABEL_SEPARATOR
from gdt.preprocess.datasets import youtube
from gdt.preprocess.datasets.listing import DataSet, Item, SourceFiles, incomplete
from gdt.preprocess.datasets.youtube import Segment
from gdt.preprocess.textfiles import Row, read_csv

TREE = """\
source/balanced_train_segments.csv           YTID, start_seconds, end_seconds, positive_labels; split train
source/unbalanced_train_segments.csv         the same
source/eval_segments.csv                     the same, split test; at least one of the three is needed
source/class_labels_indices.csv              index,mid,display_name; optional, names of the classes
source/.../-0RWZT-miFs_420_430.mp4           a segment by start and end, or by start only (-0RWZT-miFs_420.mp4), in
                                             seconds (420, 420.000) or milliseconds (420000)
source/.../-0RWZT-miFs.mp4                   the segment, or the original, which is cut by the times in the csv
source/.../Y-0RWZT-miFs.mp4                  any of these names with a Y in front"""

_SPLITS = {
    "balanced_train_segments.csv": "train",
    "unbalanced_train_segments.csv": "train",
    "eval_segments.csv": "test",
}
_COLUMNS = ("YTID", "start_seconds", "end_seconds", "positive_labels")


def listing(source: SourceFiles) -> Iterator[Item]:
    """Videos by the names of their files; files that are not in the official csv are left out."""
    lists = [file for file in map(source.file, _SPLITS) if file.present]
    if not lists:
        raise incomplete(f"{source.folder} has none of {', '.join(_SPLITS)}", TREE)
    classes = source.file("class_labels_indices.csv")
    names = (
        dict(read_csv(classes, ("mid", "display_name"), itemgetter("mid", "display_name"))) if classes.present else {}
    )
    return youtube.listing(source, (segment for file in lists for segment in _segments(file, names)))


def _segments(file: File, names: dict[str, str]) -> Iterator[Segment]:
    def segment(row: Row) -> Segment:
        ids = [id.strip() for id in row["positive_labels"].split(",")]
        labels = [names.get(id, id) for id in ids]
        start = float(row["start_seconds"])
        end = float(row["end_seconds"])
        return Segment(row["YTID"], start, end, LABEL_SEPARATOR.join(labels), _SPLITS[file.path.name])

    return read_csv(file, _COLUMNS, segment, header=False)


DATA = DataSet(listing, TREE)
