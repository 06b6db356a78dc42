"""Downstream evaluation: one record per model, protocol and fold, which is stored and reused.

The name of a record's file covers everything that could change it (weights, data, labels, settings). The tables
include every model that was evaluated with the same settings, by this call or an earlier one.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from gdt.common import serialization
from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError, explain_out_of_memory, plural
from gdt.common.files import write_text
from gdt.common.lock import locked
from gdt.eval import record
from gdt.eval.extract import require_network
from gdt.eval.finetune import METRICS, STATE, build_recipe
from gdt.eval.of_run import NO_RUN
from gdt.eval.processes import job_limit, run_command, run_parallel
from gdt.eval.protocols import (
    FORMAT,
    PROTOCOLS,
    Evaluator,
    decisive_names,
    only_decisive,
    shared_modalities,
    short_digest,
)
from gdt.eval.record import Record
from gdt.eval.settings import Downstream
from gdt.eval.subjects import (
    Data,
    Fold,
    Model,
    complete_folds,
    describe,
    folds,
    gallery_split,
    held_out,
    models,
    official_folds,
)
from gdt.eval.tables import report, to_csv
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import NAME, Trained, load_trained
from gdt.train.models.gdt import any_device
from gdt.train.provenance import provenance_of

_SHOWN = 3
"""Maximum number of classes that a warning names."""


def downstream(settings: Downstream) -> str:
    """Run the missing evaluations and return the tables.

    Raises UserError if the shards, their labels, a split, a fold or a checkpoint is missing or does not fit.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if not settings.ckpt:
        settings = replace(settings, ckpt=(settings.checkpoint(settings.dataset, settings.shards),), **NO_RUN)
    extracted: dict[str, tuple[Path, np.ndarray]] = {}  # shared by all columns of labels, as the models are
    compared = list(models(settings, first := load_trained(settings.ckpt[0])))
    evaluations = [_plan(replace(settings, label=label), first, compared, extracted) for label in settings.labels]
    with (
        locked(evaluations[0].evaluator.out, "set --out to another folder")
        if settings.tables
        else contextlib.nullcontext(),
        explain_out_of_memory("lower --jobs; finished results are kept"),
    ):  # without tables, the parent holds the lock
        for evaluation in evaluations:
            if settings.tables:
                _report_unlabelled(evaluation)
                _report_unanswerable(evaluation)
            _run(evaluation)
        return _write_tables(evaluations) if settings.tables else ""


@dataclass(frozen=True)
class Job:
    """The evaluation of a model by a protocol on a fold."""

    model: Model
    protocol: str
    fold: Fold
    path: Path
    """File of the record."""

    def summary(self, result: Record) -> str:
        column, first = next(iter(result.metrics.items()))
        return f"{describe(self.model, self.fold)}, {self.protocol}: {column} {first.value:.1f} %"


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of models with the labels of one column."""

    data: Data
    models: list[Model]
    files: list[tuple[str, Fold, str]]
    """A protocol, a fold, and the name of its record's file."""
    evaluator: Evaluator
    provenance: dict[str, Any]

    def jobs(self) -> Iterator[Job]:
        """All jobs, finetuning last."""
        for trains in (False, True):
            for model in self.models:
                for protocol, fold, name in self.files:
                    if PROTOCOLS[protocol].trains == trains:
                        yield Job(model, protocol, fold, self.evaluator.out / model.folder / name)

    def records(self) -> Iterator[Record]:
        """Records of all models evaluated with the same settings, by this call or an earlier one."""
        for _, _, name in self.files:
            for path in sorted(self.evaluator.out.glob(f"*/{name}")):
                yield from record.read_or_warn(path)


