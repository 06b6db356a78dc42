"""Any tree of videos, at any depth; subfolders are classes, and folders named train, val or test are splits.

Also stands for IG65M, which was never published: a collection of millions of files in any arrangement.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from preprocess.datasets.listing import SPLITS, SUFFIXES, Missing, Video, video_files

TREE = f"""\
source/a.mp4                      no class, split train
source/cats/a.mp4                 class cats, split train
source/test/cats/indoor/a.mp4     class cats/indoor, split test
files ending in {", ".join(sorted(SUFFIXES))}"""


def listing(source: Path) -> Iterator[Video | Missing]:
    """One video per file; its id is the path below `source`."""
    return tree(source)


def tree(source: Path) -> Iterator[Video | Missing]:
    """What the files of a tree alone say; data sets that know more of their videos begin with it."""
    for path in video_files(source):
        if isinstance(path, Missing):
            yield path
            continue
        relative = path.relative_to(source)
        folders = relative.parent.parts
        split = SPLITS.get(folders[0].lower()) if folders else None
        label = "/".join(folders[1:] if split else folders)
        yield Video(str(relative), path, label, split or "train")
