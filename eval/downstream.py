"""`gdt evaluate`: a line of results.jsonl per model, protocol, fold and column of labels, and tables of them.

A line that is there is not computed again. The tables include every model that was evaluated under the same conditions,
by this call or an earlier one.
"""

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name

from tqdm import tqdm

from gdt.common.commandline import arguments_of, gdt_command
from gdt.common.errors import explain_out_of_memory
from gdt.common.files import locked
from gdt.eval import answers, results
from gdt.eval.answers import Answers
from gdt.eval.conditions import decisive_settings, words_of
from gdt.eval.evaluator import ProtocolFunction
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, plan_evaluation
from gdt.eval.results import RANDOM, RESULTS, Result
from gdt.eval.settings import Downstream
from gdt.eval.subprocesses import job_limit, run_command, run_parallel
from gdt.eval.tables import pivot, write_tables
from gdt.eval.training import STATE, Finetuning, finished_epochs
from gdt.pipeline.shards.copies import between_splits
from gdt.pipeline.shards.index import names_in
from gdt.train.models.given import Given, makers
from gdt.train.provenance import provenance_of
from gdt.train.run import home_of


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found."""

    results: list[Result]
    """Results of all models evaluated under the same conditions, by this call or an earlier one."""
    models: list[tuple[str, str]]
    """Name and digest of the weights of this call's models."""
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
def evaluate(settings: Downstream, networks: Mapping[str, Sequence[Given]] | None = None) -> Evaluation:
    """Run the missing evaluations.

    `networks`: the user's own by modality, besides those in the settings, which other processes do not have.
    Raises UserError if the shards, their labels, a split, a fold or a checkpoint is missing or does not fit.
    """
    plan = plan_evaluation(settings, makers({**settings.own_networks.given, **(networks or {})}))
    out = plan.out
    # in a subprocess, the parent holds the lock
    lock = locked(out, "set --out to another folder") if settings.tables else contextlib.nullcontext()
    with lock:
        done = {result.identity for result in results.read(out / RESULTS)}
        todo = list({job.identity: job for job in plan.jobs if job.identity not in done}.values())
        for job in todo:
            if not job.evaluator.protocol.trains:
                _run(job)
        finetuning = [job for job in todo if job.evaluator.protocol.trains]
        if finetuning:
            _finetune_all(settings, finetuning, 1 if networks else job_limit(settings.jobs))
        wanted = {job.conditions for job in plan.jobs}
        # tables compare with the first model
        order = {(model.name, model.digest): number for number, model in enumerate(plan.models)}
        every = [result for result in results.read(out / RESULTS) if result.conditions in wanted]
        every.sort(key=lambda result: order.get((result.model, result.weights), len(order)))
        text = ""
        if settings.tables:
            text = write_tables(out, pivot(every, answers=answers.read_all(out, every)), every)
    return Evaluation(every, [(model.name, model.digest) for model in plan.models], text, out)


def _run(job: Job) -> None:
    """Evaluate and append the result."""
    start = time.perf_counter()
    evaluator = job.evaluator
    model = job.model
    selected = evaluator.select(model, job.fold)
    fold = selected.fold
    facts = _facts(job, fold)
    function: ProtocolFunction = resolve_name(f"gdt.{evaluator.protocol.function}")
    outcome = function(evaluator, model, fold, job.folder)
    if outcome.queries is not None:
        seen = model.seen(evaluator.eval_set, outcome.queries)
        facts = replace(facts, queries=len(outcome.queries), seen=seen)
    same = evaluator.sameness(model, fold)
    details = {**facts.details, **outcome.details}
    if selected.left_out:
        details["left out"] = selected.left_out
    index = evaluator.eval_set.index
    copies = between_splits(index.fold(fold.number) if fold.number else index, evaluator.eval_set.split)
    if copies:
        details["copies"] = f"{f'fold {fold.number}: ' if fold.number else ''}{'; '.join(copies)}"
    pictures = "video" in evaluator.settings.modalities
    rate = model.trained.inputs.other_rate(evaluator.eval_set.index) if pictures else ""
    warnings = [*filter(None, (outcome.warning, same, selected.warning, rate))]
    if warnings:
        details["warning"] = "; ".join(warnings)
    metrics = {name: measured.metric for name, measured in outcome.metrics.items()}
    result = replace(facts, metrics=metrics, details=details)
    queries = fold.queries if outcome.queries is None else outcome.queries
    answers.write(evaluator.out, result.identity, Answers.of(queries, outcome.metrics))
    results.append(evaluator.out / RESULTS, result)
    (job.folder / STATE).unlink(missing_ok=True)  # a finished training needs it no more
    name, first = next(iter(result.metrics.items()))
    print(f"[{time.perf_counter() - start:4.0f} s] {job.name}: {name} {first.value:.1f} %", flush=True)


