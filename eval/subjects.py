"""The models of an evaluation and the videos of its folds."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError, plural
from gdt.common.folders import Folder
from gdt.common.stores import Place, folder_at
from gdt.eval.paper import PAPER
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.results import RANDOM
from gdt.eval.settings import Downstream
from gdt.pipeline.clips import usable
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import LABEL_SEPARATOR, Index, fingerprint, require_index
from gdt.pipeline.shards.layout import INDEX
from gdt.pipeline.shards.naming import dataset_name, shard_folder
from gdt.train.checkpoint import load_trained
from gdt.train.models.given import Makers
from gdt.train.run import CHECKPOINT, SETTINGS, from_file, latest_checkpoint
from gdt.train.trained import Trained

FINETUNED = "finetuned.pt"
"""The weights in the folder of a finetuning."""
_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".pyth", ".safetensors", ".tar")
"""Suffixes of files of weights."""
_LISTED = 10
"""Most runs that a message names."""


@dataclass(frozen=True)
class Subject:
    """A model of an evaluation: a row of the table."""

    name: str
    path: str
    trained: Trained
    random: bool

    @cached_property
    def digest(self) -> str:
        """Digest of the weights, the statistics of their inputs, the clip and the crops."""
        return self.trained.digest()

    @property
    def folder(self) -> str:
        return folder_name(self.name, self.digest)

    def name_on(self, fold: Fold) -> str:
        """Its name, and the fold if there is one."""
        return f"{self.name}, fold {fold.number}" if fold.number else self.name

    def embedded_modalities(self, index: Index, settings: Downstream) -> list[str]:
        """The modalities that the shards have and for which the model has a network with a head."""
        present = {"video": index.frame_count.any(), "audio": index.mel_count.any(), "text": settings.word2vec}
        with_head = [name for name in self.trained.model.modalities if name not in self.trained.without_head]
        return [name for name in with_head if present[name]]

    def seen(self, data: Data, videos: np.ndarray) -> int:
        """How many of these videos (rows of the index) it was pretrained on, without labels; -1 if unknown.

        The splits of official folds overlap with that of pretraining.
        """
        settings = self.trained.settings
        if self.random:
            return 0
        if self.trained.fingerprint != data.fingerprint:
            # weights from elsewhere do not name their data, which was not that of the benchmarks
            others = data.dataset != settings.dataset if settings.dataset else data.dataset in PAPER
            return 0 if others and not settings.init else -1
        # the fingerprint covers the splits, so this index has those of the pretraining
        count = int((data.index.split[videos] == settings.split).sum())
        return count if count or not settings.init else -1


@dataclass(frozen=True)
class Data:
    """The shards that models are evaluated on."""

    dataset: str
    index: Index
    fingerprint: str
    split: str

    @classmethod
    def open(cls, path: str, first: Trained, dataset: str, shards: Place | None, split: str, cache: str = "") -> Data:
        """Open shards.

        Without both `dataset` and `shards`, those that the first checkpoint, at `path`, was pretrained on (its shards
        also if `dataset` names them and they are not in the usual folder). `split` is by default test, or val without
        a test split or official folds. Raises UserError if the shards are not known or cannot be used.
        """
        if first.origin is not None and not (dataset or shards):
            raise UserError(f"{path} does not name its data set; set --dataset to the one to evaluate on")
        name = dataset_name(dataset, shards) if dataset or shards else first.settings.dataset
        same = not shards and name == first.settings.dataset
        if same and (not dataset or not shard_folder(name).exists(INDEX)):
            shards = pretraining_shards(first, path)
        index = open_index(name, shard_folder(name, shards), cache)
        only_val = "val" in index.split and "test" not in index.split and not official_folds(index)
        split = split or ("val" if only_val else "test")
        return cls(name, index, fingerprint(index), split)


def pretraining_shards(trained: Trained, path: str | Path) -> Folder:
    """The folder of shards that a checkpoint was pretrained on.

    Raises UserError if it names a store: a downloaded file must not decide which host is asked.
    """
    shards = trained.settings.shard_folder
    if shards.remote:
        raise UserError(f"{path} was trained on {shards}; pass it as --shards to use it")
    return shards


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

    @cached_property
    def digest(self) -> str:
        labels = [self.gallery_label.tolist(), self.query_label.tolist()]
        text = json.dumps([self.gallery.tolist(), self.queries.tolist(), labels])
        return hashlib.sha256(text.encode()).hexdigest()

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


def folder_name(model: str, digest: str) -> str:
    """Folder of a model's features and finetuning, by its name and the digest of its weights."""
    return f"{model.replace(' ', '-')}-{digest[:8]}"


