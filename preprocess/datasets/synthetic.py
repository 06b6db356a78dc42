"""Synthetic data sets, which are generated if they are missing (see preprocess/synthetic).

source/train/bounce/*.mp4, source/val/..., source/test/..., source/captions.json or labels.csv, source/<data set>.json
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from gdt.preprocess.datasets import folder
from gdt.preprocess.datasets.listing import DataSet, Missing, Video


def data(name: str) -> DataSet:
    """The synthetic data set of this name."""
    return DataSet(_listing, folder.TREE, generate=partial(_generate, name))


def _generate(name: str, source: Path) -> None:
    """Generate the default set into `source`, unless a complete set is there."""
    from gdt.preprocess.synthetic import generate, generated

    kind = generated(name)
    if not (source / kind().marker).is_file():
        generate(source, kind())


def _listing(source: Path) -> Iterator[Video | Missing]:
    """One video per file, by its stem as in captions, with the columns of labels.csv."""
    for item in folder.listing(source):
        yield replace(item, id=item.path.stem) if isinstance(item, Video) else item
