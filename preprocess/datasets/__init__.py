"""Data sets: where their videos, labels, splits and captions are.

Each is a module here that defines DATA, and a name in pipeline/shards/naming.py.
"""

import difflib
import importlib
import re
from collections.abc import Iterator

from gdt.common.errors import LeftOut, UserError, unknown
from gdt.common.folders import Folder
from gdt.pipeline.shards import naming
from gdt.preprocess.datasets.listing import DataSet, Item, SourceFiles, ignored_in_words, incomplete

DATASETS: dict[str, DataSet] = {
    name: importlib.import_module(f"{__name__}.{name}").DATA for name in naming.DATASET_NAMES
}
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
"""What Python makes of the bytes of a name that are not UTF-8."""


def layout_of(dataset: str, layout: str) -> str:
    """The layout `layout`, by default that of a data set of this name, else folder.

    Raises UserError if the name looks like a known one misspelt.
    """
    if layout or dataset in DATASETS:
        return layout or dataset
    similar = difflib.get_close_matches(dataset.casefold(), DATASETS, 1, 0.75)
    if similar:
        raise UserError(
            f"--dataset is '{dataset}'; did you mean '{similar[0]}'? If not, set --layout to folder (any tree of "
            f"videos) or {similar[0]}"
        )
    return "folder"


def find(layout: str, source: Folder) -> DataSet:
    """The data set of this layout. Raises UserError for an unknown one or a missing source."""
    if layout not in DATASETS:
        raise unknown("layout", layout, DATASETS)
    kind = "a folder" if source.remote else source.kind("")
    if kind != "a folder":
        state = {"missing": "does not exist", "inaccessible": "may not be read"}.get(kind, "is not a folder")
        raise UserError(f"the source folder {source} {state}; set --source to the folder of your videos")
    return DATASETS[layout]


def listing(entry: DataSet, files: SourceFiles) -> Iterator[Item]:
    """Yield the items of a data set, LeftOut for videos whose names are not valid UTF-8.

    Raises UserError if a file or folder that all videos need is missing and, at the end, if there was no video.
    """
    source = files.folder
    empty = True
    unusable = ""
    for item in entry.listing(files):
        folder = source if isinstance(item, LeftOut) else item.folder or source
        where = folder.address(item.path) if item.path else ""
        if isinstance(item, LeftOut):
            if where and not unusable:
                unusable = f" that can be used ({where}: {item.reason})"
        else:
            empty = False
        if not _NOT_UTF8.search(f"{item.id} {where}"):
            yield item
        else:
            readable = str(item.path).encode(errors="replace").decode()
            id = ascii(item.id) if _NOT_UTF8.search(item.id) else item.id
            yield LeftOut(id, "its name is not valid UTF-8; rename it", readable, fault=True)
    if empty:
        ignored = ignored_in_words(files.ignored)
        raise incomplete("; ".join([f"there are no videos in {source}{unusable}", *ignored]), entry.tree)
