"""HowTo100M: 1.2 million narrated instructional videos with captions.

The official files (HowTo100M_v1.csv, caption.json, ...) are at https://www.di.ens.fr/willow/research/howto100m/; the
videos are your downloads from YouTube. preprocess/captions/readers.py finds the captions.
"""

import sys
from collections.abc import Iterator

from gdt.preprocess.datasets.listing import DataSet, Item, SourceFiles, matched, titled_id
from gdt.preprocess.textfiles import Row, read_csv
from gdt.preprocess.videos import ListedVideo

TABLE = "HowTo100M_v1.csv"
TREE = f"""\
source/0wR5jVB-WPk.mp4            named by the YouTube id, any video format, in folders at any depth
source/part1/3caPS4FHFF8.webm     or Title [3caPS4FHFF8].webm
source/{TABLE}         optional, video_id,category_1,...: the videos and their labels
source/caption.json               captions, or raw_caption.json, captions.json
source/captions/0wR5jVB-WPk.csv   captions, if each video has its own file: start,end,text"""


def listing(source: SourceFiles) -> Iterator[Item]:
    """One video per file, its id the name of the file and its label category_1, then listed videos without a file.

    If there is the official table, files that it does not name are left out. Holds it in memory, about 250 MB. Raises
    UserError if it is damaged.
    """
    table = source.file(TABLE)
    named = ((titled_id(name) or name, path) for name, path in source.named())
    if not table.present:
        return (ListedVideo(name, path) for name, path in named)
    labels = dict(read_csv(table, ("video_id", "category_1"), _label))
    return matched(TABLE, labels, ((name, ListedVideo(name, path, labels.get(name, ""))) for name, path in named))


def _label(row: Row) -> tuple[str, str]:
    return row["video_id"], sys.intern(row["category_1"])  # few categories, so that only the ids take memory


DATA = DataSet(listing, TREE, needs_captions=True)
