"""One model by one protocol on one fold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from gdt.common.errors import UserError
from gdt.eval.features import Features, stored
from gdt.eval.finetune import RECIPES, Finetuning, Recipe, Task, tiny, told
from gdt.eval.measures import Measure, share
from gdt.eval.results import sentence
from gdt.eval.retrieval import few_shot, linear_probe, recall, targets
from gdt.eval.settings.downstream import KS, SHOTS, Downstream, Protocol
from gdt.eval.subjects import Fold, Model, of, sampled
from gdt.pipeline.shards.index import Index
from gdt.pipeline.word2vec import WordVectors
from gdt.train import crossmodal
from gdt.train.checkpoint import Trained
from gdt.train.models.gdt import modalities_of

_DRAWS = 20
"""Choices of shots over which few-shot accuracies are averaged."""
FORMAT = 1
"""Raise it when the same settings give other numbers."""


Extracted = dict[str, tuple[Path, np.ndarray]]
"""By the folder of a model: features that this call has stored, of which those of fewer videos may be taken."""


class Evaluated(NamedTuple):
    """What a protocol found."""

    measures: dict[str, Measure]
    how: dict[str, str]
    """How they came about, in words."""
    fold: Fold
    """The videos that in the end took part."""


@dataclass
class Protocols:
    """Where and how models are evaluated."""

    settings: Downstream
    index: Index
    data: str
    """Fingerprint of the shards."""
    folds: list[Fold]
    """Whose features are computed together."""
    query_split: str
    device: torch.device
    out: Path
    """Folder of results, where features are kept, too."""
    words: WordVectors | None
    extracted: Extracted = field(default_factory=dict)
    _latest: tuple[Path, Features] | None = None

    def evaluate(self, model: Model, protocol: Protocol, fold: Fold, folder: Path) -> Evaluated:
        """Raises UserError where the model or the videos are not what the protocol takes.

        Finetuning keeps in `folder` what it goes on from, and the finetuned weights.
        """
        if protocol == "finetune":
            return self._finetune(model, sampled(fold, self.settings.train_samples, self.settings.seed), folder)
        own: dict[Protocol, Callable[[Model, Fold], Evaluated]] = {
            "cross-modal": self._cross_modal, "retrieval": self._retrieval, "few-shot": self._few_shot,
            "linear": self._linear,
        }  # fmt: skip
        found = own[protocol](model, fold)
        clips = f"{self.settings.clips} of {told(model.trained.settings.clip)}, centre crops"
        return found._replace(how={"clips": clips} | found.how)

    def _retrieval(self, model: Model, fold: Fold) -> Evaluated:
        features = self._features(model)
        query, gallery = (features.maximum[features.places(part)] for part in (fold.queries, fold.gallery))
        found = recall(query, fold.query_label, gallery, fold.gallery_label, KS)
        return Evaluated({f"R@{k}": measure for k, measure in found.items()}, {"pooling": "maximum"}, fold)

    def _few_shot(self, model: Model, fold: Fold) -> Evaluated:
        features, seed = self._features(model), self.settings.seed
        query, gallery = (features.average[features.places(part)] for part in (fold.queries, fold.gallery))
        fewest = np.unique(fold.gallery_label, return_counts=True)[1].min()
        found = {
            f"{shots}-shot": few_shot(query, fold.query_label, gallery, fold.gallery_label, shots, _DRAWS, seed)
            for shots in SHOTS
            if shots <= fewest
        }
        how = {"pooling": "average", "draws": f"{_DRAWS}, seed {seed}", "videos of the smallest class": str(fewest)}
        return Evaluated(found, how, fold)

    def _linear(self, model: Model, fold: Fold) -> Evaluated:
        features, c = self._features(model), self.settings.linear_c
        fold = sampled(fold, self.settings.train_samples, self.settings.seed)
        query, gallery = (features.average[features.places(part)] for part in (fold.queries, fold.gallery))
        found = linear_probe(query, fold.query_label, gallery, fold.gallery_label, c, (1, 5))
        how = {"pooling": "average", "C": f"{c:g}"}
        return Evaluated({f"linear top-{k}": measure for k, measure in found.items()}, how, fold)

    def _features(self, model: Model) -> Features:
        """Of all videos that a fold needs, computed once."""
        videos = videos_of(self.folds)
        name = features_name(self.data, videos, self.settings.clips, self.device.type)
        path = self.out / model.folder / name
        if self._latest is None or self._latest[0] != path:  # those of one model at a time are held
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = self.extracted.get(model.folder)
            features = stored(path, model.trained, self.index, videos, self.settings.clips, self.device, whole)
            self.extracted.setdefault(model.folder, (path, videos))
            self._latest = (path, features)
        return self._latest[1]

    def _cross_modal(self, model: Model, fold: Fold) -> Evaluated:
        trained, settings = model.trained, self.settings
        modalities = comparable(modalities_of(trained.model.state_dict()), self.index, settings)
        if len(modalities) < 2:
            lacking = "the videos have no sound" if not self.index.mel_count.any() else "it was trained on one modality"
            raise UserError(
                f"recall across modalities needs two of them, and of {model.path} only {' '.join(modalities)} can be "
                f"used ({lacking}; words need --word2vec)"
            )
        index = trained.normalised(self.index)
        words = self.words if "text" in modalities else None
        clip = trained.settings.clip
        videos = crossmodal.with_all(index, fold.queries, clip, modalities)
        if len(videos) < 2:
            raise UserError(
                f"{len(videos)} of the {len(fold.queries)} videos of the split '{self.query_split}' have "
                f"{' and '.join(modalities)} for the length of a clip; recall across modalities needs two or more"
            )
        scale = trained.settings.augmentation.scale[0]
        model_on = trained.model.to(self.device)
        found = crossmodal.embed(model_on, index, videos, clip, scale, settings.clips, self.device, modalities, words)
        n = len(found.videos)
        if n < 2:
            raise UserError(f"in {n} of the videos of the split '{self.query_split}' something is said; see WORD2VEC=")
        measures = {
            f"{one} to {other} R@{k}": share(right, 100 * min(k, n) / n)
            for (one, other, k), right in crossmodal.hits(found.embeddings).items()
        }
        return Evaluated(measures, {}, replace(fold, queries=found.videos, query_label=np.full(n, "")))

    def _finetune(self, model: Model, fold: Fold, folder: Path) -> Evaluated:
        chosen = recipe(self.settings, model.trained)
        classes = np.unique(fold.gallery_label)
        task = Task(
            model.trained.normalised(self.index), fold.gallery, targets(fold.gallery_label, classes),
            fold.queries, targets(fold.query_label, classes), tuple(classes.tolist()), self.data,
        )  # fmt: skip
        name, how = of(model, fold), chosen.described() | {"seed": str(self.settings.seed)}
        print(f"finetuning {name}: {sentence(how)}", flush=True)
        run = Finetuning(model.trained, task, chosen, self.settings.seed, fold.number, self.device, folder)
        return Evaluated(run.run(f"finetune {name}"), how, fold)


def videos_of(folds: Sequence[Fold]) -> np.ndarray:
    """All videos that some folds need, whose features are stored together: rows of the index, int64 [n]."""
    found: np.ndarray = np.unique(np.concatenate([fold.videos for fold in folds]))
    return found


def features_name(data: str, videos: np.ndarray, clips: int, device: str) -> str:
    """The file, in a model's folder, of its features of some videos, made on a kind of device, cpu or cuda."""
    return f"features-{short([FORMAT, data, videos.tolist(), clips, device])}.npz"


