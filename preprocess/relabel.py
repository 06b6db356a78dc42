"""Count the videos whose label, split, folds or further columns changed between two indexes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdt.pipeline.shards.index import read_annotations
from gdt.pipeline.shards.seal import Damaged


class AnnotationKeys(NamedTuple):
    """Hashes of the annotations of every video, 16 bytes each: they are kept in memory while videos are decoded."""

    ids: np.ndarray
    """Hashes of the ids, uint64 [n_videos]."""
    annotations: np.ndarray
    """Hashes of label, split, folds and further columns, uint64 [n_videos]."""

    @staticmethod
    def read(folder: Path) -> AnnotationKeys:
        """Those of the index in a folder; empty without a readable one."""
        try:
            ids, annotations = read_annotations(folder)
        except (OSError, Damaged):
            return AnnotationKeys(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        names = sorted(annotations)
        prefixes = [name.encode() + b"\0" for name in names]
        rows = zip(*(annotations[name].tolist() for name in names), strict=True)
        # empty values are skipped, so that a new column changes only the videos that have a value in it
        texts = (
            b"\0".join(prefix + value for prefix, value in zip(prefixes, row, strict=True) if value) for row in rows
        )
        return AnnotationKeys(_keys(ids.tolist(), len(ids)), _keys(texts, len(ids)))

    def count_changes(self, other: AnnotationKeys) -> int:
        """Number of videos in both indexes whose annotations differ."""
        _, here, there = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        return int(np.count_nonzero(self.annotations[here] != other.annotations[there]))


def _keys(texts: Iterable[bytes], count: int) -> np.ndarray:
    keys = (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") for text in texts)
    return np.fromiter(keys, np.uint64, count)
