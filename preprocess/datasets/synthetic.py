"""The set that `gdt generate` writes (see preprocess/synthetic): a folder tree whose ids are the stems of its files.

source/train/bounce/*.mp4, source/val/..., source/test/..., source/captions.json, source/synthetic.json
"""

from collections.abc import Iterator
from dataclasses import replace

from gdt.preprocess.datasets import folder
from gdt.preprocess.datasets.listing import DataSet, Item, SourceFiles
from gdt.preprocess.videos import ListedVideo


def _listing(source: SourceFiles) -> Iterator[Item]:
    for item in folder.listing(source, official=True):
        yield replace(item, id=item.path.stem) if isinstance(item, ListedVideo) else item


DATA = DataSet(_listing, folder.TREE)
