"""What a protocol is given: its data, settings and device, and the features, kept in files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.common.wording import plural
from gdt.eval.conditions import conditions_of, features_path
from gdt.eval.extract import PooledFeatures, cached_features
from gdt.eval.features import sameness
from gdt.eval.folds import Fold
from gdt.eval.metrics import Measured
from gdt.eval.protocols import Protocol
from gdt.eval.settings import Downstream
from gdt.eval.similarity import unit
from gdt.eval.subjects import EvalSet, Subject
from gdt.pipeline.word2vec import WordVectors


class Outcome(NamedTuple):
    """What a protocol returns."""

    metrics: dict[str, Measured]
    details: Mapping[str, str] = MappingProxyType({})
    """What else decides the numbers, as text."""
    queries: np.ndarray | None = None
    """Queries that were evaluated, if the protocol could not use all: rows of the index, int64."""
    warning: str = ""
    """What to say below the table; empty without."""


class Selection(NamedTuple):
    """The videos of a fold that a protocol evaluates."""

    fold: Fold
    left_out: str = ""
    """Those that it does not evaluate, in words; empty without."""
    warning: str = ""
    """As in Outcome."""


@dataclass(frozen=True)
class Evaluator:
    """A protocol of an evaluation with a column of labels: all that decides its numbers, besides the model."""

    protocol: Protocol
    settings: Downstream
    """Those that decide the protocol's numbers, with the gallery's split; the others are at their defaults."""
    eval_set: EvalSet
    """With the labels of the column."""
    folds: list[Fold]
    device: torch.device
    out: Path
    """Folder of the results."""
    words: WordVectors | None

    def conditions(self, fold: Fold) -> str:
        """Digest of all that decides the numbers on a fold, besides the model."""
        return conditions_of(self.settings, self.protocol.name, self.eval_set, fold, self.device.type, self.words)

    def select(self, model: Subject, fold: Fold) -> Selection:
        """The videos of a fold that the protocol evaluates. Raises UserError if none is left."""
        if not self.protocol.labels:
            return Selection(fold)
        modalities = self.settings.modalities
        left_out = ""
        warning = ""
        kept = fold.having(self.eval_set.index, model.trained.settings.clip, modalities)
        lacking = len(fold.videos) - len(kept.videos)
        if lacking:
            short = ", or sound is shorter than a clip" if "audio" in modalities else ""
            left_out = f"{plural(lacking, 'video')} whose {' or '.join(modalities)} is missing{short}"
        chosen = _subsample(kept, self.settings.train_samples, self.settings.seed)
        alone = int((~np.isin(chosen.query_label, chosen.gallery_label)).sum())
        if alone and not self.protocol.several:
            what = f"{alone} of {len(chosen.queries)} queries are of classes without gallery videos"
            warning = f"{what}: any model gets them wrong"
        return Selection(chosen, left_out, warning)

    def sameness(self, model: Subject, fold: Fold) -> str:
        """A warning of a protocol on frozen features that are nearly the same for all videos; empty without."""
        if model.random or self.protocol.trains or not self.protocol.labels:
            return ""
        return sameness({name: self.features(model, fold.videos, name).average for name in self.settings.modalities})

    def features(self, model: Subject, videos: np.ndarray, modality: str) -> PooledFeatures:
        """Features of at least these videos, extracted once."""
        clips = self.settings.clips
        path = features_path(self.out / model.folder, self.eval_set.fingerprint, clips, self.device.type, modality)
        return cached_features(path, model.trained, self.eval_set.index, videos, clips, self.device, modality)

    def pooled(self, model: Subject, fold: Fold, pooling: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Features [n, dim] and labels of queries, then of the gallery, "average" or "maximum" pooled.

        Those of several --modalities are scaled to length 1 and joined.
        """
        queries: list[np.ndarray] = []
        galleries: list[np.ndarray] = []
        for modality in self.settings.modalities:
            features = self.features(model, fold.videos, modality)
            values: np.ndarray = getattr(features, pooling)
            if len(self.settings.modalities) > 1:
                values = unit(values)
            queries.append(values[features.positions(fold.queries)])
            galleries.append(values[features.positions(fold.gallery)])
        query = np.concatenate(queries, axis=1)
        gallery = np.concatenate(galleries, axis=1)
        return query, fold.query_label, gallery, fold.gallery_label


ProtocolFunction = Callable[[Evaluator, Subject, Fold, Path], Outcome]
"""The function of a protocol."""


def _subsample(fold: Fold, samples: int, seed: int) -> Fold:
    """Draw `samples` training videos at random; 0: all."""
    if not samples:
        return fold
    videos = len(fold.gallery)
    if samples > videos:
        raise UserError(f"--train-samples is {samples}, but there are only {videos} training videos; lower it")
    rng = generator(Stream.FINETUNING_VIDEOS, seed, fold.number)
    chosen = np.sort(rng.choice(videos, samples, replace=False))
    return replace(fold, gallery=fold.gallery[chosen], gallery_label=fold.gallery_label[chosen])
