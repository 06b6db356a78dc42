"""What protocols share: the data, settings and device of an evaluation, and the features, kept in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.common.wording import plural
from gdt.eval.conditions import features_path, only_decisive
from gdt.eval.extract import PooledFeatures, cached_features
from gdt.eval.features import sameness
from gdt.eval.folds import Fold
from gdt.eval.metrics import Measured
from gdt.eval.protocols import PROTOCOLS
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


@dataclass
class Evaluator:
    """The evaluation set, settings and device of an evaluation, with the features, kept in files."""

    settings: Downstream
    eval_set: EvalSet
    device: torch.device
    out: Path
    words: WordVectors | None

    def select(self, model: Subject, protocol: str, fold: Fold) -> Selection:
        """The videos of a fold that a protocol evaluates. Raises UserError if none is left."""
        facts = PROTOCOLS[protocol]
        if not facts.labels:
            return Selection(fold)
        modalities = self.settings.modalities
        left_out = ""
        warning = ""
        kept = fold.having(self.eval_set.index, model.trained.settings.clip, modalities)
        lacking = len(fold.videos) - len(kept.videos)
        if lacking:
            short = ", or sound is shorter than a clip" if "audio" in modalities else ""
            left_out = f"{plural(lacking, 'video')} whose {' or '.join(modalities)} is missing{short}"
        alone = int((~np.isin(kept.query_label, kept.gallery_label)).sum())
        if alone and not facts.several:
            what = f"{alone} of {len(kept.queries)} queries are of classes without gallery videos"
            warning = f"{what}: any model gets them wrong"
        settings = only_decisive(self.settings, protocol)
        return Selection(_subsample(kept, settings.train_samples, settings.seed), left_out, warning)

    def run(self, model: Subject, protocol: str, fold: Fold, folder: Path) -> Outcome:
        """Evaluate a model on the videos of a fold; a protocol that trains writes to `folder`.

        Raises UserError if the model or the videos do not fit the protocol.
        """
        function: ProtocolFunction = resolve_name(f"gdt.{PROTOCOLS[protocol].function}")
        with_own_settings = replace(self, settings=only_decisive(self.settings, protocol))
        return function(with_own_settings, model, fold, folder)

    def sameness(self, model: Subject, protocol: str, fold: Fold) -> str:
        """A warning of a protocol on frozen features that are nearly the same for all videos; empty without."""
        frozen = PROTOCOLS[protocol].labels and not PROTOCOLS[protocol].trains
        if model.random or not frozen:
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
