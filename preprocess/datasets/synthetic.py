"""The synthetic data set, generated if it is missing (see preprocess/synthetic).

source/train/bounce/*.mp4, source/val/..., source/test/..., source/captions.json, source/synthetic.json
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gdt.common.errors import UserError
from gdt.preprocess.datasets import folder
from gdt.preprocess.datasets.listing import DataSet, Missing, Video


def _generate(source: Path, chosen: bool) -> None:
    """Generate the default set into `source`, unless a complete set is there.

    Raises UserError if the user chose `source` and it holds no generated set, but other videos or nothing.
    """
    from gdt.preprocess.synthetic import Synthetic, generate
    from gdt.preprocess.synthetic.files import MARKER, UNFINISHED

    if (source / MARKER).is_file():
        return
    if chosen and not (source / (MARKER + UNFINISHED)).is_file():
        state = f"holds no {MARKER}, so it is not synthetic" if source.exists() else "does not exist"
        raise UserError(
            f"{source} {state}; set --source to a folder of videos and --dataset to folder, or leave out --source to "
            "generate synthetic"
        )
    generate(source, Synthetic())


def _listing(source: Path) -> Iterator[Video | Missing]:
    """One video per file, with the columns of labels.csv; its id is the stem, as in the captions."""
    for item in folder.listing(source):
        yield replace(item, id=item.path.stem) if isinstance(item, Video) else item


DATA = DataSet(_listing, folder.TREE, generate=_generate)
