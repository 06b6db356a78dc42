"""ESC-50: 2,000 sounds of 5 s in 50 classes, with five official folds (Piczak 2015).

Unpack the archive of https://github.com/karolpiczak/ESC-50.
"""

from collections.abc import Iterator
from pathlib import Path

from gdt.common.errors import LeftOut
from gdt.preprocess.datasets.listing import NO_FILE, DataSet, Item, SourceFiles, incomplete, unlisted
from gdt.preprocess.textfiles import Row, read_csv
from gdt.preprocess.videos import ListedVideo

TREE = """\
source/meta/esc50.csv            filename,fold,target,category and others
source/audio/1-100032-A-0.wav    the sounds, in any folders"""

_FOLDS = 5


def listing(source: SourceFiles) -> Iterator[Item]:
    """Sounds by their file stems, each a test sound of one fold; those that are not in the csv are left out."""
    table = source.file("meta/esc50.csv")
    if not table.present:
        raise incomplete(f"{table} is missing", TREE)
    rows = dict(read_csv(table, ("filename", "fold", "category"), _row))
    present: set[str] = set()
    for name, sound in source.named():
        if name not in rows:
            yield unlisted(sound)
            continue
        present.add(name)
        label, fold = rows[name]
        folds = tuple("test" if fold == number else "train" for number in range(1, _FOLDS + 1))
        yield ListedVideo(name, sound, label, folds[0], folds)
    for name in rows:
        if name not in present:
            yield LeftOut(name, f"listed in meta/esc50.csv, {NO_FILE}")


def _row(row: Row) -> tuple[str, tuple[str, int]]:
    """Stem of the file, class and fold."""
    fold = int(row["fold"])
    if not 1 <= fold <= _FOLDS:
        raise ValueError(f"its fold is {fold}, not 1 to {_FOLDS}")
    return Path(row["filename"]).stem, (row["category"], fold)


DATA = DataSet(listing, TREE)
