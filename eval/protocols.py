"""One model by one protocol on one fold. A protocol is a function here, its line in `_FOUND_BY`, and its name with the
settings that decide its numbers in `eval.settings`.
"""

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
from gdt.eval.extract import Features, load_or_extract
from gdt.eval.finetune import RECIPES, Finetuning, Recipe, Task, describe_clip, tiny
from gdt.eval.metrics import Metric, share
from gdt.eval.record import format_details
from gdt.eval.retrieval import few_shot, linear_probe, recall, targets
from gdt.eval.settings import DECIDES, KS, SHOTS, Downstream, Protocol
from gdt.eval.subjects import Fold, Model, of, subsample
from gdt.pipeline.shards.index import Index
from gdt.pipeline.word2vec import WordVectors
from gdt.train import crossmodal
from gdt.train.checkpoint import Trained
from gdt.train.models.gdt import modalities_of

_DRAWS = 20
"""Choices of shots over which few-shot accuracies are averaged."""
FORMAT = 2
"""Raise it when the same settings give other numbers."""
_IN_THE_FOLD = ("label", "folds", "gallery_per_class", "word2vec")
"""Settings that the digests of a fold and of the words hold."""

Extracted = dict[str, tuple[Path, np.ndarray]]
"""By the folder of a model: features that this call has stored, of which those of fewer videos may be taken."""


class Evaluated(NamedTuple):
    """What a protocol found."""

    metrics: dict[str, Metric]
    how: dict[str, str]
    """How they came about, in words."""
    fold: Fold
    """The videos that in the end took part."""


@dataclass
class Evaluator:
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
        return _FOUND_BY[protocol](self, model, fold, folder)

    def clips(self, model: Model) -> dict[str, str]:
        """Those that frozen features are of, in words."""
        return {"clips": f"{self.settings.clips} of {describe_clip(model.trained.settings.clip)}, centre crops"}

    def features(self, model: Model) -> Features:
        """Of all videos that a fold needs, computed once."""
        videos = videos_of(self.folds)
        name = features_name(self.data, videos, self.settings.clips, self.device.type)
        path = self.out / model.folder / name
        if self._latest is None or self._latest[0] != path:  # those of one model at a time are held
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = self.extracted.get(model.folder)
            features = load_or_extract(path, model.trained, self.index, videos, self.settings.clips, self.device, whole)
            self.extracted.setdefault(model.folder, (path, videos))
            self._latest = (path, features)
        return self._latest[1]


def _pooled(by: Evaluator, model: Model, fold: Fold, pooling: str) -> tuple[np.ndarray, np.ndarray, dict[str, str]]:
    """Features of queries and gallery by one of the two ways of pooling, and how they came about."""
    features = by.features(model)
    values: np.ndarray = getattr(features, pooling)
    how = by.clips(model) | {"pooling": pooling}
    return values[features.positions(fold.queries)], values[features.positions(fold.gallery)], how


def _retrieval(by: Evaluator, model: Model, fold: Fold, _: Path) -> Evaluated:
    query, gallery, how = _pooled(by, model, fold, "maximum")
    found = recall(query, fold.query_label, gallery, fold.gallery_label, KS)
    return Evaluated({f"R@{k}": metric for k, metric in found.items()}, how, fold)


def _few_shot(by: Evaluator, model: Model, fold: Fold, _: Path) -> Evaluated:
    query, gallery, how = _pooled(by, model, fold, "average")
    seed = by.settings.seed
    fewest = np.unique(fold.gallery_label, return_counts=True)[1].min()
    found = {
        f"{shots}-shot": few_shot(query, fold.query_label, gallery, fold.gallery_label, shots, _DRAWS, seed)
        for shots in SHOTS
        if shots <= fewest
    }
    how |= {"draws": f"{_DRAWS}, seed {seed}", "videos of the smallest class": str(fewest)}
    return Evaluated(found, how, fold)


def _linear(by: Evaluator, model: Model, fold: Fold, _: Path) -> Evaluated:
    fold = subsample(fold, by.settings.train_samples, by.settings.seed)
    query, gallery, how = _pooled(by, model, fold, "average")
    c = by.settings.linear_c
    found = linear_probe(query, fold.query_label, gallery, fold.gallery_label, c, (1, 5))
    return Evaluated({f"linear top-{k}": m for k, m in found.items()}, how | {"C": f"{c:g}"}, fold)


