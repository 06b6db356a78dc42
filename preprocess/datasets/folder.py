"""Any tree of videos or sounds: subfolders are classes, and top folders named train, val or test are splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from gdt.preprocess.datasets.labels import LABELS, NAMES, Labels
from gdt.preprocess.datasets.listing import SOUNDS, SPLITS, SUFFIXES, DataSet, Missing, Source, Video
from gdt.preprocess.tables import composed

TREE = f"""\
source/a.mp4                      no class, split train, or as --val and --test draw it
source/cats/a.mp4                 class cats, split train, or as --val and --test draw it
source/test/cats/indoor/a.mp4     class cats/indoor, split test
source/{LABELS}                 optional: {"|".join(NAMES)}[,label][,split][,any others]
files ending in {", ".join(sorted(SUFFIXES))}; sounds: {", ".join(sorted(SOUNDS))}"""


def listing(source: Source) -> Iterator[Video | Missing]:
    """One video per file, with its row of labels.csv; then the rows without a file.

    The id is the path below the split folder, so that moving a video to another split keeps it; if two videos would
    share that id, it is the path below `source`.
    """
    videos = [located(source, path) for path in source.files()]
    shared = Counter(_below_split(video.id) for video in videos)
    labels = Labels(source.root, chain(shared, (video.id for video in videos)))
    for video in videos:
        name = _below_split(video.id)
        yield labels.apply(replace(video, id=name if shared[name] == 1 else video.id), video.id)
    yield from labels.unused()


def located(source: Source, path: Path) -> Video:
    """The video of a file, its id the path below `source`, with the label and split of its folders."""
    name = composed(path.relative_to(source.root))
    *folders, _ = name.split("/")
    split = SPLITS.get(folders[0].lower()) if folders else None
    return Video(name, path, "/".join(folders[1:] if split else folders), split or "")


def _below_split(path: str) -> str:
    """A path without its split folder."""
    first, _, rest = path.partition("/")
    return rest if rest and first.lower() in SPLITS else path


DATA = DataSet(listing, TREE)
