"""Evaluation protocols: each is a function here and a line of PROTOCOLS.

torch and scikit-learn are imported inside the functions: the command line reads the table for `--help`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdt.common.errors import UserError, plural

if TYPE_CHECKING:
    import torch

    from gdt.eval.extract import PooledFeatures
    from gdt.eval.finetune import Finetuning
    from gdt.eval.metrics import Metric
    from gdt.eval.settings import Downstream
    from gdt.eval.subjects import Data, Fold, Model
    from gdt.pipeline.shards.index import Index
    from gdt.pipeline.word2vec import WordVectors
    from gdt.train.trained import Trained

KS = (1, 5, 20)
"""k of R@k, as in the paper."""
SHOTS = (1, 5, 20)
"""Training videos per class of few-shot classification."""
_DRAWS = 20
"""Random choices of shots that few-shot accuracies are averaged over."""
FORMAT = 6
"""Increase it when the same settings give different numbers."""
NOTED = ("left out", "warning", "labels")
"""Details of results that are printed below the tables."""


class Outcome(NamedTuple):
    """What a protocol returns."""

    metrics: dict[str, Metric]
    fold: Fold
    """Videos that were evaluated."""
    details: Mapping[str, str] = MappingProxyType({})
    """What else decides the numbers, as text."""


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

    def evaluate(self, model: Model, protocol: str, fold: Fold, folder: Path) -> Outcome:
        """Run a protocol with its own settings, others at their defaults. Finetuning writes to `folder`.

        Raises UserError if the model or the videos do not fit the protocol.
        """
        from gdt.eval.subjects import subsample

        own = replace(self, settings=only_decisive(self.settings, protocol))
        kind, names, details = PROTOCOLS[protocol], self.settings.modalities, dict[str, str]()
        kept = fold.having(self.data.index, model.trained.settings.clip, names) if kind.labels else fold
        if lacking := len(fold.videos) - len(kept.videos):
            short = ", or sound is shorter than a clip" if "audio" in names else ""
            details["left out"] = f"{plural(lacking, 'video')} whose {' or '.join(names)} is missing{short}"
        if kind.labels and not kind.several and (n := int((~np.isin(kept.query_label, kept.gallery_label)).sum())):
            what = f"{n} of {len(kept.queries)} queries are of classes without gallery videos"
            details["warning"] = f"{what}: any model gets them wrong"
        kept = subsample(kept, own.settings.train_samples, own.settings.seed)
        result = kind.run(own, model, kept, folder)
        return result._replace(details={**result.details, **details})

    def features(self, model: Model, videos: np.ndarray, modality: str) -> PooledFeatures:
        """Features of at least these videos, extracted once."""
        from gdt.eval.extract import cached

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
        """Features [n, dim] and labels of queries, then of the gallery, as the functions of `eval.retrieval` take them;
        "average" or "maximum" pooling; see --modalities.
        """
        from gdt.eval.retrieval import unit

        parts: list[list[np.ndarray]] = []
        for modality in self.settings.modalities:
            features = self.features(model, fold.videos, modality)
            values: np.ndarray = getattr(features, pooling)
            values = values if len(self.settings.modalities) == 1 else unit(values)
            parts.append([values[features.positions(videos)] for videos in (fold.queries, fold.gallery)])
        query, gallery = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
        return query, fold.query_label, gallery, fold.gallery_label


def _retrieval(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.retrieval import recall

    metrics = recall(*evaluator.pooled(model, fold, "maximum"), KS)
    return Outcome({f"R@{k}": metric for k, metric in metrics.items()}, fold, {"pooling": "maximum"})


def _few_shot(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.retrieval import few_shot

    pooled, seed = evaluator.pooled(model, fold, "average"), evaluator.settings.seed
    smallest = np.unique(fold.gallery_label, return_counts=True)[1].min()
    metrics = {f"{shots}-shot": few_shot(*pooled, shots, _DRAWS, seed) for shots in SHOTS if shots <= smallest}
    details = {"pooling": "average", "draws": f"{_DRAWS}, seed {seed}", "videos of the smallest class": str(smallest)}
    return Outcome(metrics, fold, details)


def _linear(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.retrieval import linear_probe

    accuracy = linear_probe(*evaluator.pooled(model, fold, "average"), evaluator.settings.linear_c, (1, 5))
    return Outcome({f"linear top-{k}": metric for k, metric in accuracy.items()}, fold, {"pooling": "average"})


def _svm(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.retrieval import linear_probe

    pooled = evaluator.pooled(model, fold, "average")
    accuracy = linear_probe(*pooled, evaluator.settings.linear_c, (1,), svm=True)
    return Outcome({"SVM top-1": accuracy[1]}, fold, {"pooling": "average"})


def _multilabel(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.retrieval import counted, mean_average_precision
    from gdt.pipeline.shards.layout import names_in

    metric = mean_average_precision(*evaluator.pooled(model, fold, "average"), evaluator.settings.linear_c)
    queries, gallery = fold.query_label, fold.gallery_label
    used = f"mAP is over the {len(counted(queries, gallery))} of {len(names_in([*queries, *gallery]))} in both parts"
    bare = f"{(queries == '').sum()} queries and {(gallery == '').sum()} gallery videos have none: negatives of all"
    return Outcome({"mAP": metric}, fold, {"pooling": "average", "labels": f"{used}; {bare}"})


def _cross_modal(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.metrics import share
    from gdt.pipeline.clips import usable
    from gdt.train import crossmodal

    trained, settings, data = model.trained, evaluator.settings, evaluator.data
    modalities = shared_modalities(trained, data.index, settings)
    if len(modalities) < 2:
        reason = "the videos have no sound"
        if data.index.mel_count.any():
            reason = f"it was trained on {' and '.join(trained.model.modalities)}"
        reason = f"it has no head for {' '.join(trained.without_head)}" if trained.without_head else reason
        raise UserError(
            f"cross-modal retrieval needs two modalities; {model.path} has {' '.join(modalities) or 'none'} for these "
            f"videos ({reason}; text needs --word2vec)"
        )
    index, clip = data.index, trained.settings.clip
    videos = fold.queries[usable(index, clip, modalities)[fold.queries]]
    if len(videos) < 2:
        raise UserError(
            f"cross-modal retrieval needs two videos with {' and '.join(modalities)} as long as a clip; the split "
            f"'{data.split}' has {len(videos)} among its {len(fold.queries)} videos; evaluate on more or longer videos"
        )
    found = crossmodal.embed(
        trained.model.to(evaluator.device), index, videos, clip, trained.settings.augmentation.scale[0],
        settings.clips, evaluator.device, trained.statistics, modalities,
        evaluator.words if "text" in modalities else None,
    )  # fmt: skip
    n = len(found.videos)
    if n < 2:
        raise UserError(
            f"cross-modal retrieval needs two videos with captions of known words, but the split '{data.split}' has "
            f"{n}; evaluate on more videos, or preprocess with a word2vec file that has their words"
        )
    metrics = {
        f"{query} to {gallery} R@{k}": share(correct, 100 * min(k, n) / n)
        for (query, gallery, k), correct in crossmodal.hits(found.embeddings).items()
    }
    return Outcome(metrics, replace(fold, queries=found.videos, query_label=np.full(n, "")))


def _attentive(evaluator: Evaluator, model: Model, fold: Fold, folder: Path) -> Outcome:
    from gdt.eval.attentive import AttentiveProbe

    return _train(evaluator, model, fold, folder, AttentiveProbe)


def _finetune(evaluator: Evaluator, model: Model, fold: Fold, folder: Path) -> Outcome:
    from gdt.eval.finetune import Finetuning

    return _train(evaluator, model, fold, folder, Finetuning)


def _train(evaluator: Evaluator, model: Model, fold: Fold, folder: Path, kind: type[Finetuning]) -> Outcome:
    from gdt.eval.subjects import describe

    settings, data, recipe = evaluator.settings, evaluator.data, kind.recipe_of(evaluator.settings, model.trained)
    (modality,) = settings.modalities
    run = kind(
        model.trained, data.index, fold, recipe, settings.seed, evaluator.device, folder, modality, data.fingerprint
    )
    metrics = run.run(f"{kind.name} {describe(model, fold)}")
    return Outcome(metrics, fold, {name: str(value) for name, value in vars(recipe).items()})


@dataclass(frozen=True)
class Protocol:
    """A line of PROTOCOLS."""

    name: str
    run: Callable[[Evaluator, Model, Fold, Path], Outcome]
    settings: tuple[str, ...]
    """Fields of `Downstream` that decide its numbers, besides `clips`; it sees no others."""
    table: str
    """Protocols with the same value share a table."""
    default: bool = False
    """Whether it is evaluated when --protocols is not set and models and data fit."""
    labels: bool = True
    """Whether it needs a gallery and labels."""
    several: bool = False
    """Whether a video may have any number of labels, also none; else it has one."""
    pairs: bool = False
    """Whether the model and the videos need two modalities."""
    trains: bool = False
    """Whether it trains a network, in its own process."""


_LABELS = ("label", "folds", "gallery_split")
_FROZEN = (*_LABELS, "modalities")
_RESOLVED = ("folds", "word2vec")
"""Settings that the digests of the fold and of the words stand for."""
_RECIPE = ("epochs", "lr", "clips_per_epoch")
PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("cross-modal", _cross_modal, ("word2vec",), "cross-modal", default=True, labels=False, pairs=True),
        Protocol("retrieval", _retrieval, _FROZEN, "neighbours", default=True),
        Protocol("few-shot", _few_shot, (*_FROZEN, "seed"), "neighbours", default=True),
        Protocol("linear", _linear, (*_FROZEN, "seed", "train_samples", "linear_c"), "classifiers"),
        Protocol("svm", _svm, (*_FROZEN, "seed", "train_samples", "linear_c"), "classifiers"),
        Protocol("multilabel", _multilabel, (*_FROZEN, "linear_c"), "labels", several=True),
        Protocol("attentive", _attentive, (*_FROZEN, "seed", "train_samples", *_RECIPE), "classifiers", trains=True),
        Protocol("finetune", _finetune, (*_FROZEN, "seed", "train_samples", *_RECIPE), "classifiers", trains=True),
    )
}
"""All protocols, in the order of the tables' columns."""


