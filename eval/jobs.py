"""What an evaluation consists of: `plan_evaluation` makes it once, from settings, models and shards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gdt.common.errors import UserError
from gdt.common.wording import plural
from gdt.eval.conditions import only_decisive
from gdt.eval.evaluator import Evaluator
from gdt.eval.extract import require_network
from gdt.eval.folds import Fold, folds, gallery_split, several_labels
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.settings import Downstream
from gdt.eval.subjects import EvalSet, Subject, default_checkpoint, subjects
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import load_trained
from gdt.train.models.gdt import any_device
from gdt.train.models.given import Makers


@dataclass(frozen=True)
class Job:
    """The evaluation of a model by a protocol on a fold, with the labels of a column."""

    evaluator: Evaluator
    model: Subject
    fold: Fold

    @cached_property
    def conditions(self) -> str:
        return self.evaluator.conditions(self.fold)

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.conditions, self.model.name, self.model.digest

    @property
    def folder(self) -> Path:
        """Folder of a finetuning."""
        fold = f"fold{self.fold.number}-" if self.fold.number else ""
        name = f"{self.evaluator.protocol.name}-{fold}{self.conditions[:8]}"
        return self.evaluator.out / self.model.folder / name

    @property
    def name(self) -> str:
        return f"{self.model.name_on(self.fold)}, {self.evaluator.protocol.name}"


class EvaluationPlan(NamedTuple):
    """All that an evaluation does."""

    models: list[Subject]
    out: Path
    """Folder of the results."""
    jobs: list[Job]
    """Model by model."""


def plan_evaluation(settings: Downstream, given: Makers) -> EvaluationPlan:
    """Fill in the defaults of an evaluation, and make what it consists of; `given` are networks of the user's own.

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
    planned = evaluators(settings, eval_set, out, models)
    written = any("text" in model.trained.model.modalities for model in models)
    if written and not (settings.protocols or settings.word2vec):
        print("text is not evaluated; set --word2vec to the file that the shards were made with", flush=True)
    jobs = []
    for model in models:
        for evaluator in planned:
            facts = evaluator.protocol
            if facts.labels:
                _require_fit(model, evaluator)
            if facts.pairs and not settings.protocols and not _has_pairs(model, settings, eval_set):
                print(f"{model.name} is skipped in {facts.name}: the videos have fewer than two of its modalities")
                continue
            jobs += [Job(evaluator, model, fold) for fold in evaluator.folds]
    return EvaluationPlan(models, out, jobs)


def evaluators(settings: Downstream, eval_set: EvalSet, out: Path, compared: Sequence[Subject] = ()) -> list[Evaluator]:
    """The protocols of an evaluation, for every column of labels; the default ones are chosen for models.

    Raises UserError as `choose_protocols` and `folds` do, or if models were trained with other words.
    """
    device = any_device()
    words = None
    if settings.word2vec:
        words = WordVectors.of(eval_set.index, settings.word2vec)
        for model in compared:
            model.trained.require_same_words(words, model.path, settings.word2vec)
    planned = []
    for number, label in enumerate(settings.labels):
        of_label = replace(eval_set, index=eval_set.index.labelled(label))
        of_column = replace(settings, label=label)
        for name in choose_protocols(of_column, of_label, compared):
            protocol = PROTOCOLS[name]
            if number and not protocol.labels:
                continue  # it is the same for every column of labels
            own = only_decisive(of_column, name)
            if protocol.labels:
                own = replace(own, gallery_split=gallery_split(own.gallery_split, of_label.index, eval_set.split))
            found = folds(own, name, of_label.index, eval_set.split)
            planned.append(Evaluator(protocol, own, of_label, found, device, out, words))
    return planned


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


def _require_fit(model: Subject, evaluator: Evaluator) -> None:
    """Raise UserError if a model lacks a network, or was finetuned on labels of queries."""
    for name in evaluator.settings.modalities:
        require_network(model.trained, name)
    origin = model.trained.origin
    if not origin or not origin.finetuned_on or model.random:
        return
    eval_set = evaluator.eval_set
    known: dict[int, int] = {}
    for fold in evaluator.folds:
        ids = eval_set.index.id[fold.queries]
        known[fold.number] = origin.finetuned_on.count(eval_set.dataset, eval_set.fingerprint, ids)
    number, count = next(((number, count) for number, count in known.items() if count), (0, 0))
    if not count:
        return
    of_fold = f" of fold {number}" if number else ""
    others = " ".join(str(number) for number, count in known.items() if not count)
    raise UserError(
        f"{model.path} was finetuned on {plural(count, 'query', 'queries')}{of_fold}, so it knows their labels; set "
        + (f"--folds {others}" if others else "--query-split or --folds to other videos")
    )
