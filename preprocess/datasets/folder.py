"""Any tree of videos: subfolders are classes, and top folders named train, val or test are splits."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gdt.preprocess.datasets.labels import LABELS, NAMES, Labels
from gdt.preprocess.datasets.listing import SPLITS, SUFFIXES, DataSet, Missing, Video, find_key, key_of, video_files

TREE = f"""\
source/a.mp4                      no class, split train, or as --val and --test draw it
source/cats/a.mp4                 class cats, split train, or as --val and --test draw it
source/test/cats/indoor/a.mp4     class cats/indoor, split test
source/{LABELS}                 optional: {"|".join(NAMES)}[,label][,split][,any others]
files ending in {", ".join(sorted(SUFFIXES))}"""

_AMBIGUOUS = f"named in {LABELS}, but several splits have such a file; name each by its path including the split folder"


def listing(source: Path) -> Iterator[Video | Missing]:
    """One video per file, with its row of labels.csv; then the rows without a file.

    The id is the path below the split folder, so that moving a video to another split keeps it; if two videos would
    share that id, it is the path below `source`.
    """
    shared = _shared(source)
    with Labels(source) as labels:
        for item in tree(source):
            if isinstance(item, Missing):
                labels.mark_used(item.id)
                yield item
                continue
            name = _below_split(item.id)
            if name != item.id and find_key(shared, name) is None:
                yield labels.apply(replace(item, id=name), item.id)
            else:
                yield labels.apply(item, item.id)
        for row in labels.unused():
            yield replace(row, reason=_AMBIGUOUS) if find_key(shared, row.id) is not None else row


def tree(source: Path) -> Iterator[Video | Missing]:
    """One video per file, its id the path below `source`, with the label and split of its folders."""
    for path in video_files(source):
        if isinstance(path, Missing):
            yield path
            continue
        relative = path.relative_to(source)
        folders = relative.parent.parts
        split = SPLITS.get(folders[0].lower()) if folders else None
        label = "/".join(folders[1:] if split else folders)
        yield Video(str(relative), path, label, split or "")


def _below_split(path: str) -> str:
    """A path without its split folder.

    A path in nested split folders, test/train/a.mp4, is unchanged: train/a.mp4 may be the path of another video.
    """
    first, _, rest = path.partition("/")
    inner, below, _ = rest.partition("/")
    return rest if rest and first.lower() in SPLITS and not (below and inner.lower() in SPLITS) else path


def _shared(source: Path) -> np.ndarray:
    """Keys of the ids that several videos would share without their split folders; uint64, sorted."""
    keys = array("Q")
    if _has_splits(source):
        paths = (path for path in video_files(source) if isinstance(path, Path))
        keys.extend(key_of(_below_split(str(path.relative_to(source)))) for path in paths)
    ordered = np.sort(np.frombuffer(keys, np.uint64))
    return ordered[1:][ordered[1:] == ordered[:-1]]


def _has_splits(source: Path) -> bool:
    try:
        return any(name.lower() in SPLITS for name in os.listdir(source))  # noqa: PTH208
    except OSError:
        return False  # the listing reports it


DATA = DataSet(listing, TREE)
