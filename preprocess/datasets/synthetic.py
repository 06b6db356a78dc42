"""Synthetic data sets, generated if they are missing (see preprocess/synthetic).

source/train/bounce/*.mp4, source/val/..., source/test/..., source/captions.json or labels.csv, source/<data set>.json
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from gdt.common.errors import UserError
from gdt.preprocess.datasets import folder
from gdt.preprocess.datasets.listing import DataSet, Missing, Video


def data(name: str) -> DataSet:
    """The synthetic data set of this name."""
    return DataSet(_listing, folder.TREE, generate=partial(_generate, name))


def _generate(name: str, source: Path, chosen: bool) -> None:
    """Generate the default set into `source`, unless a complete set is there.

    Raises UserError if the user chose `source` and it holds no generated set, but other videos or nothing.
    """
    from gdt.preprocess.synthetic import generate, generated
    from gdt.preprocess.synthetic.files import UNFINISHED

    settings = generated(name)()
    marker = source / settings.marker
    if marker.is_file():
        return
    if chosen and not marker.with_name(marker.name + UNFINISHED).is_file():
        state = f"holds no {marker.name}, so it is not {name}" if source.exists() else "does not exist"
        raise UserError(
            f"{source} {state}; set --source to a folder of videos and --dataset to folder, or leave out --source to "
            f"generate {name}"
        )
    generate(source, settings)


def _listing(source: Path) -> Iterator[Video | Missing]:
    """One video per file, with the columns of labels.csv; its id is the stem, as in the captions."""
    for item in folder.listing(source):
        yield replace(item, id=item.path.stem) if isinstance(item, Video) else item
