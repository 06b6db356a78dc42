"""What an evaluation consists of: jobs, which `jobs_of` makes from settings, models and shards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.common.wording import plural
from gdt.eval.extract import PooledFeatures, cached_features, extract, features_file, require_network
from gdt.eval.features import sameness
from gdt.eval.folds import Fold, folds, gallery_split, several_labels
from gdt.eval.metrics import Measured
from gdt.eval.protocols import PROTOCOLS, Protocol
from gdt.eval.results import key_of
from gdt.eval.settings import Downstream
from gdt.eval.similarity import unit
from gdt.eval.subjects import EvalSet, Subject, default_checkpoint, subjects
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import load_trained
from gdt.train.models.gdt import any_device
from gdt.train.models.own import Makers


class Outcome(NamedTuple):
    """What a protocol returns."""

    metrics: dict[str, Measured]
    details: Mapping[str, str] = MappingProxyType({})
    """What else decides the numbers, as text."""
    queries: np.ndarray | None = None
    """Queries that were evaluated, if the protocol could not use all: rows of the index, int64."""
    warning: str = ""
    """What to say below the table; empty without."""
    neighbours: np.ndarray | None = None
    """The nearest of the gallery of each query: rows of the index, int64 [n, k]; None if it searches none."""


class Pooled(NamedTuple):
    """Features [n, dim] and labels [n] of queries, and of the gallery that they are compared with."""

    query: np.ndarray
    query_label: np.ndarray
    gallery: np.ndarray
    gallery_label: np.ndarray


@dataclass(frozen=True)
class Job:
    """The evaluation of a model by a protocol on a fold, with the labels of a column."""

    subject: Subject
    protocol: Protocol
    fold: Fold
    settings: Downstream
    """Those that decide the numbers, with the gallery's split; the others are at their defaults."""
    eval_set: EvalSet
    """With the labels of the column."""
    words: WordVectors | None
    device: torch.device
    out: Path
    """Folder of the results."""

    @cached_property
    def decisive(self) -> dict[str, Any]:
        """All that decides the numbers, as fields of the result."""
        used = {name: getattr(self.settings, name) for name in ("clips", *self.protocol.settings)}
        label = used.pop("label", "")
        used.pop("folds", None)  # the fold stands for them
        words = self.words if used.pop("word2vec", None) else None
        plain = {name: [*value] if isinstance(value, tuple) else value for name, value in used.items()}
        return {
            "model": self.subject.name,
            "weights": self.subject.digest,
            "fold": self.fold.number,
            "fold_videos": self.fold.digest(self.eval_set.index.id),
            "protocol": self.protocol.name,
            "version": self.protocol.version,
            "label": label,
            "data": self.eval_set.fingerprint,
            "query_split": self.eval_set.split,
            "words": words.checksum if words else "",
            "device": self.device.type,
            "settings": plain,
        }

    @cached_property
    def key(self) -> str:
        return key_of(self.decisive)

    @property
    def folder(self) -> Path:
        """Folder of a finetuning."""
        fold = f"fold{self.fold.number}-" if self.fold.number else ""
        return self.out / self.subject.folder / f"{self.protocol.name}-{fold}{self.key[:8]}"

    @property
    def name(self) -> str:
        return f"{self.subject.name_on(self.fold)}, {self.protocol.name}"

    def videos(self) -> tuple[Fold, dict[str, str]]:
        """The videos of the fold that the protocol evaluates, and what to say of the others.

        Raises UserError if none is left.
        """
        if not self.protocol.labels:
            return self.fold, {}
        modalities = self.settings.modalities
        details = {}
        kept = self.fold.having(self.eval_set.index, self.subject.trained.settings.clip, modalities)
        lacking = len(self.fold.videos) - len(kept.videos)
        if lacking:
            short = ", or sound is shorter than a clip" if "audio" in modalities else ""
            details["left out"] = f"{plural(lacking, 'video')} whose {' or '.join(modalities)} is missing{short}"
        chosen = _subsample(kept, self.settings.train_samples, self.settings.seed)
        alone = int((~np.isin(chosen.query_label, chosen.gallery_label)).sum())
        if alone and not self.protocol.several:
            what = f"{alone} of {len(chosen.queries)} queries are of classes without gallery videos"
            details["warning"] = f"{what}: any model gets them wrong"
        return chosen, details

    def sameness(self, fold: Fold) -> str:
        """A warning of a protocol on frozen features that are nearly the same for all videos; empty without."""
        if self.subject.random or self.protocol.trains or not self.protocol.labels:
            return ""
        return sameness({name: self.features(fold.videos, name).average for name in self.settings.modalities})

    def features(self, videos: np.ndarray, modality: str) -> PooledFeatures:
        """Features of at least these videos, extracted once."""
        clips = self.settings.clips
        subject = self.subject
        name = features_file(subject.digest, self.eval_set.fingerprint, clips, self.device.type, modality)

        def compute(group: np.ndarray) -> PooledFeatures:
            return extract(subject.trained, self.eval_set.index, group, clips, self.device, modality)

        return cached_features(self.out / subject.folder / name, videos, compute)

    def pooled(self, fold: Fold, pooling: str) -> Pooled:
        """Features, "average" or "maximum" pooled; those of several --modalities are scaled to length 1 and joined."""
        queries: list[np.ndarray] = []
        galleries: list[np.ndarray] = []
        for modality in self.settings.modalities:
            features = self.features(fold.videos, modality)
            values: np.ndarray = getattr(features, pooling)
            if len(self.settings.modalities) > 1:
                values = unit(values)
            queries.append(values[features.positions(fold.queries)])
            galleries.append(values[features.positions(fold.gallery)])
        query = np.concatenate(queries, axis=1)
        gallery = np.concatenate(galleries, axis=1)
        return Pooled(query, fold.query_label, gallery, fold.gallery_label)


