"""ESC-50: 2,000 sounds of 5 s in 50 classes, with five official folds (Piczak 2015).

Unpack the archive of https://github.com/karolpiczak/ESC-50.
"""

from collections.abc import Iterator
from pathlib import Path

from gdt.preprocess.datasets.listing import DataSet, Item, SourceFiles, incomplete, matched
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

    def video(name: str, path: Path) -> ListedVideo:
        label, fold = rows.get(name, ("", 0))
        folds = tuple("test" if fold == number else "train" for number in range(1, _FOLDS + 1))
        return ListedVideo(name, path, label, folds[0], folds, official=True)

    return matched("meta/esc50.csv", rows, ((name, video(name, path)) for name, path in source.named()))


def _row(row: Row) -> tuple[str, tuple[str, int]]:
    """Stem of the file, class and fold."""
    fold = int(row["fold"])
    if not 1 <= fold <= _FOLDS:
        raise ValueError(f"its fold is {fold}, not 1 to {_FOLDS}")
    return Path(row["filename"]).stem, (row["category"], fold)


DATA = DataSet(listing, TREE)