def _plan(
    settings: Downstream, first: Trained, compared: list[Model], extracted: dict[str, tuple[Path, np.ndarray]]
) -> Evaluation:
    """The evaluation with the labels of one column. Raises UserError if models, data and settings do not fit."""
    data = Data.open(settings.ckpt[0], first, settings.dataset, settings.shards, settings.query_split, settings.label)
    gallery = gallery_split(settings.gallery_split, data.index, data.split)
    if not official_folds(data.index):
        held_out(data.index, data.split)  # raises UserError if there are none
    device = any_device()
    protocols = _protocols(settings, gallery, data, compared)
    if gallery == data.split and any(PROTOCOLS[name].labels for name in protocols):
        raise UserError(
            f"gallery and queries are both the split '{data.split}', so every video would find itself; change "
            "--query-split or --gallery-split"
        )
    labelled = folds(settings, data.index, data.split) if any(PROTOCOLS[name].labels for name in protocols) else []
    if any("gallery_split" in PROTOCOLS[name].settings for name in protocols):  # other protocols refuse it
        settings = replace(settings, gallery_split=gallery)
    unlabelled = [] if all(PROTOCOLS[name].labels for name in protocols) else [held_out(data.index, data.split)]
    for model in compared:
        _require_unseen(model, data, labelled)
        for name in settings.modalities if any("modalities" in PROTOCOLS[one].settings for one in protocols) else ():
            require_network(model.trained, name)
    words = None
    if settings.word2vec:
        words = WordVectors.of(data.index, settings.word2vec)
        for model in compared:
            _require_same_words(model, words, settings.word2vec)
    out = settings.out or Path("runs") / f"eval-{data.dataset}"
    evaluator = Evaluator(settings, data.index, data.fingerprint, labelled, data.split, device, out, words, extracted)
    files = [
        (protocol, fold, _file_name(evaluator, protocol, fold))
        for protocol in protocols
        for fold in (labelled if PROTOCOLS[protocol].labels else unlabelled)
    ]
    return Evaluation(data, compared, files, evaluator, provenance_of(device))


def _protocols(settings: Downstream, gallery: str, data: Data, compared: Sequence[Model]) -> list[str]:
    """The protocols of --protocols, or the default ones that suit the models and the data."""
    if settings.protocols:
        return [name for name in PROTOCOLS if name in settings.protocols]
    labelled = {*data.index.split[data.index.label != ""]}
    splits = {"--gallery-split": gallery, "--query-split": data.split}
    reasons = [
        f"{option} is '{split}', which has no labels; splits with labels: {', '.join(sorted(labelled))}"
        for option, split in splits.items()
        if split not in labelled
    ]
    if official_folds(data.index):  # each has splits of its own
        fits = complete_folds(data.index, [*splits.values()])
        reasons = [] if fits else [f"no official fold has videos in both splits, {' and '.join(splits.values())}"]
    queries = bool((data.index.split == data.split).any())  # cross-modal takes the splits of fold 1
    labels = settings.requires_labels or not reasons or not queries
    if not labelled and data.index.columns:
        reasons = [f"there are no classes; set --label to one of {', '.join(sorted(data.index.columns))}"]
    if reasons and not labels and (labelled or data.index.columns):
        names = [name for name, protocol in PROTOCOLS.items() if protocol.default and protocol.labels]
        print(f"{' and '.join(names)} are skipped: {'; '.join(reasons)}", flush=True)
    wordless = not settings.word2vec and any("text" in model.trained.model.modalities for model in compared)
    pairs = queries and any(_has_pairs(model, settings, data) for model in compared)
    plain = settings.modalities == ("video",)  # others affect some protocols only
    chosen = [
        name
        for name, protocol in PROTOCOLS.items()
        if protocol.default
        and (labels or not protocol.labels)
        and (pairs or not protocol.pairs)
        and (plain or "modalities" in protocol.settings)
    ]
    if not chosen:
        if wordless:
            raise UserError(
                "nothing to evaluate without the words of the captions; set --word2vec to the file that the shards "
                "were made with"
            )
        raise UserError(
            f"nothing to evaluate: the gallery or the query split of {data.index.folder} has no labels, and no model "
            "shares two modalities with these videos; add labels (labels.csv)"
        )
    if wordless and queries and plain:
        print("text is not evaluated; set --word2vec to the file that the shards were made with", flush=True)
    return chosen


def _report_unlabelled(evaluation: Evaluation) -> None:
    """Print how many videos the protocols with labels leave out."""
    used = dict.fromkeys(name for name, _, _ in evaluation.files if PROTOCOLS[name].labels)
    index, settings = evaluation.data.index, evaluation.evaluator.settings
    chosen = np.isin(index.split, (settings.gallery_split, evaluation.data.split))
    left_out = int((chosen & (index.label == "")).sum())
    if used and left_out:
        source = f"column {settings.label}" if settings.label else "labels come from subfolders or labels.csv"
        print(
            f"{' and '.join(used)} {'leaves' if len(used) == 1 else 'leave'} out {left_out} of {chosen.sum()} videos, "
            f"which have no label ({source})",
            flush=True,
        )


