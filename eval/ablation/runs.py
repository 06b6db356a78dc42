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
from gdt.eval.ablation.networks import changed, untrained
from gdt.eval.ablation.plan import PlannedRun, plan_runs
from gdt.eval.ablation.plots import bars
from gdt.eval.ablation.settings import Ablation
from gdt.eval.drawing import save
from gdt.eval.results import RESULTS
from gdt.eval.subprocesses import job_limit, run_command, run_parallel
from gdt.eval.tables import pivot, row_label, write_tables
from gdt.pipeline.notation import checksum_of
from gdt.train.run import METRICS
from gdt.train.settings_text import LENGTH, differences, from_json

_TRAINING = "training.json"
"""How the runs of a folder are trained: the settings of one, the networks, and the checksum of the factors' file."""
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
        _require_same_training(out, runs, trained=bool(known))
        todo = [run for run in runs if not run.is_done(known)]
        jobs = job_limit(settings.jobs)
        print(f"{len(todo)} of {plural(len(runs), 'run')} left, {jobs} in parallel; equal {runs[0].equal}")
        print(f"logs: {out}/<run>/log.txt", flush=True)
        if todo:
            _keep_factors(settings, todo)
            _run_all(runs, todo, jobs, out)
            _require_unchanged_networks(todo)
        asked = frozenset().union(*(run.conditions for run in runs))
        evaluated = [result for result in results.read(out / RESULTS) if result.conditions in asked]
        # of a run that was made anew, the last
        latest = {(result.conditions, result.model, result.seed, result.step): result for result in evaluated}
        every = list(latest.values())
        tables = pivot(every, by_row=True)
        write_tables(out, tables, every)
        save(bars(tables), out / "table.png")
        firsts = [replace(result, metrics=dict([*result.metrics.items()][:1])) for result in every]
        short = "\n\n".join(map(str, pivot(firsts, by_row=True)))
        return f"\n{short}\n\nall metrics: {out}/table.txt, table.tex, results.csv; picture: table.png"


def _require_same_training(folder: Path, runs: Sequence[PlannedRun], trained: bool) -> None:
    """Keep how the runs of the folder are trained, but for what differs between rows and seeds.

    Raises UserError if runs in the folder are `trained` otherwise: one table could not compare them.
    """
    path = folder / _TRAINING
    text = to_json(runs[0].row.shared)
    networks = {modality: outputs for run in runs for modality, outputs in run.networks.items()}
    factors = next((run.row.factors_checksum for run in runs if run.row.factors_checksum), "")
    if trained and path.is_file():
        before = json.loads(path.read_text())
        different = differences(to_json(from_json(before["settings"], str(path))), text, _OF_A_RUN)
        earlier = before["networks"]
        if isinstance(earlier, str):  # of a version that recorded names
            if earlier != "the paper's":
                different.append(f"networks were {earlier}, of which only the name is recorded")
            earlier = dict.fromkeys(networks)
        different += [f"the {modality} network computes something else" for modality in changed(earlier, networks)]
        factors_before = before.get("factors", "")
        if factors and factors_before and factors != factors_before:
            different.append("the file of --factors-from has changed")
        if different:
            raise UserError(
                f"the runs in {folder} were trained with other settings ({'; '.join(different)}); "
                "set --out to another folder"
            )
        networks = earlier | networks
        factors = factors or factors_before
    write_text(path, json.dumps({"settings": text, "networks": networks, "factors": factors}))


def _require_unchanged_networks(runs: Sequence[PlannedRun]) -> None:
    """Raise UserError if a network of the user's own has changed since the runs were planned."""
    for run in {run.row.name: run for run in runs}.values():
        for modality in changed(run.networks, untrained(run.pretraining, [*run.networks])):
            raise UserError(
                f"the {modality} network has changed while the runs were trained, so that they cannot be compared; "
                "give the command again with --out in another folder"
            )


def _keep_factors(settings: Ablation, todo: Sequence[PlannedRun]) -> None:
    """Copy the Python file of the factors, which may change while the runs read it.

    Raises UserError if it has changed since they were planned.
    """
    planned = next((run.row.factors_checksum for run in todo if run.row.factors_checksum), "")
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