def _facts(job: Job, fold: Fold) -> Result:
    """The result of a job on these videos, without its metrics."""
    model = job.model
    evaluator = job.evaluator
    protocol = evaluator.protocol.name
    trained = model.trained
    eval_set = evaluator.eval_set
    pretraining = trained.settings
    videos, flops = trained.record.per_step or (0, 0.0)
    precision = "bfloat16" if evaluator.device.type == "cuda" else "float32"
    return Result(
        conditions=job.conditions,
        protocol=protocol,
        model=model.name,
        weights=model.digest,
        checkpoint=model.path,
        preset=RANDOM if model.random else trained.name,
        seed=pretraining.seed,
        step=trained.step,
        steps=trained.record.steps,
        videos=trained.step * videos,
        tflop=trained.step * flops / 1e12,
        seen=model.seen(eval_set, fold.queries),
        dataset=eval_set.dataset,
        shards=str(eval_set.index.folder),
        data=eval_set.fingerprint,
        query_split=eval_set.split,
        label=evaluator.settings.label,
        words=words_of(protocol, evaluator.words),
        fold=fold.number,
        gallery=len(fold.gallery),
        queries=len(fold.queries),
        classes=len(names_in(fold.gallery_label)),
        settings=decisive_settings(evaluator.settings, protocol),
        details={"clip": str(pretraining.clip), "precision": precision},
        provenance=provenance_of(evaluator.device),
    )


def _finetune_all(settings: Downstream, jobs: Sequence[Job], limit: int) -> None:
    """Run every job in its own subprocess, `limit` in parallel, or in this process if that is 1.

    Thus the number of threads, which affects the last digits, does not depend on the number of remaining jobs.
    """
    if limit == 1:
        for job in jobs:
            _run(job)
        return

    def run(job: Job, gpu: str, stop: threading.Event) -> None:
        job.folder.mkdir(parents=True, exist_ok=True)
        run_command(_command(settings, job), job.folder / "log.txt", gpu, f"finetuning {job.name}", stop)

    def finished() -> int:
        return sum(finished_epochs(job.folder) for job in jobs)

    protocols = dict.fromkeys(job.evaluator.protocol.name for job in jobs)
    logs = " ".join(f"{jobs[0].evaluator.out}/*/{protocol}-*/log.txt" for protocol in protocols)
    print(f"{len(jobs)} finetuning runs, {limit} in parallel; logs: {logs}")
    epochs = Finetuning.recipe_of(jobs[0].evaluator.settings, jobs[0].model.trained).epochs
    with tqdm(total=epochs * len(jobs), initial=finished(), unit="epoch", desc="finetune", mininterval=1.0) as bar:
        for job in run_parallel(jobs, run, limit, lambda: bar.update(finished() - bar.n)):
            bar.write(f"{job.name}: done")


def _command(settings: Downstream, job: Job) -> list[str]:
    """Arguments of `gdt` for one finetuning job of an evaluation."""
    evaluator = job.evaluator
    alone = replace(
        evaluator.settings,
        ckpt=(job.model.path,),
        dataset=evaluator.eval_set.dataset,
        shards=evaluator.eval_set.index.folder,
        out=evaluator.out,
        protocols=(evaluator.protocol.name,),
        folds=(job.fold.number,) if job.fold.number else (),
        query_split=evaluator.eval_set.split,
        random_weights="only" if job.model.random else "exclude",
        jobs=1,
        tables=False,
        own_networks=settings.own_networks,
        cache=settings.cache,
    )
    return ["evaluate", *arguments_of(alone, Downstream())]
