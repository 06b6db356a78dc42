"""Whether an index says of its videos what another says, and of how many it does not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdt.pipeline.shards.index import Annotations, read_annotations
from gdt.pipeline.shards.seal import Damaged


class Marks(NamedTuple):
    """What an index says of every video, in 16 bytes each: it is to be remembered while videos are decoded."""

    ids: np.ndarray
    """Keys of the ids, uint64 [n_videos]."""
    said: np.ndarray
    """Keys of label, split, folds and further columns, uint64 [n_videos]."""

    @staticmethod
    def of(folder: Path) -> Marks:
        """Those of the index that is there, none where there is none that can be read."""
        try:
            ids, said = read_annotations(folder)
        except (OSError, Damaged):
            return Marks(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        names = sorted(said)
        prefixes = [name.encode() + b"\0" for name in names]
        rows = zip(*(said[name].tolist() for name in names), strict=True)
        # what nothing is said in is as if it were not there, so that a new column changes only who has something in it
        texts = (
            b"\0".join(prefix + value for prefix, value in zip(prefixes, row, strict=True) if value) for row in rows
        )
        return Marks(_keys(ids.tolist(), len(ids)), _keys(texts, len(ids)))

    def differing(self, other: Marks) -> int:
        """How many of the videos that both indexes hold are said to be something else."""
        _, here, there = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        return int(np.count_nonzero(self.said[here] != other.said[there]))


def same(one: Annotations, other: Annotations) -> bool:
    """Whether two indexes of the same videos say the same of each, in the same columns."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _keys(texts: Iterable[bytes], count: int) -> np.ndarray:
    keys = (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") for text in texts)
    return np.fromiter(keys, np.uint64, count)