def default_checkpoint(dataset: str, shards: Place | None) -> Path:
    """The latest checkpoint in runs, if it was trained on the data set that is evaluated, or that is a benchmark.

    Raises UserError if there is none, or it was trained on another data set.
    """
    paths = sorted(Path("runs").glob(f"*/{CHECKPOINT}"), key=lambda path: path.stat().st_mtime, reverse=True)
    asked = dataset or (str(shards) if shards else "")
    # benchmarks with published results are evaluated after pretraining on other videos
    if not paths or not asked or dataset in PAPER or _was_trained_on(paths[0], dataset, shards):
        return latest_checkpoint()
    suitable = [path for path in paths if _was_trained_on(path, dataset, shards)]
    if not suitable:
        require_index(shard_folder(dataset, shards))
    example = [*suitable, *paths][0].parent
    runs = ", ".join(f"{path.parent} ({_dataset_of(path)})" for path in paths[:_LISTED])
    raise UserError(
        f"the latest run, {paths[0].parent}, was trained on {_dataset_of(paths[0])}, not on {asked}; choose a run, "
        f"such as --ckpt {example}; the latest are: {runs}"
    )


def _was_trained_on(checkpoint: Path, dataset: str, shards: Place | None) -> bool:
    """Whether the run of a checkpoint was trained on this folder of shards, or on this data set."""
    if not shards:
        return _dataset_of(checkpoint) == dataset
    try:
        trained_on = from_file(checkpoint.with_name(SETTINGS)).shard_folder
        return trained_on.resolve() == folder_at(shards).resolve()
    except UserError:
        return False


def _dataset_of(checkpoint: Path) -> str:
    """The data set that the run of a checkpoint was trained on."""
    try:
        return from_file(checkpoint.with_name(SETTINGS)).dataset_name
    except UserError:
        return "an unknown data set"


def subjects(settings: Downstream, first: Trained, given: Makers) -> Iterator[Subject]:
    """Random weights and the checkpoints, selected by --random-weights; `first` is the first checkpoint.

    `given` are networks of the user's own.
    """
    if settings.random_weights != "exclude":
        # those of networks of the user's own may be pretrained
        name = "initial weights" if first.model.network.own else RANDOM
        yield Subject(name, settings.ckpt[0], first.untrained(), True)
    if settings.random_weights == "only":
        return
    for path in dict.fromkeys(settings.ckpt):
        trained = first if path == settings.ckpt[0] else load_trained(path, given)
        if trained.origin is not None:
            print(f"{path} holds {trained.origin}; clips of {trained.settings.clip}")
        if trained.step and not trained.per_step:
            print(
                f"warning: {path} is of an earlier version, which did not record the videos and FLOPs of a step; "
                "tables leave out those of its training",
                file=sys.stderr,
            )
        yield Subject(name_of(path), path, trained, False)


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
    kind = PROTOCOLS[protocol]
    if not kind.labels:
        return [held_out(index, query_split)]
    cell = several_labels(index)
    if cell and not kind.several:
        raise UserError(
            f"videos have several labels in the column '{settings.label or 'label'}' (first: '{cell}'), and {protocol} "
            "takes one; set --protocols multilabel, or --label to another column"
        )
    numbers = dict.fromkeys(settings.folds) or official_folds(index) or (0,)
    splits = (gallery_split(settings.gallery_split, index, query_split), query_split)
    if splits[0] == query_split:
        raise UserError(
            f"gallery and queries are both the split '{query_split}', so every video would find itself; change "
            "--query-split or --gallery-split"
        )
    return [_fold(settings, kind.several, index, splits, number) for number in numbers]


def _fold(settings: Downstream, several: bool, index: Index, splits: tuple[str, str], number: int) -> Fold:
    index = index.fold(number) if number else index
    gallery, queries = (_members(index, split, several) for split in splits)
    for split, videos in zip(splits, (gallery, queries), strict=True):
        if not len(videos):
            raise UserError(_no_labels(index, number, settings.label, split))
    both = np.intersect1d(gallery, queries)
    if len(both):
        raise UserError(
            f"gallery and queries share {plural(len(both), 'video')} (first: '{index.id[both[0]]}'); check the splits "
            "of your labels"
        )
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


def official_folds(index: Index) -> range:
    """Numbers of the official folds, from 1; empty if there are none."""
    counts = [len(row.split(",")) for row in index.folds if row]
    return range(1, max(counts, default=0) + 1)


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


def open_index(dataset: str, folder: Folder, cache: str = "") -> Index:
    """Open shards. Raises UserError if results are published for `dataset` and the shards are of another."""
    index = Index.open(folder, cache)
    source = index.settings.get("dataset", dataset)
    if dataset in PAPER and source != dataset:
        raise UserError(
            f"the shards in {folder} were made from the data set '{source}', not '{dataset}'; set --shards to "
            "others, or preprocess again"
        )
    return index


def name_of(weights: str | Path) -> str:
    """Name of a checkpoint in tables: its run's folder, with the fold for finetuned weights, or its file name."""
    path = Path(weights)
    if path.is_dir():
        return path.resolve().name
    if path.name == FINETUNED:
        run = path.resolve().parent
        return f"{run.parent.name}-{run.name.rpartition('-')[0]}"
    if path.name == CHECKPOINT:
        return path.resolve().parent.name
    return path.stem if path.suffix in _SUFFIXES else path.name  # hf://owner/model-v1.2 has none
