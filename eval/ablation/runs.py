"""`gdt ablation`: pretrain compositions, evaluate their frozen features, and compare them in a table."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.common.files import locked, write_text, writing
from gdt.common.wording import plural
from gdt.eval import results
from gdt.eval.ablation.plots import bars
from gdt.eval.ablation.rows import RowRun, runs_of
from gdt.eval.ablation.settings import Ablation
from gdt.eval.downstream import missing
from gdt.eval.drawing import save
from gdt.eval.jobs import Job, jobs_of
from gdt.eval.results import RESULTS
from gdt.eval.subprocesses import Task, job_limit, run_parallel
from gdt.eval.tables import pivot, row_label, write_tables
from gdt.train.models.network import Architecture
from gdt.train.models.own import Makers, makers
from gdt.train.record import LENGTH, decisive, differences
from gdt.train.run import CHECKPOINT, METRICS
from gdt.train.settings import RunSettings

ABLATION = "ablation.json"
"""File of the settings that the runs of a folder share."""
_OF_A_RUN = ("composition", "seed", *LENGTH)
"""Settings in which the runs of a folder differ."""


def ablation(settings: Ablation) -> str:
    """Run the unfinished commands and write the tables; returns a summary. Raises UserError if a run fails.

    The tables have all rows of this folder that were evaluated under the same conditions, also by earlier calls.
    """
    runs = runs_of(settings)
    out = settings.folder
    given = makers(settings.own_networks.given)
    with locked(out, "set --out to another folder"):
        _require_same_training(settings, runs)
        jobs = {run.folder: _finished(run, given) for run in runs}
        todo = [run for run in runs if jobs[run.folder] is None]
        limit = job_limit(settings.jobs)
        print(f"{len(todo)} of {plural(len(runs), 'run')} left, {limit} in parallel; equal {runs[0].equal}")
        print(f"logs: {out}/<run>/log.txt", flush=True)
        if todo:
            _run_all(runs, todo, limit, out)
            jobs |= {run.folder: jobs_of(run.evaluation, given) for run in todo if run.evaluation.protocols}
        asked = {job.key for of_run in jobs.values() for job in of_run or ()}
        known = results.read(out / RESULTS)
        shared = {result.shared for result in known if result.key in asked}
        every = [result for result in known if result.shared in shared]
        tables = pivot(every, by_row=True)
        write_tables(out, tables, every)
        save(bars(tables), out / "table.png")
        firsts = [replace(result, metrics=dict([*result.metrics.items()][:1])) for result in every]
        short = "\n\n".join(map(str, pivot(firsts, by_row=True)))
        return f"\n{short}\n\nall metrics: {out}/table.txt, table.tex, results.csv; picture: table.png"


def _require_same_training(settings: Ablation, runs: Sequence[RowRun]) -> None:
    """Keep what the runs of this folder share, and a copy of the file of their factors.

    Raises UserError if earlier ones were trained otherwise but for row, seed and length: one table could not compare
    them.
    """
    path = settings.folder / ABLATION
    networks = {f"{modality}_network": [*texts] for modality, texts in settings.own_networks.given.items()}
    shared = _shared(runs[0].row.experiment.settings) | networks
    try:
        before = serialization.from_json(dict[str, Any], path.read_text()) if path.is_file() else shared
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); set --out to another folder") from error
    different = differences(before, shared, _OF_A_RUN)
    code = settings.factors_from.read_bytes() if settings.factors_from else b""
    kept = settings.kept_factors
    if kept and kept.is_file() and kept.read_bytes() != code:
        different.append("the file of --factors-from has changed")
    if different:
        raise UserError(
            f"the runs in {settings.folder} were trained with other settings ({'; '.join(different)}); set --out "
            "to another folder"
        )
    write_text(path, json.dumps(shared, indent=2) + "\n")
    if kept and not kept.is_file():
        with writing(kept) as file:
            file.write(code)


def _shared(settings: RunSettings) -> dict[str, Any]:
    """The settings that all rows share, as JSON gives them: without what an architecture has of the modalities."""
    shared = decisive(replace(settings, network=Architecture(**settings.network.sizes)))
    plain: dict[str, Any] = json.loads(json.dumps(shared))
    return plain


def _finished(run: RowRun, given: Makers) -> list[Job] | None:
    """The evaluation of a run, if it is trained and nothing of that is left; else None."""
    if logged_steps(run.folder / METRICS) < run.row.steps or not (run.folder / CHECKPOINT).is_file():
        return None
    if not run.evaluation.protocols:
        return []
    jobs = jobs_of(run.evaluation, given)
    trained = all(job.subject.random or job.subject.trained.step == run.row.steps for job in jobs)
    return jobs if trained and not missing(jobs) else None


def _run_all(runs: Sequence[RowRun], todo: Sequence[RowRun], limit: int, out: Path) -> None:
    """Run the commands of the runs that are left; commands that are finished have nothing to do."""

    def steps() -> int:
        return sum(min(run.row.steps, logged_steps(run.folder / METRICS)) for run in runs)

    total = sum(run.row.steps for run in runs)
    tasks = [Task(f"run {run.folder.name}", run.folder, run.commands) for run in todo]
    by_folder = {run.folder: run for run in todo}
    with tqdm(total=total, initial=steps(), unit="step", desc="pretrain", mininterval=5.0) as bar:
        for task in run_parallel(tasks, limit, lambda: bar.update(steps() - bar.n)):
            run = by_folder[task.folder]
            evaluated = [result for result in results.read(out / RESULTS) if result.model == run.folder.name]
            score = ""
            if evaluated:
                name, metric = next(iter(evaluated[0].metrics.items()))
                score = f": {name} {metric.value:.1f} %"
            bar.write(f"{row_label(run.row.name, run.row.steps)}, seed {run.pretraining.seed}{score}")


def logged_steps(log: Path) -> int:
    """Steps in the log of a training that may be writing to it."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 10_000))
            return int(json.loads(file.read().split(b"\n")[-2])["step"]) + 1
    except (OSError, LookupError, TypeError, ValueError):
        return 0
