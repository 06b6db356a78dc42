"""Who is evaluated, and on whom: models, and the videos of folds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.finetune import WEIGHTS
from gdt.eval.record import RANDOM, Record, TrainedOn, settings_of
from gdt.eval.settings import Downstream
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.layout import shard_folder
from gdt.train.checkpoint import NAME, Trained, load_model
from gdt.train.tensors import raw


@dataclass(frozen=True)
class Model:
    """A row of the table."""

    name: str
    path: Path
    trained: Trained
    random: bool

    @cached_property
    def digest(self) -> str:
        """Of the weights, of what their inputs are normalised with, and of the clips and crops they take."""
        value = hashlib.sha256()
        for name, tensor in sorted(self.trained.model.state_dict().items()):
            value.update(name.encode())
            value.update(raw(tensor))
        statistics, settings = self.trained.statistics, self.trained.settings
        inputs = [statistics and statistics.to_numbers(), asdict(settings.clip), asdict(settings.augmentation)]
        value.update(json.dumps(inputs).encode())
        return value.hexdigest()

    @property
    def folder(self) -> str:
        return folder_name(self.name, self.digest)

    def unnormalised(self, index: Index) -> tuple[str, ...]:
        """What is to be said where it has no statistics of its own, and takes those of the shards."""
        if self.trained.statistics is not None:
            return ()
        return (f"{self.path} does not say how its inputs were normalised; those of {index.folder} are, instead",)

    def trained_on(self, data: str, split: str) -> TrainedOn:
        """Whether it has learned, without labels, from a split of the shards with a fingerprint."""
        if self.random:
            return "others"
        if self.trained.data != data:
            return "unknown"
        return "these" if self.trained.settings.split == split else "others"

    def record(self, data: Data, settings: Any, **found: Any) -> Record:
        """The record of what was found of it: see there for the fields that `found` has to name."""
        trained = self.trained
        return Record(
            model=self.name,
            weights=self.digest,
            checkpoint=self.path,
            preset=RANDOM if self.random else trained.name,
            step=trained.step,
            seed=trained.settings.seed,
            trained_on=self.trained_on(data.fingerprint, data.split),
            pretraining=trained.settings,
            dataset=data.dataset,
            shards=data.index.folder,
            data=data.fingerprint,
            query_split=data.split,
            settings=settings_of(settings),
            **found,
        )


@dataclass(frozen=True)
class Data:
    """What models are evaluated on."""

    dataset: str
    index: Index
    fingerprint: str
    """Of the shards."""
    split: str
    """Of the videos that are evaluated."""

    @classmethod
    def open(cls, path: Path, first: Trained, dataset: str, shards: Path | None, split: str, label: str) -> Data:
        """The data set that is named, or that the first checkpoint, at `path`, was pretrained on; of its videos those
        of the split, or else of test, or val where there are none of test; with the labels of a column that count.

        Raises UserError where neither is known, or the shards cannot be used.
        """
        if first.foreign is not None and not (dataset or shards):
            raise UserError(f"{path} is of no run of this program; say with --dataset what to evaluate it on")
        name = dataset or first.settings.dataset
        index = open_index(name, shard_folder(name, shards or (None if dataset else first.settings.shards)))
        split = split or ("test" if (index.split == "test").any() else "val")
        return cls(name, index.labelled(label), fingerprint(index), split)


@dataclass(frozen=True)
class Fold:
    """Who is learned from or searched, and who is evaluated."""

    number: int
    gallery: np.ndarray
    """Rows of the index, int64."""
    queries: np.ndarray
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


def folder_name(model: str, digest: str) -> str:
    """The folder of a model's results, in that of an evaluation, by its name and the digest of its weights."""
    return f"{model.replace(' ', '-')}-{digest[:8]}"


def of(model: Model, fold: Fold) -> str:
    """A model and a fold in words."""
    return f"{model.name}{f', fold {fold.number}' if fold.number else ''}"


def models(settings: Downstream, first: Trained, index: Index) -> Iterator[Model]:
    """Random weights and the checkpoints, as far as they are asked for; `first` is the first of these."""
    if settings.random != "no":
        yield Model(RANDOM, settings.ckpt[0], first.untrained(), True)
    if settings.random == "only":
        return
    for path in dict.fromkeys(settings.ckpt):
        trained = first if path == settings.ckpt[0] else load_model(path)
        if trained.foreign is not None:
            print(f"{path} holds {trained.foreign}")
        model = Model(name_of(path), path, trained, False)
        for note in model.unnormalised(index):
            print(note)
        yield model