ProtocolFunction = Callable[[Job, Fold], Outcome]
"""The function of a protocol, on the videos of `Job.videos`."""


def jobs_of(settings: Downstream, given: Makers) -> list[Job]:
    """The jobs of an evaluation, model by model, with defaults filled in; `given` are networks of the user's own.

    Raises UserError if models, data and settings do not fit each other.
    """
    ckpt = settings.ckpt or (str(default_checkpoint(settings.dataset, settings.shards)),)
    if not settings.protocols:
        settings.require_effect([name for name, facts in PROTOCOLS.items() if facts.default or facts.several])
    video_first = tuple(sorted(settings.modalities, reverse=True))  # in whatever order they are given
    settings = replace(settings, ckpt=ckpt, modalities=video_first)
    first = load_trained(ckpt[0], given)
    models = list(subjects(settings, first, given))
    eval_set = EvalSet.open(ckpt[0], first, settings.dataset, settings.shards, settings.query_split, settings.cache)
    out = settings.out or Path("runs") / f"eval-{eval_set.dataset}"
    words = None
    if settings.word2vec:
        words = WordVectors.of(eval_set.index, settings.word2vec)
        for model in models:
            model.trained.require_same_words(words, model.path, settings.word2vec)
    elif not settings.protocols and any("text" in model.trained.model.modalities for model in models):
        print("text is not evaluated; set --word2vec to the file that the shards were made with", flush=True)
    chosen = choose(settings, eval_set, models)
    device = any_device()
    jobs = []
    for model in models:
        for protocol, of_column, labelled, found in chosen:
            if protocol.labels:
                _require_fit(model, of_column, labelled, found)
            if protocol.pairs and not settings.protocols and not _has_pairs(model, settings, eval_set):
                print(f"{model.name} is skipped in {protocol.name}: the videos have fewer than two of its modalities")
                continue
            jobs += [Job(model, protocol, fold, of_column, labelled, words, device, out) for fold in found]
    return jobs


Chosen = tuple[Protocol, Downstream, EvalSet, list[Fold]]
"""A protocol with a column of labels: its settings, the shards with these labels, and folds."""


def choose(settings: Downstream, eval_set: EvalSet, compared: Sequence[Subject] = ()) -> list[Chosen]:
    """The protocols of an evaluation, for every column of labels; the default ones are chosen for models.

    Raises UserError as `choose_protocols` and `folds` do.
    """
    chosen: list[Chosen] = []
    for number, label in enumerate(settings.labels):
        labelled = replace(eval_set, index=eval_set.index.labelled(label))
        of_column = replace(settings, label=label)
        for name in choose_protocols(of_column, labelled, compared):
            protocol = PROTOCOLS[name]
            if number and not protocol.labels:
                continue  # it is the same for every column of labels
            found = folds(of_column, name, labelled.index, eval_set.split)
            others = {field.name for field in fields(settings)} - {"clips", *protocol.settings}
            own = replace(of_column, **{name: getattr(Downstream, name) for name in others})
            if protocol.labels:
                own = replace(own, gallery_split=gallery_split(own.gallery_split, labelled.index, eval_set.split))
            chosen.append((protocol, own, labelled, found))
    return chosen


def choose_protocols(settings: Downstream, eval_set: EvalSet, compared: Sequence[Subject]) -> list[str]:
    """The protocols of --protocols, or the default ones that suit the models and the data.

    Raises UserError if none does.
    """
    if settings.protocols:
        return [name for name in PROTOCOLS if name in settings.protocols]
    several = bool(several_labels(eval_set.index))
    suitable = {name: facts.several if several else facts.default for name, facts in PROTOCOLS.items()}
    labelled = [name for name, facts in PROTOCOLS.items() if facts.labels and suitable[name]]
    reason = ""
    try:
        for name in labelled:
            folds(settings, name, eval_set.index, eval_set.split)
    except UserError as error:
        if settings.requires_labels:
            raise
        reason = f"{' and '.join(labelled)} skipped: {error}"
    pairs = settings.modalities == ("video",) and any(_has_pairs(model, settings, eval_set) for model in compared)
    paired = [name for name, facts in PROTOCOLS.items() if facts.default and facts.pairs and pairs]
    chosen = [*paired, *([] if reason else labelled)]
    if not chosen:
        raise UserError(
            "nothing to evaluate: no model shares two modalities with these videos (text needs --word2vec), and "
            f"{reason}"
        )
    if reason:
        print(reason, flush=True)
    return chosen


def _has_pairs(model: Subject, settings: Downstream, eval_set: EvalSet) -> bool:
    """Whether the model has two modalities that the videos have."""
    return len(model.embedded_modalities(eval_set.index, settings)) > 1


def _require_fit(model: Subject, settings: Downstream, eval_set: EvalSet, folds: Sequence[Fold]) -> None:
    """Raise UserError if a model lacks a network, or was finetuned on labels of queries."""
    for name in settings.modalities:
        require_network(model.trained, name)
    origin = model.trained.origin
    if not origin or not origin.finetuned_on or model.random:
        return
    learned = {*origin.finetuned_on}
    known = {
        fold.number: sum(not learned.isdisjoint(names) for names in eval_set.names(fold.queries)) for fold in folds
    }
    others = " ".join(str(number) for number, count in known.items() if not count)
    for number, count in known.items():
        if count:
            of_fold = f" of fold {number}" if number else ""
            raise UserError(
                f"{model.path} was finetuned on {plural(count, 'query', 'queries')}{of_fold}, so it knows their "
                f"labels; set {f'--folds {others}' if others else '--query-split or --folds to other videos'}"
            )


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
