"""Any tree of videos or sounds: subfolders are classes, and top folders named train, val or test may be splits."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from gdt.common.errors import UserError
from gdt.pipeline.shards.index import LABEL_SEPARATOR
from gdt.preprocess.datasets.labels import LABELS_FILE, PATH_COLUMNS, Labels
from gdt.preprocess.datasets.listing import SPLIT_NAMES, DataSet, Item, SourceFiles
from gdt.preprocess.textfiles import composed
from gdt.preprocess.videos import SOUNDS, SUFFIXES, ListedVideo

TREE = f"""\
source/a.mp4                      no class, split train, or as --val and --test draw it
source/cats/a.mp4                 class cats, split train, or as --val and --test draw it
source/train/cats/a.mp4           class cats, split train, if val or test is beside train; else class train/cats
source/test/cats/indoor/a.mp4     class cats/indoor, split test, if train is beside test
source/{LABELS_FILE}                 optional: {"|".join(PATH_COLUMNS)}[,label][,split or fold][,any others]
files ending in {", ".join(sorted(SUFFIXES))}; sounds: {", ".join(sorted(SOUNDS))}"""

_SHOWN = 5
"""Folders to name in a message."""


def listing(source: SourceFiles, official: bool = False) -> Iterator[Item]:
    """One video per file, with its row of labels.csv; then the rows without a file.

    The id is the path below a top folder that is named as a split, so that neither another split nor another reading of
    the tree changes it; if two videos would share that id, it is the path below `source`. With `official`, folders so
    named are splits, whatever is beside them.
    """
    names = {path: composed(path) for path in source.files()}
    shared = Counter(map(_below_split, names.values()))
    labels = Labels(source, chain(shared, names.values()))
    videos: list[tuple[str, ListedVideo]] = []
    for path, name in names.items():
        id = _below_split(name)
        videos.append((name, labels.apply(ListedVideo(id if shared[id] == 1 else name, path), name)))
    settled = all(video.split for name, video in videos if _below_split(name) != name)
    splits = official or read_folders(source, names.values(), settled)
    labels.say_columns()
    for name, video in videos:
        yield placed(video, name, splits)
    yield from labels.unused()


def read_folders(source: SourceFiles, names: Iterable[str], settled: bool = False) -> bool:
    """Whether top folders named as splits are splits: if train is there, and val or test. Otherwise they are classes.

    `names` are the paths of the videos. Raises UserError if they can be read in both ways, unless the videos in those
    folders have `settled` splits.
    """
    folders = {tuple(name.split("/")[:-1]) for name in names} - {()}
    named = sorted({path[0] for path in folders if path[0].lower() in SPLIT_NAMES})
    others = sorted({path[0] for path in folders} - set(named))
    meant = {SPLIT_NAMES[name.lower()] for name in named}
    complete = "train" in meant and len(meant) > 1
    inner = {path[:2] for path in folders if path[0] in named and len(path) > 1}
    classes = Counter([*others, *(name for _, name in inner)])
    doubtful = others if complete else sorted(name for name, count in classes.items() if count > 1)
    if named and doubtful and not settled:
        why = "are beside them" if complete else "are in them as elsewhere"
        raise UserError(
            f"the folders {_few(named)} of {source.folder} can be splits or classes, since {_few(doubtful)} {why}; for "
            f"splits, move all videos into folders train, val or test; for classes, give each video in {_few(named)} a "
            f"split in {LABELS_FILE} (path,split), which --layout folder reads"
        )
    splits = complete and not others
    reserved = sorted({name for path in folders for name in path if name.lower() in SPLIT_NAMES})
    rule = "splits are train with val or test at the top, and nothing else beside them"
    classes_too = f", also {_few(reserved)} ({rule})" if reserved else ""
    what = f"{_few(named)} are splits, those in them classes" if splits else f"all are classes{classes_too}"
    if folders:
        source.readings.append(f"folders: {what}")
    return splits


def _few(names: Sequence[str]) -> str:
    first = ", ".join(names[:_SHOWN])
    return f"{first}, …" if len(names) > _SHOWN else first


def placed(video: ListedVideo, name: str, splits: bool) -> ListedVideo:
    """The video with the label and split of the folders in its path `name`, where it has none.

    Raises UserError if that label would be read as several.
    """
    *folders, _ = name.split("/")
    split = SPLIT_NAMES.get(folders[0].lower(), "") if splits and folders else ""
    label = "/".join(folders[1:] if split else folders)
    if LABEL_SEPARATOR in label and not video.label:
        raise UserError(
            f"the folder '{label}' has a {LABEL_SEPARATOR} in its name, which divides labels; rename it, or give its "
            f"videos labels in {LABELS_FILE}"
        )
    return replace(video, label=video.label or label, split=video.split or split)


def _below_split(path: str) -> str:
    """A path without its top folder, if that is named as a split."""
    first, _, rest = path.partition("/")
    return rest if rest and first.lower() in SPLIT_NAMES else path


DATA = DataSet(listing, TREE)
