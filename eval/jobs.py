"""What an evaluation consists of: protocols by columns of labels, then jobs by models and folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gdt.common.errors import UserError
from gdt.eval.conditions import conditions_of
from gdt.eval.evaluator import Evaluator
from gdt.eval.extract import require_network
from gdt.eval.folds import Fold, folds, gallery_split, several_labels
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.settings import Downstream
from gdt.eval.subjects import EvalSet, Subject
from gdt.pipeline.word2vec import WordVectors
from gdt.train.models.gdt import any_device


class PlannedProtocol(NamedTuple):
    """What an evaluation does with a protocol and a column of labels, for any model."""

    settings: Downstream
    """The settings of this column, with its gallery."""
    eval_set: EvalSet
    """The evaluation set with the labels of this column."""
    protocol: str
    folds: list[Fold]
    conditions: list[str]
    """The conditions of each fold."""


def planned_protocols(
    settings: Downstream, eval_set: EvalSet, device: str, words: WordVectors | None, compared: Sequence[Subject] = ()
) -> list[PlannedProtocol]:
    """The protocols of an evaluation, for every column of labels; the default ones are chosen for models.

    Raises UserError as `choose_protocols` and `folds` do.
    """
    planned = []
    for number, label in enumerate(settings.labels):
        of_label = replace(eval_set, index=eval_set.index.labelled(label))
        of_column = replace(settings, label=label)
        protocols = choose_protocols(of_column, of_label, compared)
        if any("gallery_split" in PROTOCOLS[name].settings for name in protocols):  # others refuse it
            gallery = gallery_split(settings.gallery_split, of_label.index, eval_set.split)
            of_column = replace(of_column, gallery_split=gallery)
        for protocol in protocols:
            if number and not PROTOCOLS[protocol].labels:
                continue  # it is the same for every column of labels
            found = folds(of_column, protocol, of_label.index, eval_set.split)
            keys = [conditions_of(of_column, protocol, of_label, fold, device, words) for fold in found]
            planned.append(PlannedProtocol(of_column, of_label, protocol, found, keys))
    return planned


@dataclass(frozen=True)
class Job:
    """The evaluation of a model by a protocol on a fold, with the labels of a column."""

    evaluator: Evaluator
    model: Subject
    protocol: str
    fold: Fold
    conditions: str

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.conditions, self.model.name, self.model.digest

    @property
    def folder(self) -> Path:
        """Folder of a finetuning."""
        fold = f"fold{self.fold.number}-" if self.fold.number else ""
        return self.evaluator.out / self.model.folder / f"{self.protocol}-{fold}{self.conditions[:8]}"

    @property
    def name(self) -> str:
        return f"{self.model.name_on(self.fold)}, {self.protocol}"


def plan_jobs(settings: Downstream, eval_set: EvalSet, compared: Sequence[Subject], out: Path) -> list[Job]:
    """The jobs of an evaluation, model by model. Raises UserError if models, data and settings do not fit."""
    device = any_device()
    words = None
    if settings.word2vec:
        words = WordVectors.of(eval_set.index, settings.word2vec)
        for model in compared:
            model.trained.require_same_words(words, model.path, settings.word2vec)

    planned = planned_protocols(settings, eval_set, device.type, words, compared)
    written = any("text" in model.trained.model.modalities for model in compared)
    if written and not (settings.protocols or settings.word2vec):
        print("text is not evaluated; set --word2vec to the file that the shards were made with", flush=True)
    # one for a column of labels
    evaluators = {part.settings.label: Evaluator(part.settings, part.eval_set, device, out, words) for part in planned}
    jobs = []
    for model in compared:
        for part in planned:
            facts = PROTOCOLS[part.protocol]
            if facts.labels:
                _require_fit(model, part.settings, part.eval_set, part.folds)
            if facts.pairs and not settings.protocols and not _has_pairs(model, settings, eval_set):
                print(f"{model.name} is skipped in {part.protocol}: the videos have fewer than two of its modalities")
                continue
            evaluator = evaluators[part.settings.label]
            for fold, conditions in zip(part.folds, part.conditions, strict=True):
                jobs.append(Job(evaluator, model, part.protocol, fold, conditions))
    return jobs


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


def _require_fit(model: Subject, settings: Downstream, eval_set: EvalSet, evaluated: Sequence[Fold]) -> None:
    """Raise UserError if a model lacks a network, or was finetuned on labels of query videos."""
    for name in settings.modalities:
        require_network(model.trained, name)
    origin = model.trained.origin
    if not origin or not origin.finetuned_on or model.random:
        return
    fingerprint, number = origin.finetuned_on
    others = [fold.number for fold in evaluated if fold.number != number]
    if others and fingerprint == eval_set.fingerprint:
        raise UserError(
            f"{model.path} was finetuned on fold {number} of these videos, so it knows test labels of fold "
            f"{others[0]}; set --folds {number}"
        )