def features_path(folder: Path, data: str, clips: int, device: str, modality: str = "video") -> Path:
    """The file of a model's features in its folder, by shards, clips, type of device (cpu or cuda) and modality."""
    return folder / f"features-{modality}-{_digest([FORMAT, data, clips, device])}.npz"


def shared_modalities(trained: Trained, index: Index, settings: Downstream) -> list[str]:
    """The modalities that the shards have and for which the model has a network with a head."""
    available = {
        "video": bool(index.frame_count.any()),
        "audio": bool(index.mel_count.any()),
        "text": settings.word2vec is not None,
    }
    return [name for name in trained.model.modalities if available[name] and name not in trained.without_head]


def only_decisive(settings: Downstream, protocol: str) -> Downstream:
    """The settings, with those that do not decide a protocol's numbers at their defaults."""
    own = {"clips", *PROTOCOLS[protocol].settings}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(settings) if field.name not in own}
    return replace(settings, **defaults)


def decisive(settings: Downstream, protocol: str) -> dict[str, Any]:
    """The settings that decide a protocol's numbers, besides model, videos and words."""
    return {name: getattr(settings, name) for name in ("clips", *PROTOCOLS[protocol].settings) if name not in _RESOLVED}


def conditions(
    settings: Downstream, protocol: str, data: Data, fold: Fold, device: str, words: WordVectors | None
) -> str:
    """Digest of all that decides a protocol's numbers on a fold, besides the model."""
    videos = data.fingerprint, data.split, fold.digest, words_of(protocol, words)
    return _digest([FORMAT, protocol, decisive(settings, protocol), videos, device])


def words_of(protocol: str, words: WordVectors | None) -> str:
    """Checksum of the word vectors that a protocol uses; empty without."""
    return words.checksum if words and "word2vec" in PROTOCOLS[protocol].settings else ""


def _digest(values: object) -> str:
    """Digest of JSON values: sixteen hex digits."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
