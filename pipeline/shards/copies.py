"""Videos of one split that are also in another, as other files of the same bytes: what is tested was trained on."""

from itertools import combinations

import numpy as np

from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import SPLITS


def between_splits(index: Index, split: str = "") -> list[str]:
    """A line for each pair of splits that share videos, by default of all pairs, else of those with `split`."""
    lines = []
    for first, second in combinations(SPLITS, 2):
        if split in ("", first, second):
            among = np.flatnonzero(index.split == first)
            of = np.flatnonzero(index.split == second)
            shared = copies(index, of, among)
            if shared:
                lines.append(f"{shared} of {len(of)} {second} videos are also in {first}, as other files")
    return lines


def copies(index: Index, of: np.ndarray, among: np.ndarray) -> int:
    """How many of some videos have the same content as one of the others; both are rows of the index, int64.

    Parts of one file have the same hash, but other segments.
    """
    contents = {(index.hash[row], index.segment[row]) for row in among.tolist()}
    return sum(bool(index.hash[row]) and (index.hash[row], index.segment[row]) in contents for row in of.tolist())
