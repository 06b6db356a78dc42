"""UCF-101: class folders of AVI files, and the official lists of three folds.

Unpack UCF101.rar and UCF101TrainTestSplits-RecognitionTask.zip from https://www.crcv.ucf.edu/data/UCF101.php.
"""

import re
from collections.abc import Iterator
from pathlib import PurePath

from gdt.common.errors import UserError
from gdt.common.folders import File, Folder
from gdt.preprocess.datasets import official
from gdt.preprocess.datasets.listing import DataSet, Item, SourceFiles
from gdt.preprocess.datasets.official import Line

TREE = """\
source/UCF-101/Archery/v_Archery_g01_c01.avi           class folders, here or in source itself; any video format
source/ucfTrainTestlist/trainlist01.txt to 03          the official lists, here or next to source
source/ucfTrainTestlist/testlist01.txt to 03"""

_LINE = re.compile(r"([^/<>\s]+)/([^/<>\s]+\.\w+)(?:\s+\d+)?\s*")
"""Class and file; in training lists, the class number follows."""


def listing(source: SourceFiles) -> Iterator[Item]:
    """Videos by the names of their files, in all folds; those in no list are left out."""
    lists = official.find_lists(source, "ucfTrainTestlist", TREE)
    return official.listing(source, "UCF-101", _lines(lists), TREE)


def _lines(lists: Folder) -> Iterator[Line]:
    for fold in official.FOLDS:
        for split in ("train", "test"):
            path = File(lists, PurePath(f"{split}list{fold:02d}.txt"))
            for line in official.read_lines(path):
                match = _LINE.fullmatch(line)
                if match is None:
                    raise UserError(
                        f"{path}: unknown line '{line}'; expected lines such as Archery/v_Archery_g01_c01.avi 1"
                    )
                yield Line(match[1], match[2], fold, split)


DATA = DataSet(listing, TREE)
