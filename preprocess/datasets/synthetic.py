"""The generated data sets, made where they are not there yet (see preprocess/synthetic for what they hold).

synthetic:       source/train/bounce/*.mp4, source/val/..., source/test/..., source/captions.json, source/synthetic.json
synthetic-hard:  source/train/rise/*.mp4, source/val/..., source/test/..., source/labels.csv, source/synthetic-hard.json
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gdt.preprocess.datasets import folder
from gdt.preprocess.datasets.listing import Missing, Video
from gdt.preprocess.synthetic import generate, hard


def make(source: Path) -> None:
    """Generate the default set into `source` unless a complete set is there."""
    if not (source / "synthetic.json").is_file():
        generate(source)


def listing(source: Path) -> Iterator[Video | Missing]:
    """One video per file; ids are file stems, as in captions."""
    for item in folder.tree(source):
        yield replace(item, id=item.path.stem) if isinstance(item, Video) else item


def make_hard(source: Path) -> None:
    """Generate the default harder set into `source` unless a complete one is there."""
    if not (source / "synthetic-hard.json").is_file():
        hard.generate(source)


def listing_hard(source: Path) -> Iterator[Video | Missing]:
    """One video per file, by its stem, with the columns of labels.csv."""
    for item in folder.listing(source):
        yield replace(item, id=item.path.stem) if isinstance(item, Video) else item
