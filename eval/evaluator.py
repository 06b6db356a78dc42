"""What protocols share: the data, settings and device of an evaluation, and its cache of features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from gdt.common.errors import plural
from gdt.eval.conditions import features_path, only_decisive
from gdt.eval.extract import PooledFeatures, cached
from gdt.eval.metrics import Measured
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.settings import Downstream
from gdt.eval.similarity import unit
from gdt.eval.subjects import Data, Fold, Model, subsample
from gdt.pipeline.word2vec import WordVectors


class Outcome(NamedTuple):
    """What a protocol returns."""

    metrics: dict[str, Measured]
    details: Mapping[str, str] = MappingProxyType({})
    """What else decides the numbers, as text."""
    queries: np.ndarray | None = None
    """Queries that were evaluated, if the protocol could not use all: rows of the index, int64."""


@dataclass
class Evaluator:
    """Data, settings and device of an evaluation, with its cache of features."""

    settings: Downstream
    data: Data
    device: torch.device
    out: Path
    """Folder of results and features."""
    words: WordVectors | None
    _latest: dict[Path, PooledFeatures] = field(default_factory=dict)
    """Features kept in memory, of one model, by file."""

    def select(self, model: Model, protocol: str, fold: Fold) -> tuple[Fold, dict[str, str]]:
        """The videos of a fold that a protocol evaluates, and what to say of those that it does not.

        Raises UserError if none is left.
        """
        kind = PROTOCOLS[protocol]
        if not kind.labels:
            return fold, {}
        modalities = self.settings.modalities
        notes: dict[str, str] = {}
        kept = fold.having(self.data.index, model.trained.settings.clip, modalities)
        if lacking := len(fold.videos) - len(kept.videos):
            short = ", or sound is shorter than a clip" if "audio" in modalities else ""
            notes["left out"] = f"{plural(lacking, 'video')} whose {' or '.join(modalities)} is missing{short}"
        if not kind.several and (n := int((~np.isin(kept.query_label, kept.gallery_label)).sum())):
            what = f"{n} of {len(kept.queries)} queries are of classes without gallery videos"
            notes["warning"] = f"{what}: any model gets them wrong"
        settings = only_decisive(self.settings, protocol)
        return subsample(kept, settings.train_samples, settings.seed), notes

    def run(self, model: Model, protocol: str, fold: Fold, folder: Path) -> Outcome:
        """Run a protocol with its own settings, others at their defaults; see `Protocol.run`."""
        own = replace(self, settings=only_decisive(self.settings, protocol))
        return PROTOCOLS[protocol].run(own, model, fold, folder)

    def features(self, model: Model, videos: np.ndarray, modality: str) -> PooledFeatures:
        """Features of at least these videos, extracted once."""
        data, clips, device = self.data, self.settings.clips, self.device
        path = features_path(self.out / model.folder, data.fingerprint, clips, device.type, modality)
        found = self._latest.get(path)
        if found is None or not np.isin(videos, found.videos).all():
            if any(other.parent != path.parent for other in self._latest):
                self._latest.clear()
            found = cached(path, model.trained, data.index, videos, clips, device, modality)
            self._latest[path] = found
        return found

    def pooled(self, model: Model, fold: Fold, pooling: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Features [n, dim] and labels of queries, then of the gallery, "average" or "maximum" pooled.

        Those of several --modalities are scaled to length 1 and joined.
        """
        parts: list[list[np.ndarray]] = []
        for modality in self.settings.modalities:
            features = self.features(model, fold.videos, modality)
            values: np.ndarray = getattr(features, pooling)
            values = values if len(self.settings.modalities) == 1 else unit(values)
            parts.append([values[features.positions(videos)] for videos in (fold.queries, fold.gallery)])
        query, gallery = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
        return query, fold.query_label, gallery, fold.gallery_label
