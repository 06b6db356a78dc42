"""Models by the protocols of the paper: every model, fold and protocol is a record of its own, kept and not done twice.

What could change a record (weights, data, labels, settings) is in the name of its file: a call takes up what is there,
and adds to its table every model that was evaluated in the same way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from gdt.common.errors import UserError, explain_out_of_memory
from gdt.common.files import write_text
from gdt.eval import record
from gdt.eval.finetune import METRICS, STATE
from gdt.eval.processes import job_limit, run_command, run_parallel, to_arguments
from gdt.eval.protocols import FORMAT, Evaluator, Extracted, comparable, matters, recipe, short_digest
from gdt.eval.record import Record
from gdt.eval.settings import LABELLED, PROTOCOLS, Downstream, Protocol
from gdt.eval.subjects import Data, Fold, Model, folds, held_out, models, of
from gdt.eval.tables import report, to_csv
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import load_model
from gdt.train.models.gdt import any_device
from gdt.train.provenance import Provenance

_PLAIN = Downstream(())


def downstream(settings: Downstream) -> str:
    """Evaluate whatever was not evaluated yet; returns the tables.

    Raises UserError where the shards, their labels, a split, a fold or a checkpoint is missing or does not fit.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    extracted: Extracted = {}
    evaluations = [_evaluation(replace(settings, label=label), extracted) for label in settings.labels]
    with explain_out_of_memory("take a smaller network; what is finished is kept"):
        for evaluation in evaluations:
            _evaluate(evaluation)
    return _reported(evaluations) if settings.tables else ""


@dataclass(frozen=True)
class Evaluation:
    """Models by the labels of one column."""

    data: Data
    models: list[Model]
    named: list[tuple[Protocol, Fold, str]]
    """What to evaluate each of them by, and the name of the file of its record."""
    by: Evaluator
    provenance: Provenance

    def jobs(self) -> Iterator[Job]:
        """What takes minutes first, then finetuning."""
        for finetuned in (False, True):
            for model in self.models:
                for protocol, fold, name in self.named:
                    if (protocol == "finetune") == finetuned:
                        yield Job(model, protocol, fold, self.by.out / model.folder / name)

    def found(self) -> Iterator[Record]:
        """Records of all models that were got in the same way, also by earlier calls."""
        for _, _, name in self.named:
            for path in sorted(self.by.out.glob(f"*/{name}")):
                yield from read(path)


@dataclass(frozen=True)
class Job:
    """One model by one protocol on one fold."""

    model: Model
    protocol: Protocol
    fold: Fold
    path: Path
    """Of its record."""

    def said(self, found: Record) -> str:
        column, first = next(iter(found.metrics.items()))
        return f"{of(self.model, self.fold)}, {self.protocol}: {column} {first.value:.1f} %"


def _evaluation(settings: Downstream, extracted: Extracted) -> Evaluation:
    """All that is to do. `extracted` are features that other columns of labels needed, too."""
    first = load_model(settings.ckpt[0])
    data = Data.open(settings.ckpt[0], first, settings.dataset, settings.shards, settings.query_split, settings.label)
    if settings.gallery_split == data.split:
        raise UserError(
            f"gallery and queries are both the split '{data.split}', where every video finds itself; set "
            "--query-split or --gallery-split to another"
        )
    device = any_device()
    compared = list(models(settings, first, data.index))
    protocols = _protocols(settings, data, compared)
    parts = folds(settings, data.index, data.split) if set(protocols) & set(LABELLED) else []
    for model in compared:
        _require_unseen(model, data, parts)
    words = WordVectors.of(data.index, settings.word2vec) if settings.word2vec else None
    out = settings.out or Path("runs") / f"eval-{data.dataset}"
    by = Evaluator(settings, data.index, data.fingerprint, parts, data.split, device, out, words, extracted)
    unlabelled = [held_out(data.index, data.split)] if set(protocols) - set(LABELLED) else []
    named = [
        (protocol, fold, _name(by, protocol, fold))
        for protocol in protocols
        for fold in (parts if protocol in LABELLED else unlabelled)
    ]
    return Evaluation(data, compared, named, by, Provenance.of(device))


def _protocols(settings: Downstream, data: Data, compared: Sequence[Model]) -> tuple[Protocol, ...]:
    """Those that were asked for, or all that need no training and that models and data are fit for."""
    if asked := settings.protocols:
        return tuple(protocol for protocol in PROTOCOLS if protocol in asked)
    labelled = data.index.label != ""
    both = all((labelled & (data.index.split == split)).any() for split in (settings.gallery_split, data.split))
    pairs = any(_has_pairs(model, settings, data) for model in compared)
    chosen = (
        *(("cross-modal",) if pairs else ()),
        *(("retrieval", "few-shot") if both or settings.asks_labels else ()),
    )
    if not chosen:
        raise UserError(
            f"{data.index.folder} has no labels with a train and a test split, and the model has no two modalities "
            "that the videos have; there is nothing to evaluate"
        )
    return chosen


def _has_pairs(model: Model, settings: Downstream, data: Data) -> bool:
    """Whether it has two modalities that the videos have."""
    return len(comparable(model.trained, data.index, settings)) > 1


def _require_unseen(model: Model, data: Data, parts: Sequence[Fold]) -> None:
    """Raise UserError where a model was finetuned on labels of videos that are evaluated."""
    learned = model.trained.foreign.learned if model.trained.foreign and not model.random else None
    if learned and learned[0] == data.fingerprint and (others := [f.number for f in parts if f.number != learned[1]]):
        raise UserError(
            f"{model.path} was finetuned on fold {learned[1]} of these videos, and so on labels that fold "
            f"{others[0]} tests; evaluate it with --folds {learned[1]}"
        )


