"""HMDB-51: class folders of AVI files, and the official lists of three folds.

Unpack hmdb51_org.rar and test_train_splits.rar from
https://serre-lab.clps.brown.edu/resource/hmdb-a-large-human-motion-database/. All 6766 file names are distinct,
so the stem is the id.
"""

from collections.abc import Iterator
from pathlib import PurePath

from gdt.common.errors import UserError
from gdt.common.folders import File, Folder
from gdt.preprocess.datasets import official
from gdt.preprocess.datasets.listing import DataSet, Item, SourceFiles, incomplete
from gdt.preprocess.datasets.official import Line

TREE = """\
source/hmdb51_org/brush_hair/*.avi                                     class folders, here, in another folder or
                                                                       in source itself; any video format
source/testTrainMulti_7030_splits/brush_hair_test_split1.txt to 3      the official lists, here or next to source"""

_SPLITS = {"0": "unused", "1": "train", "2": "test"}


def listing(source: SourceFiles) -> Iterator[Item]:
    """Videos by the names of their files, in all folds; those in no list are left out."""
    lists = official.find_lists(source, "testTrainMulti_7030_splits", TREE)
    return official.listing(source, "hmdb51_org", _lines(lists), TREE)


def _lines(lists: Folder) -> Iterator[Line]:
    classes = sorted({path.name.rpartition("_test_split")[0] for path in lists.glob("[!.]*_test_split?.txt")})
    if not classes:
        raise incomplete(f"{lists} has no *_test_split1.txt", TREE)
    for name in classes:
        for fold in official.FOLDS:
            path = File(lists, PurePath(f"{name}_test_split{fold}.txt"))
            for line in official.read_lines(path):
                file, _, number = line.strip().rpartition(" ")
                if number not in _SPLITS:
                    raise UserError(f"{path}: unknown line '{line}'; expected a file name and 0, 1 or 2")
                yield Line(name, file.strip(), fold, _SPLITS[number])


DATA = DataSet(listing, TREE)
