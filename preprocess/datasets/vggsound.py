"""VGGSound: segments of 10 s, in any folders, and the official vggsound.csv.

The csv is at https://www.robots.ox.ac.uk/~vgg/data/vggsound/; it has several segments of some videos.
"""

from collections.abc import Iterator

from gdt.preprocess.datasets import youtube
from gdt.preprocess.datasets.listing import SPLIT_NAMES, DataSet, Item, SourceFiles, incomplete
from gdt.preprocess.datasets.youtube import Segment
from gdt.preprocess.textfiles import Row, read_csv

TREE = """\
source/vggsound.csv                        youtube_id,start_seconds,label,split without a header
source/.../--0PQM4-hqg_000030.mp4          the segment that starts at 30 s
source/.../--0PQM4-hqg.mp4                 the segment, or the original, which is cut by the times in the csv"""

_COLUMNS = ("youtube_id", "start_seconds", "label", "split")
_SECONDS = 10


def listing(source: SourceFiles) -> Iterator[Item]:
    """Videos by the names of their files; files that are not in the official csv are left out."""
    table = source.file("vggsound.csv")
    if not table.present:
        raise incomplete(f"{table} is missing", TREE)
    return youtube.listing(source, read_csv(table, _COLUMNS, _segment, header=False))


def _segment(row: Row) -> Segment:
    start = float(row["start_seconds"])
    return Segment(row["youtube_id"], start, start + _SECONDS, row["label"].strip(), SPLIT_NAMES[row["split"].strip()])


DATA = DataSet(listing, TREE)
