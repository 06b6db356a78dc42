"""Data sets: where their videos, labels, splits and captions are. One short module each, one entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gdt.common.errors import UserError
from gdt.preprocess.datasets import audioset, folder, hmdb51, howto100m, kinetics, synthetic, ucf101, vggsound
from gdt.preprocess.datasets.listing import Missing, Video


@dataclass(frozen=True)
class DataSet:
    """One entry of the table below."""

    listing: Callable[[Path], Iterator[Video | Missing]]
    """Videos below a folder, in a fixed order, one at a time: a list of a million is never held in memory."""
    tree: str
    """The files and folders that are expected, as text to show."""
    captioned: bool = False
    """Only what is captioned is kept: videos without captions are left out, and stretches without any are cut out."""
    make: Callable[[Path], None] | None = None
    """Generates the videos, and captions of them, where there are none."""


DATASETS = {
    "audioset": DataSet(audioset.listing, audioset.TREE),
    "folder": DataSet(folder.listing, folder.TREE),
    "hmdb51": DataSet(hmdb51.listing, hmdb51.TREE),
    "howto100m": DataSet(howto100m.listing, howto100m.TREE, captioned=True),
    "ig65m": DataSet(folder.listing, folder.TREE),
    "kinetics": DataSet(kinetics.listing, kinetics.TREE),
    "synthetic": DataSet(synthetic.listing, folder.TREE, make=synthetic.make),
    "synthetic-hard": DataSet(synthetic.listing_hard, folder.TREE, make=synthetic.make_hard),
    "ucf101": DataSet(ucf101.listing, ucf101.TREE),
    "vggsound": DataSet(vggsound.listing, vggsound.TREE),
}


def find(dataset: str, source: Path) -> DataSet:
    """The data set of this name. Raises UserError for an unknown name or a missing source."""
    if dataset not in DATASETS:
        raise UserError(f"there is no data set '{dataset}'; choose one of {', '.join(DATASETS)}")
    entry = DATASETS[dataset]
    if entry.make is None and not source.is_dir():
        state = "is not a folder" if source.exists() else "does not exist"
        raise UserError(f"the source folder {source} {state}; set SOURCE to the folder that holds your videos")
    return entry


def listing(dataset: str, source: Path) -> Iterator[Video | Missing]:
    """The videos of a data set below `source`; those whose names are no text are named as missing.

    Raises UserError where something is missing that all videos need, and, at the end, where there was no video.
    """
    entry = find(dataset, source)
    empty = True
    for item in entry.listing(source):
        empty = empty and isinstance(item, Missing)
        if _is_text(item.id + str(item.path)):
            yield item
        else:
            readable = Path(str(item.path).encode(errors="replace").decode())
            yield Missing(ascii(item.id), "its name is not valid UTF-8; rename it", readable)
    if empty:
        raise UserError(f"there are no videos in {source}; expected:\n{entry.tree}")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