def checkpoints(first: Trained, paths: Sequence[Path]) -> list[Model]:
    """Models by names of their own, which hold the digest where several have one; `first` is the first of them."""
    paths = list(dict.fromkeys(paths))
    found = [Model(name_of(path), path, load_model(path) if k else first, False) for k, path in enumerate(paths)]
    names = [model.name for model in found]
    return [
        replace(model, name=f"{model.name} ({model.digest[:8]})") if names.count(model.name) > 1 else model
        for model in found
    ]


def folds(settings: Downstream, index: Index, query_split: str) -> list[Fold]:
    """The folds that were asked for, each with its videos. Raises UserError where there is no such fold."""
    official = max((len(row.split(",")) if row else 0 for row in index.folds), default=0)
    numbers = dict.fromkeys(settings.folds) or range(1, official + 1) or (0,)
    return [_fold(settings, index, query_split, number) for number in numbers]


def _fold(settings: Downstream, index: Index, query_split: str, number: int) -> Fold:
    index = index.fold(number) if number else index
    gallery, queries = (_labelled(index, split) for split in (settings.gallery_split, query_split))
    if len(both := np.intersect1d(gallery, queries)):
        raise UserError(f"'{index.id[both[0]]}' and {len(both) - 1} more videos are both gallery and queries")
    if most := settings.gallery_per_class:
        rng = np.random.Generator(np.random.Philox(settings.seed))
        groups = [gallery[index.label[gallery] == label] for label in np.unique(index.label[gallery].astype(str))]
        gallery = np.sort(np.concatenate([rng.permutation(group)[:most] for group in groups]))
    return Fold(number, gallery, queries, index.label[gallery].astype(str), index.label[queries].astype(str))


def held_out(index: Index, split: str) -> Fold:
    """Held-out videos for recall across modalities, which asks no labels. Raises UserError where there are none."""
    videos = np.flatnonzero(index.split == split)
    if not len(videos):
        raise UserError(
            f"{index.folder} has no held-out videos (split '{split}'); the same 'make preprocess' command with "
            'ARGS="--test 0.1" sets some apart and decodes nothing again; what was pretrained until now has learned '
            "from them, so pretrain anew, too"
        )
    none = np.zeros(0, np.int64)
    return Fold(0, none, videos, none.astype(str), np.full(len(videos), ""))


def subsample(fold: Fold, samples: int, seed: int) -> Fold:
    """With so many training videos, drawn at random; all of them for 0."""
    if not samples:
        return fold
    if samples > len(fold.gallery):
        raise UserError(f"--train-samples is {samples}, and there are {len(fold.gallery)} training videos")
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, fold.number])))
    chosen = np.sort(rng.choice(len(fold.gallery), samples, replace=False))
    return replace(fold, gallery=fold.gallery[chosen], gallery_label=fold.gallery_label[chosen])


def open_index(dataset: str, folder: Path) -> Index:
    """The shards. Raises UserError where they are of another official data set than the one that was named."""
    index = Index.open(folder)
    made_of = index.settings.get("dataset", dataset)
    if dataset in ("ucf101", "hmdb51") and made_of != dataset:
        raise UserError(
            f"the shards in {folder} were made of the data set '{made_of}', not '{dataset}'; name the folder of those "
            f"with --shards, or make them with 'make preprocess DATASET={dataset} SOURCE=<your videos>'"
        )
    return index


def _labelled(index: Index, split: str) -> np.ndarray:
    videos = np.flatnonzero((index.split == split) & (index.label != ""))
    if not len(videos):
        raise UserError(
            f"{index.folder} has no labelled videos in the split '{split}'; this protocol needs a train and a test "
            "split with labels (folders train/ and test/ with one folder per class, or a labels.csv)"
        )
    return videos


def name_of(path: Path) -> str:
    """What a checkpoint is called in tables: the folder of its run, of finetuning with its fold, or its own name."""
    if path.is_dir():
        return path.resolve().name
    if path.name == WEIGHTS:
        run = path.resolve().parent
        return f"{run.parent.name}-{run.name.rpartition('-')[0]}"
    return path.resolve().parent.name if path.name == NAME else path.stem