def _name(by: Evaluator, protocol: Protocol, fold: Fold) -> str:
    """The file of a record. It holds everything that could change it but the weights, as its folder does."""
    details = matters(by.settings, protocol) | {"precision": _precision(by)}
    if protocol == "cross-modal" and by.words is not None:
        details |= {"words": by.words.checksum(), "captions": by.index.shard_seal.tolist()}
    what = short_digest([FORMAT, by.data, fold.digest, by.query_split, details])
    return f"{protocol}{f'-fold{fold.number}' if fold.number else ''}-{what}.json"


def _precision(by: Evaluator) -> str:
    return "bfloat16" if by.device.type == "cuda" else "float32"


def _evaluate(evaluation: Evaluation) -> None:
    """Everything that is not there yet: what takes minutes first, then finetuning, several at a time."""
    finetuned = []
    for job in evaluation.jobs():
        unasked = job.protocol == "cross-modal" and not evaluation.by.settings.protocols
        if unasked and not _has_pairs(job.model, evaluation.by.settings, evaluation.data):
            print(f"{job.model.name} has no two modalities to compare here, and no part in that table")
            continue
        if read(job.path):
            continue
        if job.protocol == "finetune":
            finetuned.append(job)
        else:
            _once(evaluation, job)
    if finetuned:
        _finetune_all(evaluation, finetuned)


def _once(evaluation: Evaluation, job: Job) -> None:
    """Evaluate, and write the record."""
    model, by = job.model, evaluation.by
    job.path.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    metrics, how, fold = by.evaluate(model, job.protocol, job.fold, job.path.with_suffix(""))
    clip = (recipe(by.settings, model.trained) if job.protocol == "finetune" else model.trained.settings).clip
    found = model.record(
        evaluation.data,
        by.settings,
        protocol=job.protocol,
        label=by.settings.label,
        labels=fold.digest,
        fold=fold.number,
        gallery=len(fold.gallery),
        queries=len(fold.queries),
        held=int((by.index.start_counts(clip.frames, clip.stride)[fold.videos] == 0).sum()),
        classes=len(np.unique(fold.gallery_label)),
        clips=by.settings.clips,
        metrics=metrics,
        how=how | {"precision": _precision(by)},
        provenance=evaluation.provenance,
    )
    record.write(job.path, [found])
    (job.path.with_suffix("") / STATE).unlink(missing_ok=True)
    print(f"[{time.perf_counter() - began:4.0f} s] {job.said(found)}", flush=True)


def _finetune_all(evaluation: Evaluation, jobs: Sequence[Job]) -> None:
    """Each in a process of its own, which is this command for one fold; in this one where there is one at a time.

    So the threads, and with them the last digits, do not depend on how many were left to do.
    """
    at_once = job_limit(evaluation.by.settings.jobs)
    if at_once == 1:
        for job in jobs:
            _once(evaluation, job)
        return

    def run(job: Job, gpu: str) -> None:
        job.path.parent.mkdir(parents=True, exist_ok=True)
        what = f"finetuning {of(job.model, job.fold)}"
        run_command(_command(evaluation, job), job.path.with_suffix(".log"), gpu, what)

    def epochs() -> int:
        """How many are done."""
        logs = (job.path.with_suffix("") / METRICS for job in jobs)
        return sum(len(log.read_text().splitlines()) for log in logs if log.is_file())

    print(f"{len(jobs)} finetuning runs, {at_once} at a time; logs beside their results")
    total = recipe(evaluation.by.settings, jobs[0].model.trained).epochs * len(jobs)
    with tqdm(total=total, initial=epochs(), unit="epoch", desc="finetune", mininterval=1.0) as bar:
        for job in run_parallel(jobs, run, at_once, lambda: bar.update(epochs() - bar.n)):
            (found,) = read(job.path)
            bar.write(job.said(found))


def _command(evaluation: Evaluation, job: Job) -> list[str]:
    """Arguments of `gdt` that do a job of finetuning alone."""
    by = evaluation.by
    alone = replace(
        by.settings, ckpt=(job.model.path,), dataset=evaluation.data.dataset, shards=by.index.folder, out=by.out,
        protocols=("finetune",), folds=(job.fold.number,) if job.fold.number else (), query_split=by.query_split,
        random="only" if job.model.random else "no", word2vec=None, linear_c=_PLAIN.linear_c, jobs=1,
        threads=by.settings.threads or (0 if by.device.type == "cuda" else 1), tables=True,
    )  # fmt: skip
    return ["eval", "downstream", "--no-tables", *to_arguments(alone, _PLAIN)]


def _reported(evaluations: Sequence[Evaluation]) -> str:
    """Tables of all models that were evaluated in these ways, also by earlier calls."""
    out = evaluations[0].by.out
    # recall across modalities asks no labels, and is the same for all of them
    first, others = list(evaluations[0].found()), [evaluation.found() for evaluation in evaluations[1:]]
    text = report([first, *([row for row in found if row.protocol in LABELLED] for found in others)], out)
    every = [found for path in sorted(out.glob("*/*.json")) for found in read(path)]
    write_text(out / "all.csv", to_csv(every))
    return f"{text}\n\ntables (txt, tex, csv) and numbers (json; all.csv has those of other calls, too): {out}/"


def read(path: Path) -> list[Record]:
    """The record in a file; none, which is said, where it is damaged or of another version, and where there is none."""
    if not path.is_file():
        return []
    try:
        return record.read(path)
    except UserError as error:
        print(f"warning: {error}", file=sys.stderr)
        return []
