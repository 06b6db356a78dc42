"""Any tree of videos or sounds: subfolders are classes, and top folders named train, val or test are splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gdt.preprocess.datasets.labels import LABELS, NAMES, Labels
from gdt.preprocess.datasets.listing import SOUNDS, SPLITS, SUFFIXES, DataSet, Missing, Video, media_files

TREE = f"""\
source/a.mp4                      no class, split train, or as --val and --test draw it
source/cats/a.mp4                 class cats, split train, or as --val and --test draw it
source/test/cats/indoor/a.mp4     class cats/indoor, split test
source/{LABELS}                 optional: {"|".join(NAMES)}[,label][,split][,any others]
files ending in {", ".join(sorted(SUFFIXES))}; sounds: {", ".join(sorted(SOUNDS))}"""


def listing(source: Path) -> Iterator[Video | Missing]:
    """One video per file, with its row of labels.csv; then the rows without a file.

    The id is the path below the split folder, so that moving a video to another split keeps it; if two videos would
    share that id, it is the path below `source`.
    """
    videos = list(tree(source))
    shared = Counter(_below_split(video.id) for video in videos)
    labels = Labels(source)
    for video in videos:
        name = _below_split(video.id)
        yield labels.apply(replace(video, id=name if shared[name] == 1 else video.id), video.id)
    yield from labels.unused()


def tree(source: Path) -> Iterator[Video]:
    """One video per file, its id the path below `source`, with the label and split of its folders."""
    for path in media_files(source):
        relative = path.relative_to(source)
        folders = relative.parent.parts
        split = SPLITS.get(folders[0].lower()) if folders else None
        label = "/".join(folders[1:] if split else folders)
        yield Video(str(relative), path, label, split or "")


def _below_split(path: str) -> str:
    """A path without its split folder."""
    first, _, rest = path.partition("/")
    return rest if rest and first.lower() in SPLITS else path


DATA = DataSet(listing, TREE)
