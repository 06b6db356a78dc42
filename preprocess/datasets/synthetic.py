"""The generated data set, made where it is not there yet (see preprocess/synthetic for what it holds).

source/train/bounce/*.mp4, source/val/..., source/test/..., source/captions.json, source/synthetic.json
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from preprocess.datasets import folder
from preprocess.datasets.listing import Missing, Video
from preprocess.synthetic import generate


def make(source: Path) -> None:
    """Generate the default set into `source` unless a complete set is there."""
    if not (source / "synthetic.json").is_file():
        generate(source)


def listing(source: Path) -> Iterator[Video | Missing]:
    """One video per file; ids are file stems, as in captions."""
    for item in folder.tree(source):
        yield replace(item, id=item.path.stem) if isinstance(item, Video) else item
