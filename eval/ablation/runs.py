"""`gdt ablation`: pretrain compositions, evaluate their frozen features, and compare them in a table."""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from gdt.common.errors import UserError
from gdt.common.files import locked, write_text, writing
from gdt.common.serialization import to_json
from gdt.common.wording import plural
from gdt.eval import results
from gdt.eval.ablation.plan import PlannedRun, plan_runs
from gdt.eval.ablation.plots import bars
from gdt.eval.ablation.settings import Ablation
from gdt.eval.drawing import save
from gdt.eval.results import RANDOM, RESULTS, Result
from gdt.eval.subprocesses import job_limit, run_command, run_parallel
from gdt.eval.tables import pivot, row_label, write_tables
from gdt.pipeline.notation import checksum_of
from gdt.train.checkpoint import load_model
from gdt.train.models.given import makers
from gdt.train.models.network import Architecture
from gdt.train.published import located
from gdt.train.run import CHECKPOINT, METRICS
from gdt.train.settings import RunSettings
from gdt.train.settings_text import LENGTH, differences

_OF_A_RUN = ("composition", "seed", *LENGTH)
"""Settings in which the runs of a folder differ."""


def ablation(settings: Ablation) -> str:
    """Run the unfinished commands and write the tables; returns a summary. Raises UserError if a run fails.

    The tables have all rows in the folder that were evaluated under the same conditions, also by earlier calls.
    """
    runs = plan_runs(settings)
    out = settings.folder
    with locked(out, "set --out to another folder"):
        known = results.read(out / RESULTS)
        checksum = next((run.row.factors_checksum for run in runs if run.row.factors_checksum), "")
        now = runs[0].row.experiment.settings
        _require_same_training(settings, now, checksum, known)
        todo = [run for run in runs if not run.is_done(known)]
        jobs = job_limit(settings.jobs)
        print(f"{len(todo)} of {plural(len(runs), 'run')} left, {jobs} in parallel; equal {runs[0].equal}")
        print(f"logs: {out}/<run>/log.txt", flush=True)
        if todo:
            _keep_factors(settings, checksum)
            _run_all(runs, todo, jobs, out)
            known = results.read(out / RESULTS)
            if settings.own_networks.given:  # one may have changed while runs were trained
                _require_same_training(settings, now, checksum, known)
        asked = frozenset().union(*(run.conditions for run in runs))
        found = results.last_of_runs(result for result in known if result.conditions in asked)
        gone = {result.model for result in found if result.preset != RANDOM and not _has_checkpoint(result, out)}
        if gone:
            print(f"left out: {', '.join(sorted(gone))}, whose checkpoint is gone, so nothing says how it was trained")
        every = [result for result in found if result.model not in gone]
        tables = pivot(every, by_row=True)
        write_tables(out, tables, every)
        save(bars(tables), out / "table.png")
        firsts = [replace(result, metrics=dict([*result.metrics.items()][:1])) for result in every]
        short = "\n\n".join(map(str, pivot(firsts, by_row=True)))
        return f"\n{short}\n\nall metrics: {out}/table.txt, table.tex, results.csv; picture: table.png"


def _require_same_training(settings: Ablation, now: RunSettings, checksum: str, evaluated: Sequence[Result]) -> None:
    """Raise UserError if a run with results was trained otherwise than `now`, but for its row and seed.

    One table could not compare them. Checkpoints say how they were trained, and recognise networks of the user's own.
    `checksum` is that of the Python file of the factors.
    """
    given = makers(settings.own_networks.given)
    for name in sorted({result.model for result in evaluated}):
        path = settings.folder / name / CHECKPOINT
        if not path.is_file():
            continue
        trained = load_model(path, given)
        different = differences(_shared(trained.settings), _shared(now), _OF_A_RUN)
        for modality in trained.model.modalities:
            if (modality in given) != (modality in trained.model.network.own):
                before = "the paper's" if modality in given else "your own"
                different.append(f"the {modality} network was {before}")
        if len({trained.record.data.factors_checksum, checksum} - {""}) > 1:
            different.append("the file of --factors-from has changed")
        if different:
            raise UserError(
                f"the runs in {settings.folder} were trained with other settings ({name}: {'; '.join(different)}); "
                "set --out to another folder"
            )


def _has_checkpoint(result: Result, out: Path) -> bool:
    """Whether its model is in the folder of the ablation or where it was evaluated."""
    elsewhere = located(result.checkpoint)
    return (out / result.model / CHECKPOINT).is_file() or (elsewhere is not None and elsewhere.exists())


def _shared(settings: RunSettings) -> str:
    """The settings that all rows share: without what an architecture has of the modalities."""
    return to_json(replace(settings, network=Architecture(**settings.network.sizes)))


def _keep_factors(settings: Ablation, planned: str) -> None:
    """Copy the Python file of the factors, which may change while the runs read it.

    Raises UserError if it has changed since they were planned.
    """
    if settings.factors_from is None or settings.kept_factors is None or not planned:
        return
    code = settings.factors_from.read_bytes()
    if checksum_of(code) != planned:
        raise UserError(f"{settings.factors_from} has changed since the runs were planned; give the command again")
    with writing(settings.kept_factors) as file:
        file.write(code)


def _run_all(runs: Sequence[PlannedRun], todo: Sequence[PlannedRun], jobs: int, out: Path) -> None:
    """Run the commands of the runs that are left; commands that are finished have nothing to do."""

    def work(run: PlannedRun, gpu: str, stop: threading.Event) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        for command in run.commands:
            run_command(command, run.folder / "log.txt", gpu, f"run {run.folder.name}", stop)
        write_text(run.marker, run.marked)

    def steps() -> int:
        return sum(min(run.row.steps, logged_steps(run.folder / METRICS)) for run in runs)

    total = sum(run.row.steps for run in runs)
    with tqdm(total=total, initial=steps(), unit="step", desc="pretrain", mininterval=5.0) as bar:
        for run in run_parallel(todo, work, jobs, lambda: bar.update(steps() - bar.n)):
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
    except (OSError, IndexError, ValueError):
        return 0