def _cross_modal(by: Evaluator, model: Model, fold: Fold, _: Path) -> Evaluated:
    trained, settings = model.trained, by.settings
    modalities = comparable(trained, by.index, settings)
    if len(modalities) < 2:
        lacking = "the videos have no sound" if not by.index.mel_count.any() else "it was trained on one modality"
        raise UserError(
            f"recall across modalities needs two of them, and of {model.path} only {' '.join(modalities)} can be "
            f"used ({lacking}; words need --word2vec)"
        )
    index = trained.normalise(by.index)
    words = by.words if "text" in modalities else None
    clip = trained.settings.clip
    videos = crossmodal.usable_videos(index, fold.queries, clip, modalities)
    if len(videos) < 2:
        raise UserError(
            f"{len(videos)} of the {len(fold.queries)} videos of the split '{by.query_split}' have "
            f"{' and '.join(modalities)} for the length of a clip; recall across modalities needs two or more"
        )
    scale = trained.settings.augmentation.scale[0]
    network = trained.model.to(by.device)
    found = crossmodal.embed(network, index, videos, clip, scale, settings.clips, by.device, modalities, words)
    n = len(found.videos)
    if n < 2:
        raise UserError(f"in {n} of the videos of the split '{by.query_split}' something is said; see WORD2VEC=")
    metrics = {
        f"{one} to {other} R@{k}": share(right, 100 * min(k, n) / n)
        for (one, other, k), right in crossmodal.hits(found.embeddings).items()
    }
    return Evaluated(metrics, by.clips(model), replace(fold, queries=found.videos, query_label=np.full(n, "")))


def _finetune(by: Evaluator, model: Model, fold: Fold, folder: Path) -> Evaluated:
    fold = subsample(fold, by.settings.train_samples, by.settings.seed)
    chosen = recipe(by.settings, model.trained)
    classes = np.unique(fold.gallery_label)
    task = Task(
        model.trained.normalise(by.index), fold.gallery, targets(fold.gallery_label, classes),
        fold.queries, targets(fold.query_label, classes), tuple(classes.tolist()), by.data,
    )  # fmt: skip
    name, how = of(model, fold), chosen.describe() | {"seed": str(by.settings.seed)}
    print(f"finetuning {name}: {format_details(how)}", flush=True)
    run = Finetuning(model.trained, task, chosen, by.settings.seed, fold.number, by.device, folder)
    return Evaluated(run.run(f"finetune {name}"), how, fold)


_FOUND_BY: dict[Protocol, Callable[[Evaluator, Model, Fold, Path], Evaluated]] = {
    "cross-modal": _cross_modal,
    "retrieval": _retrieval,
    "few-shot": _few_shot,
    "linear": _linear,
    "finetune": _finetune,
}


def videos_of(folds: Sequence[Fold]) -> np.ndarray:
    """All videos that some folds need, whose features are stored together: rows of the index, int64 [n]."""
    found: np.ndarray = np.unique(np.concatenate([fold.videos for fold in folds]))
    return found


def features_name(data: str, videos: np.ndarray, clips: int, device: str) -> str:
    """The file, in a model's folder, of its features of some videos, made on a kind of device, cpu or cuda."""
    return f"features-{short_digest([FORMAT, data, videos.tolist(), clips, device])}.npz"


def recipe(settings: Downstream, trained: Trained) -> Recipe:
    """How a model is finetuned by these settings."""
    found = RECIPES[settings.recipe]
    if settings.size == "tiny":
        found = tiny(found, trained)
    if settings.epochs:
        found = found.spread_over(settings.epochs)
    if settings.lr:
        found = replace(found, lr=settings.lr, first_lr=found.first_lr * settings.lr / found.lr)
    return replace(found, clips=settings.clips_per_epoch or found.clips, test_clips=settings.clips)


def comparable(trained: Trained, index: Index, settings: Downstream) -> list[str]:
    """Those modalities of a model that can be compared on these shards."""
    there = {"video": True, "audio": bool(index.mel_count.any()), "text": settings.word2vec is not None}
    return [name for name in modalities_of(trained.model.state_dict()) if there[name]]


def matters(settings: Downstream, protocol: Protocol) -> dict[str, object]:
    """The settings that decide the numbers of a protocol, besides who is evaluated on whom."""
    return {name: getattr(settings, name) for name in ("clips", *DECIDES[protocol]) if name not in _IN_THE_FOLD}


def short_digest(values: object) -> str:
    """A digest of numbers and texts, for names of files."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