def _report_unanswerable(evaluation: Evaluation) -> None:
    """Warn of queries whose class has no gallery video, which every model gets wrong."""
    folds_with_labels = {fold.number: fold for name, fold, _ in evaluation.files if PROTOCOLS[name].labels}
    for fold in folds_with_labels.values():
        lacking = ~np.isin(fold.query_label, fold.gallery_label)
        if count := int(lacking.sum()):
            classes = ", ".join(f"'{name}'" for name in np.unique(fold.query_label[lacking])[:_SHOWN])
            print(
                f"warning: {count} of {plural(len(fold.queries), 'query', 'queries')} have a class without gallery "
                f"videos ({classes}), so any model gets them wrong",
                flush=True,
            )


def _has_pairs(model: Model, settings: Downstream, data: Data) -> bool:
    """Whether the model has two modalities that the videos have."""
    return len(shared_modalities(model.trained, data.index, settings)) > 1


def _require_unseen(model: Model, data: Data, parts: Sequence[Fold]) -> None:
    """Raise UserError if a model was finetuned on labels of query videos."""
    known = model.trained.foreign.finetuned_on if model.trained.foreign and not model.random else None
    if known and known[0] == data.fingerprint and (others := [f.number for f in parts if f.number != known[1]]):
        raise UserError(
            f"{model.path} was finetuned on fold {known[1]} of these videos, so it knows test labels of fold "
            f"{others[0]}; set --folds {known[1]}"
        )


def _require_same_words(model: Model, words: WordVectors, path: Path) -> None:
    """Raise UserError if a text model was trained with other word vectors."""
    trained = model.trained
    if "text" not in trained.model.modalities:
        return
    if (trained.words and words.checksum != trained.words) or trained.model.network.word_dimensions != words.dimensions:
        raise UserError(
            f"{model.path} was trained with other word vectors than those of {path}; set --word2vec to the file of its "
            "training"
        )


def _file_name(evaluator: Evaluator, protocol: str, fold: Fold) -> str:
    """File name of a record: covers all that could change it, except the weights, which are in the folder's name."""
    own = only_decisive(evaluator.settings, protocol)
    details = {name: getattr(own, name) for name in decisive_names(protocol)}
    details |= {"precision": _precision(evaluator), "words": _words(evaluator, protocol)}
    digest = short_digest([FORMAT, evaluator.data, fold.digest, evaluator.query_split, details])
    return f"{protocol}{f'-fold{fold.number}' if fold.number else ''}-{digest}.json"


def _words(evaluator: Evaluator, protocol: str) -> str:
    """Checksum of the words that a protocol uses."""
    words = evaluator.words if "word2vec" in PROTOCOLS[protocol].settings else None
    return "" if words is None else words.checksum


def _precision(evaluator: Evaluator) -> str:
    return "bfloat16" if evaluator.device.type == "cuda" else "float32"


def _run(evaluation: Evaluation) -> None:
    """Run the jobs that have no record yet, finetuning last and in parallel."""
    settings, finetuning = evaluation.evaluator.settings, []
    for job in evaluation.jobs():
        protocol = PROTOCOLS[job.protocol]
        if protocol.pairs and not settings.protocols and not _has_pairs(job.model, settings, evaluation.data):
            print(f"{job.model.name} is skipped in {job.protocol}: the videos have fewer than two of its modalities")
        elif record.read_or_warn(job.path, "it is computed again"):
            continue
        elif protocol.trains:
            finetuning.append(job)
        else:
            _run_job(evaluation, job)
    if finetuning:
        _finetune_all(evaluation, finetuning)


def _run_job(evaluation: Evaluation, job: Job) -> None:
    """Evaluate and write the record."""
    model, evaluator = job.model, evaluation.evaluator
    folder = job.path.with_suffix("")
    job.path.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    own = only_decisive(evaluator.settings, job.protocol)
    metrics, details, fold, clip = evaluator.evaluate(model, job.protocol, job.fold, folder)
    short = evaluator.index.start_counts(clip.frames, clip.stride)[fold.videos] == 0
    result = model.record(
        evaluation.data, own, fold.queries, protocol=job.protocol, label=own.label, labels=fold.digest,
        words=_words(evaluator, job.protocol), fold=fold.number, gallery=len(fold.gallery), short=int(short.sum()),
        classes=len(np.unique(fold.gallery_label)), clips=evaluator.settings.clips, metrics=metrics,
        details=details | {"precision": _precision(evaluator)}, provenance=evaluation.provenance,
    )  # fmt: skip
    record.write(job.path, [result])
    (folder / STATE).unlink(missing_ok=True)
    print(f"[{time.perf_counter() - start:4.0f} s] {job.summary(result)}", flush=True)


