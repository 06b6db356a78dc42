"""The videos of an evaluation: galleries and queries by official folds, splits and labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.settings import Downstream
from gdt.pipeline.clips import usable
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import LABEL_SEPARATOR, Index


@dataclass(frozen=True)
class Fold:
    """Gallery and queries."""

    number: int
    """Official fold; 0 for the splits of the shards."""
    gallery: np.ndarray
    """Videos to search or to train on: rows of the index, int64."""
    queries: np.ndarray
    """Videos to evaluate: rows of the index, int64."""
    gallery_label: np.ndarray
    query_label: np.ndarray

    def digest(self, ids: np.ndarray) -> str:
        """Hash of the ids and labels of gallery and queries, given the ids of the index."""
        videos = [ids[self.gallery].tolist(), ids[self.queries].tolist()]
        text = json.dumps([*videos, self.gallery_label.tolist(), self.query_label.tolist()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def videos(self) -> np.ndarray:
        return np.union1d(self.gallery, self.queries)

    def having(self, index: Index, clip: Clip, modalities: Collection[str]) -> Fold:
        """The videos with these modalities; see `pipeline.clips.usable`.

        Raises UserError if no query or no gallery video is left.
        """
        present = usable(index, clip, modalities)
        gallery = present[self.gallery]
        queries = present[self.queries]
        if not (gallery.any() and queries.any()):
            what, other = ("as long as a clip", "video") if "audio" in modalities else ("at all", "audio")
            raise UserError(
                f"{gallery.sum()} videos of the gallery and {queries.sum()} queries have {' and '.join(modalities)} "
                f"{what}; set --modalities to {other}"
            )
        labels = (self.gallery_label[gallery], self.query_label[queries])
        return Fold(self.number, self.gallery[gallery], self.queries[queries], *labels)


def gallery_split(given: str, index: Index, query_split: str) -> str:
    """The split of the gallery: the given one, or by default train, or val if only that has labels."""
    if given:
        return given
    labelled = {split for split in ("train", "val") if len(_members(index, split))}
    return "val" if labelled == {"val"} and query_split != "val" else "train"


def folds(settings: Downstream, protocol: str, index: Index, query_split: str) -> list[Fold]:
    """The videos that a protocol evaluates, of which models with other modalities take a part (`Fold.having`).

    Without labels, those of a split, else the folds of --folds, or all. Raises UserError if there is no such fold, it
    has no labelled videos, or the protocol does not take such labels.
    """
    facts = PROTOCOLS[protocol]
    if not facts.labels:
        return [held_out(index, query_split)]
    cell = several_labels(index)
    if cell and not facts.several:
        raise UserError(
            f"videos have several labels in the column '{settings.label or 'label'}' (first: '{cell}'), and {protocol} "
            "takes one; set --protocols multilabel, or --label to another column"
        )
    numbers = dict.fromkeys(settings.folds) or index.official_folds or (0,)
    splits = (gallery_split(settings.gallery_split, index, query_split), query_split)
    if splits[0] == query_split:
        raise UserError(
            f"gallery and queries are both the split '{query_split}', so every video would find itself; change "
            "--query-split or --gallery-split"
        )
    return [_fold(settings, facts.several, index, splits, number) for number in numbers]


def _fold(settings: Downstream, several: bool, index: Index, splits: tuple[str, str], number: int) -> Fold:
    index = index.fold(number) if number else index
    gallery, queries = (_members(index, split, several) for split in splits)
    for split, videos in zip(splits, (gallery, queries), strict=True):
        if not len(videos):
            raise UserError(_no_labels(index, number, settings.label, split))
    return Fold(number, gallery, queries, index.label[gallery].astype(str), index.label[queries].astype(str))


def _no_labels(index: Index, number: int, column: str, split: str) -> str:
    """The message about a split without labels in a column."""
    where = f"fold {number} of {index.folder}" if number else str(index.folder)
    others = ", ".join(sorted({*index.split[index.label != ""]})) or "none"
    columns = f" ({', '.join(sorted(index.columns))})" if index.columns else ""
    return (
        f"{where} has no labelled videos in the split '{split}' (labels of '{column or 'label'}' are in: {others}); "
        f"choose another fold, split or label column{columns}, or add labels.csv and repeat 'gdt preprocess' (nothing "
        "is decoded again)"
    )


def _members(index: Index, split: str, several: bool = False) -> np.ndarray:
    """The labelled videos of a split; with `several` labels, also those of none, which are negatives of all."""
    inside = index.split == split
    labelled = inside & (index.label != "")
    return np.flatnonzero(inside if several and labelled.any() else labelled)


def several_labels(index: Index) -> str:
    """The first cell with several labels; empty if there is none."""
    return next((cell for cell in index.label.tolist() if LABEL_SEPARATOR in cell), "")


def held_out(index: Index, split: str) -> Fold:
    """All videos of a split as queries, without labels or gallery. Raises UserError if there are none."""
    videos = np.flatnonzero(index.split == split)
    if not len(videos):
        raise UserError(
            f"{index.folder} has no videos in the split '{split}', only in {', '.join(sorted({*index.split}))}; choose "
            "another split, or hold videos out: repeat 'gdt preprocess' with --test 0.1 (nothing is decoded again), "
            "and pretrain again"
        )
    none = np.zeros(0, np.int64)
    return Fold(0, none, videos, none.astype(str), np.full(len(videos), ""))