def recipe(settings: Downstream, trained: Trained) -> Recipe:
    """How a model is finetuned by these settings."""
    found = RECIPES[settings.recipe]
    if settings.size == "tiny":
        found = tiny(found, trained)
    if settings.epochs:
        found = found.spread_over(settings.epochs)
    if settings.rate:
        found = replace(found, rate=settings.rate, first_rate=found.first_rate * settings.rate / found.rate)
    return replace(found, clips=settings.clips_per_epoch or found.clips, test_clips=settings.clips)


def comparable(modalities: Sequence[str], index: Index, settings: Downstream) -> list[str]:
    """Those modalities of a model that can be compared on these shards."""
    there = {"video": True, "audio": bool(index.mel_count.any()), "text": settings.word2vec is not None}
    return [name for name in modalities if there[name]]


def matters(settings: Downstream, protocol: Protocol) -> dict[str, object]:
    """The settings that decide the numbers of a protocol, besides who is evaluated on whom."""
    s = settings
    own: dict[Protocol, dict[str, object]] = {
        "cross-modal": {},
        "retrieval": {},
        "few-shot": {"seed": s.seed},
        "linear": {"seed": s.seed, "samples": s.train_samples, "c": s.linear_c},
        "finetune": {
            "seed": s.seed, "samples": s.train_samples, "recipe": s.recipe, "size": s.size, "epochs": s.epochs,
            "rate": s.rate, "clips_per_epoch": s.clips_per_epoch,
        },
    }  # fmt: skip
    return {"clips": s.clips, **own[protocol]}


def short(values: object) -> str:
    """A digest of numbers and texts, for names of files."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
