"""`gdt evaluate`: a line of results.jsonl per model, protocol, fold and column of labels, and tables of them.

A line that is there is not computed again. The tables include every model that was evaluated under the same conditions,
by this call or an earlier one.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
from tqdm import tqdm

from gdt.common.commandline import arguments_of, gdt_command
from gdt.common.errors import explain_out_of_memory
from gdt.common.files import locked
from gdt.eval import results
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome, ProtocolFunction, jobs_of
from gdt.eval.results import RANDOM, RESULTS, Result
from gdt.eval.settings import Downstream
from gdt.eval.subprocesses import Task, job_limit, run_parallel
from gdt.eval.tables import pivot, write_tables
from gdt.eval.training import EPOCHS, Finetuning
from gdt.pipeline.shards.copies import between_splits
from gdt.pipeline.shards.index import names_in
from gdt.train.models.own import NetworkLike, makers
from gdt.train.provenance import provenance_of
from gdt.train.run import home_of, logged


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found."""

    results: list[Result]
    """Results of all models evaluated under the same conditions, by this call or an earlier one."""
    jobs: list[Job]
    """Those of this call."""
    text: str
    out: Path


def downstream(settings: Downstream) -> str:
    """Run the missing evaluations and return the tables. Raises UserError as `evaluate` does."""
    evaluated = evaluate(settings)
    if not settings.tables:
        return ""
    out = evaluated.out
    runs = [home_of(Path(weights)) for weights in settings.ckpt]
    home = next((run for run in runs if out.is_relative_to(run)), out if settings.out else out.parent)
    return (
        f"{evaluated.text}\n\nresults: {out}/{RESULTS}; tables: table.txt, table.tex, results.csv\n"
        f"next: {gdt_command('report', '--runs', home)}"
    )


@explain_out_of_memory("lower --jobs; finished results are kept")
def evaluate(settings: Downstream, networks: Mapping[str, Sequence[NetworkLike]] | None = None) -> Evaluation:
    """Run the missing evaluations.

    `networks`: the user's own by modality, besides those in the settings, which other processes do not have.
    Raises UserError if the shards, their labels, a split, a fold or a checkpoint is missing or does not fit.
    """
    jobs = jobs_of(settings, makers({**settings.own_networks.given, **(networks or {})}))
    out = jobs[0].out
    # in a subprocess, the parent holds the lock
    lock = locked(out, "set --out to another folder") if settings.tables else contextlib.nullcontext()
    with lock:
        todo = missing(jobs)
        for job in todo:
            if not job.protocol.trains:
                _run(job)
        finetuning = [job for job in todo if job.protocol.trains]
        if finetuning:
            _finetune_all(settings, finetuning, 1 if networks else job_limit(settings.jobs))
        every = comparable(jobs)
        text = ""
        if settings.tables:
            text = write_tables(out, pivot(every, answers=results.all_answers(out, every)), every)
    return Evaluation(every, jobs, text, out)


def missing(jobs: Sequence[Job]) -> list[Job]:
    """The jobs without a result."""
    done = {result.key for result in results.read(jobs[0].out / RESULTS)}
    return list({job.key: job for job in jobs if job.key not in done}.values())


def comparable(jobs: Sequence[Job]) -> list[Result]:
    """The results of jobs, and those of other models under the same conditions; of one name, those of the jobs."""
    asked = {job.key: number for number, job in enumerate(jobs)}  # tables compare with the first model
    names = {job.subject.name for job in jobs}
    found = [
        result for result in results.read(jobs[0].out / RESULTS) if result.model not in names or result.key in asked
    ]
    shared = {result.shared for result in found if result.key in asked}
    every = [result for result in found if result.shared in shared]
    return sorted(every, key=lambda result: asked.get(result.key, len(asked)))


def _run(job: Job) -> None:
    """Evaluate and append the result."""
    start = time.perf_counter()
    fold, details = job.videos()
    function: ProtocolFunction = resolve_name(f"gdt.{job.protocol.function}")
    outcome = function(job, fold)
    queries = fold.queries if outcome.queries is None else outcome.queries
    result = _result(job, fold, queries, outcome, details)
    results.write_answers(job.out, job.key, queries, outcome.metrics, outcome.neighbours)
    results.append(job.out / RESULTS, result)
    name, first = next(iter(result.metrics.items()))
    print(f"[{time.perf_counter() - start:4.0f} s] {job.name}: {name} {first.value:.1f} %", flush=True)


