"""The models of an evaluation, and the shards that they are evaluated on."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.eval.features import Features
from gdt.eval.folds import Fold
from gdt.eval.paper import PAPER
from gdt.eval.results import RANDOM
from gdt.eval.settings import Downstream
from gdt.pipeline.shards.index import Index, fingerprint, require_index
from gdt.pipeline.shards.layout import INDEX
from gdt.pipeline.shards.naming import dataset_name, shard_folder
from gdt.train.checkpoint import load_trained
from gdt.train.models.own import Makers
from gdt.train.record import from_file
from gdt.train.run import CHECKPOINT, SETTINGS_FILE, checkpoints, latest_checkpoint
from gdt.train.trained import Trained

FINETUNED = "finetuned.pt"
"""The weights in the folder of a finetuning."""
_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".pyth", ".safetensors", ".tar")
"""Suffixes of files of weights."""


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
        """Folder of its features and finetuning."""
        return f"{self.name.replace(' ', '-')}-{self.digest[:8]}"

    def name_on(self, fold: Fold) -> str:
        """Its name, and the fold if there is one."""
        return f"{self.name}, fold {fold.number}" if fold.number else self.name

    def embedded_modalities(self, index: Index, settings: Downstream) -> list[str]:
        """The modalities that the shards have and for which the model has a network with a head."""
        present = {"video": index.frame_count.any(), "audio": index.mel_count.any(), "text": settings.word2vec}
        with_head = [name for name in self.trained.model.modalities if name not in self.trained.without_head]
        return [name for name in with_head if present[name]]

    def seen(self, eval_set: EvalSet, videos: np.ndarray) -> int:
        """How many of these videos (rows of the index) it was pretrained on, without labels; -1 if unknown.

        Also -1 if its weights were finetuned on unknown videos; those of known ones are not evaluated on them.
        The splits of official folds overlap with that of pretraining.
        """
        settings = self.trained.settings
        origin = self.trained.origin
        if self.random:
            return 0
        if origin and origin.finetuned and not origin.finetuned_on:
            return -1
        if self.trained.record.fingerprint != eval_set.fingerprint:
            # weights from elsewhere do not name their data, which was not that of the benchmarks
            others = eval_set.dataset != settings.dataset if settings.dataset else eval_set.dataset in PAPER
            return 0 if others and not settings.init else -1
        # the fingerprint covers the splits, so this index has those of the pretraining
        count = int((eval_set.index.split[videos] == settings.split).sum())
        return count if count or not settings.init else -1


@dataclass(frozen=True)
class EvalSet:
    """The shards that models are evaluated on."""

    dataset: str
    index: Index
    fingerprint: str
    split: str

    @classmethod
    def open(
        cls, path: str, first: Trained, dataset: str, shards: Folder | Path | None, split: str, cache: str = ""
    ) -> EvalSet:
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
        return cls.of(name, index, split)

    def names(self, videos: np.ndarray) -> list[tuple[str, str]]:
        """Names of videos (rows of the index) for files of weights, by data set and by shards; ids may be paths."""

        def name(source: str, id: str) -> str:
            return hashlib.blake2b(f"{source} {id}".encode(errors="surrogateescape"), digest_size=8).hexdigest()

        return [(name(self.dataset, id), name(self.fingerprint, id)) for id in self.index.id[videos]]

    @classmethod
    def of(cls, dataset: str, index: Index, split: str = "") -> EvalSet:
        """Shards that are open, with the default split."""
        only_val = "val" in index.split and "test" not in index.split and not index.official_folds
        return cls(dataset, index, fingerprint(index), split or ("val" if only_val else "test"))


def pretraining_shards(trained: Trained, path: str | Path) -> Folder:
    """The folder of shards that a checkpoint was pretrained on. Raises UserError as `local_shards`."""
    return local_shards(trained.settings.shard_folder, f"{path} was trained on")


def local_shards(shards: str | Folder, of: str) -> Folder:
    """The folder of shards that a file names. Raises UserError, after the words `of`, if it is in a store.

    A downloaded file must not decide which host is asked.
    """
    folder = Folder(shards)
    if folder.remote:
        raise UserError(f"{of} {folder}; pass it as --shards to use it")
    return folder


def shards_of(stored: Features) -> Index | None:
    """The shards that features were made of; None for those of files, and, with a note, if they are not there."""
    name = stored.metadata.get("shards")
    try:
        return Index.open(local_shards(name, "features are of")) if name else None
    except UserError as error:
        print(f"note: pictures and splits are not known: {error}", file=sys.stderr)
        return None


def default_checkpoint(dataset: str, shards: Folder | Path | None) -> Path:
    """The latest checkpoint in runs, for other data than a benchmark of a run that was trained on it.

    Raises UserError if there is none.
    """
    paths = checkpoints()
    # benchmarks with published results are evaluated after pretraining on other videos
    if paths and (dataset or shards) and dataset not in PAPER:
        paths = [path for path in paths if _was_trained_on(path, dataset, shards)]
        if not paths:
            require_index(shard_folder(dataset, shards))
            raise UserError(f"no run in runs was trained on {dataset or shards}; choose one with --ckpt")
    return latest_checkpoint(paths)


def _was_trained_on(checkpoint: Path, dataset: str, shards: Folder | Path | None) -> bool:
    """Whether the run of a checkpoint was trained on this folder of shards, or on this data set."""
    try:
        settings = from_file(checkpoint.with_name(SETTINGS_FILE))
    except UserError:
        return False
    if not shards:
        return settings.dataset_name == dataset
    return Path(str(settings.shard_folder)).resolve() == Path(str(Folder(shards))).resolve()


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
        yield Subject(name_of(path), path, trained, False)


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
