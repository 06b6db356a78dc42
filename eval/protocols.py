"""Evaluation protocols: each is a function here and a line of PROTOCOLS.

torch and scikit-learn are imported inside the functions: the command line reads the table for `--help`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdt.common.errors import UserError

if TYPE_CHECKING:
    import torch

    from gdt.eval.extract import PooledFeatures
    from gdt.eval.metrics import Metric
    from gdt.eval.settings import Downstream
    from gdt.eval.subjects import Fold, Model
    from gdt.pipeline.leaves import Clip
    from gdt.pipeline.shards.index import Index
    from gdt.pipeline.word2vec import WordVectors
    from gdt.train.trained import Trained

KS = (1, 5, 20)
"""k of R@k, as in the paper."""
SHOTS = (1, 5, 20)
"""Training videos per class of few-shot classification."""
_DRAWS = 20
"""Random choices of shots that few-shot accuracies are averaged over."""
FORMAT = 3
"""Increase it when the same settings give different numbers."""
_RESOLVED = ("folds", "word2vec")
"""Settings that a record holds as `fold` and `words` instead."""


class Outcome(NamedTuple):
    """What a protocol returns."""

    metrics: dict[str, Metric]
    details: dict[str, str]
    """Details that could change the numbers, as text."""
    fold: Fold
    """Videos that were evaluated."""
    clip: Clip
    """Clip of the network's input."""


@dataclass
class Evaluator:
    """Data, settings and device of an evaluation, with its cache of features."""

    settings: Downstream
    index: Index
    data: str
    """Fingerprint of the shards."""
    folds: list[Fold]
    """Folds whose features are extracted together."""
    query_split: str
    device: torch.device
    out: Path
    """Folder of results and features."""
    words: WordVectors | None
    extracted: dict[str, tuple[Path, np.ndarray]] = field(default_factory=dict)
    """By model's folder and modality: a file of features used in this call, and its videos, to copy subsets from."""
    _latest: dict[Path, PooledFeatures] = field(default_factory=dict)
    """Features kept in memory, of one model, by file."""

    def evaluate(self, model: Model, protocol: str, fold: Fold, folder: Path) -> Outcome:
        """Run a protocol with its own settings, others at their defaults. Finetuning writes to `folder`.

        Raises UserError if the model or the videos do not fit the protocol.
        """
        own = replace(self, settings=only_decisive(self.settings, protocol))
        kept, details = own._with_audio(model, fold)
        result = PROTOCOLS[protocol].run(own, model, kept, folder)
        return result._replace(details=result.details | details)

    def _with_audio(self, model: Model, fold: Fold) -> tuple[Fold, dict[str, str]]:
        """The videos with the audio that --modalities needs, and how many are left out.

        Raises UserError if no query or no gallery video is left.
        """
        if "audio" not in self.settings.modalities:
            return fold, {}
        audible = self._audible(model)
        gallery, queries = audible[fold.gallery], audible[fold.queries]
        if not (gallery.any() and queries.any()):
            raise UserError(
                f"{gallery.sum()} videos of the gallery and {queries.sum()} queries have audio as long as a clip; set "
                "--modalities to video"
            )
        kept = replace(
            fold, gallery=fold.gallery[gallery], gallery_label=fold.gallery_label[gallery],
            queries=fold.queries[queries], query_label=fold.query_label[queries],
        )  # fmt: skip
        silent = len(fold.videos) - len(kept.videos)
        return kept, {"left out": f"{silent} videos whose audio is missing or shorter than a clip"} if silent else {}

    def _audible(self, model: Model) -> np.ndarray:
        """Whether each video has audio as long as a clip, bool [videos]."""
        from gdt.pipeline.clips import usable

        return usable(self.index, model.trained.settings.clip, audio=True)

    def features(self, model: Model, modality: str = "video") -> PooledFeatures:
        """Features of all videos of the folds, for audio only of those that have it; extracted once."""
        from gdt.eval.extract import load_or_extract

        videos, device = videos_of(self.folds), self.device
        if modality == "audio":
            videos = videos[self._audible(model)[videos]]
        name = features_name(self.data, videos, self.settings.clips, device.type, modality)
        path, key = self.out / model.folder / name, f"{model.folder}/{modality}"
        if path not in self._latest:
            path.parent.mkdir(parents=True, exist_ok=True)
            features = load_or_extract(
                path, model.trained, self.index, videos, self.settings.clips, device, self.extracted.get(key), modality
            )
            self.extracted.setdefault(key, (path, videos))
            if any(other.parent != path.parent for other in self._latest):
                self._latest.clear()
            self._latest[path] = features
        return self._latest[path]

    def pooled(self, model: Model, fold: Fold, pooling: str) -> tuple[np.ndarray, np.ndarray]:
        """Features of queries and gallery [n, dim], with "average" or "maximum" pooling; see --modalities."""
        from gdt.eval.retrieval import unit

        parts: list[list[np.ndarray]] = []
        for modality in self.settings.modalities:
            features = self.features(model, modality)
            values: np.ndarray = getattr(features, pooling)
            values = values if len(self.settings.modalities) == 1 else unit(values)
            parts.append([values[features.positions(videos)] for videos in (fold.queries, fold.gallery)])
        query, gallery = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
        return query, gallery

    def frozen(self, model: Model, metrics: dict[str, Metric], fold: Fold, **details: str) -> Outcome:
        """The outcome of a protocol on frozen features."""
        clip, modalities = model.trained.settings.clip, self.settings.modalities
        clips = {"video": f"{clip}, centre crops", "audio": f"{clip.mel_frames} log-mel frames"}
        features = {"features": " and ".join(modalities)} if modalities != ("video",) else {}
        text = f"{self.settings.clips} of {' and '.join(clips[name] for name in modalities)}"
        return Outcome(metrics, {"clips": text} | features | details, fold, clip)