def _result(job: Job, fold: Fold, queries: np.ndarray, outcome: Outcome, of_videos: Mapping[str, str]) -> Result:
    """The line of a job on these videos, of which it has evaluated some queries."""
    model = job.subject
    trained = model.trained
    eval_set = job.eval_set
    pretraining = trained.settings
    return Result(
        **job.decisive,
        checkpoint=model.path,
        preset=RANDOM if model.random else trained.name,
        seed=pretraining.seed,
        step=trained.step,
        steps=trained.record.steps,
        videos=0 if trained.origin else trained.step * pretraining.batch_size,
        tflop=trained.step * trained.record.flops / 1e12,
        seen=model.seen(eval_set, queries),
        dataset=eval_set.dataset,
        shards=str(eval_set.index.folder),
        gallery=len(fold.gallery),
        queries=len(queries),
        classes=len(names_in(fold.gallery_label)),
        metrics={name: measured.metric for name, measured in outcome.metrics.items()},
        details=_details(job, fold, outcome, of_videos),
        provenance=provenance_of(job.device),
    )


def _details(job: Job, fold: Fold, outcome: Outcome, of_videos: Mapping[str, str]) -> dict[str, str]:
    """What else the line says of a result, as text, with details of its videos."""
    trained = job.subject.trained
    precision = "bfloat16" if job.device.type == "cuda" else "float32"
    details = {"clip": str(trained.settings.clip), "precision": precision, **outcome.details, **of_videos}
    index = job.eval_set.index
    copies = between_splits(index.fold(fold.number) if fold.number else index, job.eval_set.split)
    if copies:
        details["copies"] = f"{f'fold {fold.number}: ' if fold.number else ''}{'; '.join(copies)}"
    rate = trained.inputs.other_rate(index) if "video" in job.settings.modalities else ""
    warnings = [*filter(None, (outcome.warning, job.sameness(fold), of_videos.get("warning"), rate))]
    if warnings:
        details["warning"] = "; ".join(warnings)
    return details


def _finetune_all(settings: Downstream, jobs: Sequence[Job], limit: int) -> None:
    """Run every job in its own subprocess, `limit` in parallel, or in this process if that is 1.

    Thus the number of threads, which affects the last digits, does not depend on the number of remaining jobs.
    """
    if limit == 1:
        for job in jobs:
            _run(job)
        return

    def finished() -> int:
        return sum(len(logged(job.folder / EPOCHS)) for job in jobs)

    protocols = dict.fromkeys(job.protocol.name for job in jobs)
    logs = " ".join(f"{jobs[0].out}/*/{protocol}-*/log.txt" for protocol in protocols)
    print(f"{len(jobs)} finetuning runs, {limit} in parallel; logs: {logs}")
    epochs = Finetuning.recipe_of(jobs[0].settings, jobs[0].subject.trained).epochs
    tasks = [Task(f"finetuning {job.name}", job.folder, [_command(settings, job)]) for job in jobs]
    names = {job.folder: job.name for job in jobs}
    with tqdm(total=epochs * len(jobs), initial=finished(), unit="epoch", desc="finetune", mininterval=1.0) as bar:
        for task in run_parallel(tasks, limit, lambda: bar.update(finished() - bar.n)):
            bar.write(f"{names[task.folder]}: done")


def _command(settings: Downstream, job: Job) -> list[str]:
    """Arguments of `gdt` for one finetuning job of an evaluation."""
    alone = replace(
        job.settings,
        ckpt=(job.subject.path,),
        dataset=job.eval_set.dataset,
        shards=job.eval_set.index.folder,
        out=job.out,
        protocols=(job.protocol.name,),
        folds=(job.fold.number,) if job.fold.number else (),
        query_split=job.eval_set.split,
        random_weights="only" if job.subject.random else "exclude",
        jobs=1,
        tables=False,
        own_networks=settings.own_networks,
        cache=settings.cache,
    )
    return ["evaluate", *arguments_of(alone, Downstream())]
