"""`gdt ablation`: pretrain compositions, evaluate their frozen features, and compare them in a table."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from gdt.common.errors import plural
from gdt.common.files import write_text
from gdt.common.lock import locked
from gdt.eval import record
from gdt.eval.ablation.compare import first_metrics, label, table_of
from gdt.eval.ablation.plan import Run, plan
from gdt.eval.ablation.settings import Ablation
from gdt.eval.drawing import save
from gdt.eval.plots import bars
from gdt.eval.processes import job_limit, run_command, run_parallel
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.record import Record
from gdt.eval.tables import Table, to_csv, with_notes, write_tables
from gdt.train.run import METRICS


def ablation(settings: Ablation) -> str:
    """Run the unfinished commands and write the tables; returns a summary. Raises UserError if a run fails."""
    runs, out = plan(settings), settings.folder
    with locked(out, "set --out to another folder"):
        todo, jobs = [run for run in runs if not run.is_done], job_limit(settings.jobs)
        print(f"{len(todo)} of {plural(len(runs), 'run')} left, {jobs} in parallel; equal {runs[0].equal}\n"
              f"logs: {out}/<run>/log.txt", flush=True)  # fmt: skip
        if todo:
            _run_all(runs, todo, jobs)
        return _report([each for run in runs for each in run.records()], out)


def _run_all(runs: Sequence[Run], todo: Sequence[Run], jobs: int) -> None:
    """Run the commands of the runs that are left; commands that are finished have nothing to do."""

    def work(run: Run, gpu: str, stop: threading.Event) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        for command in run.commands:
            run_command(command, run.folder / "log.txt", gpu, f"run {run.folder.name}", stop)
        write_text(*run.done)

    def steps() -> int:
        return sum(min(run.steps, logged_steps(run.folder / METRICS)) for run in runs)

    total = sum(run.steps for run in runs)
    with tqdm(total=total, initial=steps(), unit="step", desc="pretrain", mininterval=5.0) as bar:
        for run in run_parallel(todo, work, jobs, lambda: bar.update(steps() - bar.n)):
            metrics = next((each.metrics for each in run.records() if each.model == run.folder.name), {})
            first = next((f": {name} {metric.value:.1f} %" for name, metric in metrics.items()), "")
            bar.write(f"{label(run.row, run.steps)}, seed {run.pretraining.seed}{first}")


def logged_steps(log: Path) -> int:
    """Steps in the log of a training that may be writing to it."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 10_000))
            return int(json.loads(file.read().split(b"\n")[-2])["step"]) + 1
    except (OSError, IndexError, ValueError):
        return 0


def _report(records: Sequence[Record], out: Path) -> str:
    """Write the tables, one per set of videos and label column; returns those of the first metrics."""
    groups: dict[tuple[str, str, bool], list[Record]] = {}
    for each in records:  # recall between modalities takes the videos with sound, or with captions
        groups.setdefault((each.words, each.label, PROTOCOLS[each.protocol].labels), []).append(each)
    tables = [table_of(group) for group in groups.values()]
    write_tables(out, _text(tables), [table.lines for table in tables])
    write_text(out / "results.csv", to_csv(records))
    record.write(out / "results.json", records)
    save(bars(records), out / "table.png")
    short = _text([table_of(first_metrics(group)) for group in groups.values()])
    return f"\n{short}\n\nall metrics: {out}/table.txt, table.tex, results.csv; picture: table.png"


def _text(tables: Sequence[Table]) -> str:
    """Tables with their notes, each note once."""
    parts, said = [], set[str]()
    for table in tables:
        parts.append(with_notes(table.lines, [note for note in table.brief if note not in said], table.title))
        said.update(table.brief)
    return "\n\n".join(parts)