def _finetune_all(evaluation: Evaluation, jobs: Sequence[Job]) -> None:
    """Run every job in its own subprocess, or in this process with --jobs 1.

    Thus the number of threads, which affects the last digits, does not depend on the number of remaining jobs.
    """
    limit = job_limit(evaluation.evaluator.settings.jobs)
    if limit == 1:
        for job in jobs:
            _run_job(evaluation, job)
        return

    def run(job: Job, gpu: str, stop: threading.Event) -> None:
        job.path.parent.mkdir(parents=True, exist_ok=True)
        name = f"finetuning {describe(job.model, job.fold)}"
        run_command(_command(evaluation, job), job.path.with_suffix(".log"), gpu, name, stop)

    def finished_epochs() -> int:
        logs = (job.path.with_suffix("") / METRICS for job in jobs)
        return sum(len(log.read_bytes().splitlines()) for log in logs if log.is_file())

    print(f"{len(jobs)} finetuning runs, {limit} in parallel; logs are next to the results")
    total = build_recipe(evaluation.evaluator.settings, jobs[0].model.trained).epochs * len(jobs)
    with tqdm(total=total, initial=finished_epochs(), unit="epoch", desc="finetune", mininterval=1.0) as bar:
        for job in run_parallel(jobs, run, limit, lambda: bar.update(finished_epochs() - bar.n)):
            (result,) = record.read_or_warn(job.path)
            bar.write(job.summary(result))


def _command(evaluation: Evaluation, job: Job) -> list[str]:
    """Arguments of `gdt` for one finetuning job: its settings, serialized."""
    evaluator = evaluation.evaluator
    settings = evaluator.settings
    alone = replace(
        only_decisive(settings, job.protocol), ckpt=(job.model.path,), dataset=evaluation.data.dataset,
        shards=evaluator.index.folder, out=evaluator.out, protocols=(job.protocol,),
        folds=(job.fold.number,) if job.fold.number else (), query_split=evaluator.query_split,
        random_weights="only" if job.model.random else "exclude", jobs=1,
        threads=settings.threads or int(evaluator.device.type != "cuda"), tables=False,
    )  # fmt: skip
    return ["evaluate", serialization.to_json(alone)]


def _write_tables(evaluations: Sequence[Evaluation]) -> str:
    """Write and return the tables of all models evaluated with these settings, by this call or earlier ones."""
    out = evaluations[0].evaluator.out
    first, *others = [list(evaluation.records()) for evaluation in evaluations]
    # protocols without labels give the same records for every column of labels
    text = report([first, *([row for row in rows if PROTOCOLS[row.protocol].labels] for rows in others)], out)
    paths = sorted({path for name in PROTOCOLS for path in out.glob(f"*/{name}-*.json")})
    records = [row for path in paths for row in record.read_or_warn(path)]
    write_text(out / "all.csv", to_csv(records))
    runs = _folder_of_report(evaluations[0].evaluator.settings, out)
    asked = {model.name for model in evaluations[0].models}
    shown = itertools.chain(first, *others)
    earlier = dict.fromkeys(row.model for row in shown if row.model not in asked)
    return (
        f"{text}\n\n"
        + (f"evaluated by earlier calls with the same settings: {', '.join(earlier)}\n" if earlier else "")
        + f"tables with all notes: {out}/table.txt\n"
        "also there: table.tex, results.csv, results.json; all.csv has the results of all calls\n"
        f"next: {gdt_command('report', '--runs', runs)}"
    )


def _folder_of_report(settings: Downstream, out: Path) -> Path:
    """The folder whose report has these results: the run they are in, or --out if set, or else its parent."""
    runs = [path.parent if path.name == NAME else path for path in settings.ckpt]
    return next((run for run in runs if out.is_relative_to(run)), out if settings.out else out.parent)