def _retrieval(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.retrieval import recall

    query, gallery = evaluator.pooled(model, fold, "maximum")
    metrics = recall(query, fold.query_label, gallery, fold.gallery_label, KS)
    return evaluator.frozen(model, {f"R@{k}": metric for k, metric in metrics.items()}, fold, pooling="maximum")


def _few_shot(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.retrieval import few_shot

    query, gallery = evaluator.pooled(model, fold, "average")
    seed = evaluator.settings.seed
    smallest = np.unique(fold.gallery_label, return_counts=True)[1].min()
    metrics = {
        f"{shots}-shot": few_shot(query, fold.query_label, gallery, fold.gallery_label, shots, _DRAWS, seed)
        for shots in SHOTS
        if shots <= smallest
    }
    details = {"pooling": "average", "draws": f"{_DRAWS}, seed {seed}", "videos of the smallest class": str(smallest)}
    return evaluator.frozen(model, metrics, fold, **details)


def _linear(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.retrieval import linear_probe
    from gdt.eval.subjects import subsample

    settings = evaluator.settings
    fold = subsample(fold, settings.train_samples, settings.seed)
    query, gallery = evaluator.pooled(model, fold, "average")
    accuracy = linear_probe(query, fold.query_label, gallery, fold.gallery_label, settings.linear_c, (1, 5))
    metrics = {f"linear top-{k}": metric for k, metric in accuracy.items()}
    return evaluator.frozen(model, metrics, fold, pooling="average", C=f"{settings.linear_c:g}")


def _cross_modal(evaluator: Evaluator, model: Model, fold: Fold, _: Path) -> Outcome:
    from gdt.eval.metrics import share
    from gdt.train import crossmodal

    trained, settings, split = model.trained, evaluator.settings, evaluator.query_split
    modalities = shared_modalities(trained, evaluator.index, settings)
    if len(modalities) < 2:
        reason = "the videos have no sound"
        if evaluator.index.mel_count.any():
            reason = f"it was trained on {' and '.join(trained.settings.composition.modalities)}"
        reason = f"it has no head for {' '.join(trained.without_head)}" if trained.without_head else reason
        raise UserError(
            f"cross-modal retrieval needs two modalities; {model.path} has {' '.join(modalities) or 'none'} for these "
            f"videos ({reason}; text needs --word2vec)"
        )
    index, clip = trained.normalise(evaluator.index), trained.settings.clip
    videos = crossmodal.usable_videos(index, fold.queries, clip, modalities)
    if len(videos) < 2:
        raise UserError(
            f"cross-modal retrieval needs two videos with {' and '.join(modalities)} as long as a clip; the split "
            f"'{split}' has {len(videos)} among its {len(fold.queries)} videos; evaluate on more or longer videos"
        )
    found = crossmodal.embed(
        trained.model.to(evaluator.device), index, videos, clip, trained.settings.augmentation.scale[0],
        settings.clips, evaluator.device, modalities, evaluator.words if "text" in modalities else None,
    )  # fmt: skip
    n = len(found.videos)
    if n < 2:
        raise UserError(
            f"cross-modal retrieval needs two videos with captions of known words, but the split '{split}' has {n}; "
            "evaluate on more videos, or preprocess with a word2vec file that has their words"
        )
    metrics = {
        f"{query} to {gallery} R@{k}": share(correct, 100 * min(k, n) / n)
        for (query, gallery, k), correct in crossmodal.hits(found.embeddings).items()
    }
    return evaluator.frozen(model, metrics, replace(fold, queries=found.videos, query_label=np.full(n, "")))


def _finetune(evaluator: Evaluator, model: Model, fold: Fold, folder: Path) -> Outcome:
    from gdt.eval.finetune import Finetuning, Task, build_recipe
    from gdt.eval.record import format_details
    from gdt.eval.retrieval import targets
    from gdt.eval.subjects import describe, subsample

    settings = evaluator.settings
    fold = subsample(fold, settings.train_samples, settings.seed)
    recipe = build_recipe(settings, model.trained)
    classes = np.unique(fold.gallery_label)
    task = Task(
        model.trained.normalise(evaluator.index), fold.gallery, targets(fold.gallery_label, classes),
        fold.queries, targets(fold.query_label, classes), tuple(classes.tolist()), evaluator.data,
    )  # fmt: skip
    name, details = describe(model, fold), recipe.describe() | {"seed": str(settings.seed)}
    print(f"finetuning {name}: {format_details(details)}", flush=True)
    run = Finetuning(model.trained, task, recipe, settings.seed, fold.number, evaluator.device, folder)
    return Outcome(run.run(f"finetune {name}"), details, fold, recipe.clip)


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
    pairs: bool = False
    """Whether the model and the videos need two modalities."""
    trains: bool = False
    """Whether it trains a network, in its own process."""
    draws_for: tuple[str, ...] | None = None
    """Settings that make it draw at random, without which the seed has no effect; None: it always draws."""


_LABELS = ("label", "folds", "gallery_split", "gallery_per_class", "seed")
_FROZEN = (*_LABELS, "modalities")
_RECIPE = ("epochs", "lr", "clips_per_epoch")
PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("cross-modal", _cross_modal, ("word2vec",), "cross-modal", default=True, labels=False, pairs=True),
        Protocol("retrieval", _retrieval, _FROZEN, "neighbours", default=True, draws_for=("gallery_per_class",)),
        Protocol("few-shot", _few_shot, _FROZEN, "neighbours", default=True),
        Protocol(
            "linear",
            _linear,
            (*_FROZEN, "train_samples", "linear_c"),
            "classifiers",
            draws_for=("gallery_per_class", "train_samples"),
        ),
        Protocol("finetune", _finetune, (*_LABELS, "train_samples", *_RECIPE), "classifiers", trains=True),
    )
}
"""All protocols, in the order of the tables' columns."""


def videos_of(folds: Sequence[Fold]) -> np.ndarray:
    """All videos of some folds, whose features are in one file: rows of the index, int64 [n]."""
    videos: np.ndarray = np.unique(np.concatenate([fold.videos for fold in folds]))
    return videos


def features_name(data: str, videos: np.ndarray, clips: int, device: str, modality: str = "video") -> str:
    """File name of a model's features, by shards, videos, clips, modality and the type of device (cpu or cuda)."""
    kind = "" if modality == "video" else f"-{modality}"
    return f"features{kind}-{short_digest([FORMAT, data, videos.tolist(), clips, device])}.npz"


def shared_modalities(trained: Trained, index: Index, settings: Downstream) -> list[str]:
    """The modalities that the shards have and for which the model has a network with a head."""
    available = {"video": True, "audio": bool(index.mel_count.any()), "text": settings.word2vec is not None}
    return [name for name in trained.model.modalities if available[name] and name not in trained.without_head]


def decisive_names(protocol: str) -> tuple[str, ...]:
    """The settings that decide a protocol's numbers, besides model, videos, fold and words."""
    return tuple(name for name in ("clips", *PROTOCOLS[protocol].settings) if name not in _RESOLVED)


def only_decisive(settings: Downstream, protocol: str) -> Downstream:
    """The settings, with those that do not decide a protocol's numbers at their defaults."""
    own, draws_for = {"ckpt", "clips", *PROTOCOLS[protocol].settings}, PROTOCOLS[protocol].draws_for
    if draws_for is not None and not any(getattr(settings, name) for name in draws_for):
        own.discard("seed")
    defaults: dict[str, Any] = {field.name: field.default for field in fields(settings) if field.name not in own}
    return replace(settings, **defaults | {"ckpt": ()})


def short_digest(values: object) -> str:
    """Digest of JSON values for file names: ten hex digits."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
