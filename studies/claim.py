"""`gdt study claim`: when does a composition beat plain cross-modal learning? Ablations over the strength
of the identity, and one picture.

Each data set has one ablation per `--equal`. They share a folder, so that a run that both need is trained once.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from gdt.common.errors import as_typed, plural
from gdt.common.files import write_text
from gdt.eval import record
from gdt.eval.ablation.compare import compare_rows
from gdt.eval.ablation.runs import ablation, plan
from gdt.eval.ablation.settings import Ablation
from gdt.eval.drawing import save
from gdt.eval.processes import job_limit, run_command
from gdt.eval.progress import steps_of
from gdt.eval.record import RANDOM, Record
from gdt.eval.tables import csv_text, to_csv, wrap
from gdt.pipeline.shards.layout import INDEX, shard_folder
from gdt.studies.claim_values import Value, picture, values_of
from gdt.studies.settings import MOMENTS, Claim
from gdt.train.settings import METRICS

_MEASURED = 12
"""Steps of each row that are timed; the first third is left out."""
_TIMED = ("size", "batch_size", "clips", "label", "jobs", "test_factors", "videos")
"""Settings that the timings depend on."""


class DataSet(NamedTuple):
    """A data set of the study."""

    name: str
    identity: str
    """Strength of the identity, on the x axis of the picture; empty for a data set of the user."""
    arguments: tuple[str, ...] = ()
    """Arguments of `gdt generate`; empty for a data set of the user."""

    @property
    def is_made(self) -> bool:
        return (shard_folder(self.name) / INDEX).is_file()


class Seconds(NamedTuple):
    """Durations measured on the first data set, in seconds."""

    step: dict[str, float]
    """A training step at equal videos, by row."""
    run: float
    """Everything else in a run, while other runs are in parallel."""
    factors: float
    """`gdt eval factors`."""
    making: float
    """Generating and preprocessing a data set."""
    settings: dict[str, Any]
    """The settings that these durations depend on."""


def claim(settings: Claim) -> str:
    """Run what is left, and write tables and the picture; returns a summary. Raises UserError if a run fails."""
    out = settings.out or Path("runs") / f"claim-{settings.dataset}"
    out.mkdir(parents=True, exist_ok=True)
    sets = _sets(settings)
    if settings.dry_run:
        makes = "" if sets[0].is_made else "makes the first data set and "
        print(f"the dry run {makes}times a few steps of each row; this takes minutes", flush=True)
    making = _make(sets[0], out)
    print(wrap(_forecast(settings, sets, _measure(settings, sets[0], making, out), out)), flush=True)
    if settings.dry_run:
        return as_typed("trained only the steps that were timed; without --dry-run, the study starts")
    results: list[Record] = []
    texts = [f"command: {shlex.join(sys.orig_argv)}"]
    values: list[Value] = []
    for one in sets:
        _make(one, out)
        for equal in settings.equal:
            each = _ablation(settings, one, equal, out)
            print(f"\n{one.name}, equal {equal}", flush=True)
            print(ablation(each), flush=True)
            planned = plan(each)
            kept = {run.row for run in planned.runs}
            records = [row for row in record.read(planned.out / "results.json") if row.preset in {RANDOM, *kept}]
            results += records
            measured = planned.out / "factors.json"
            has_factors = any(run.factors for run in planned.runs)  # otherwise such a file comes from earlier runs
            factors = record.read(measured) if has_factors else []
            values += values_of(one.name, equal, records, (row for row in factors if row.preset in kept))
            texts.append(f"{one.name}\n{compare_rows(records, planned.labels).text}")
    write_text(out / "table.txt", "\n\n\n".join(texts) + "\n")
    write_text(out / "results.csv", to_csv(results))
    write_text(out / "values.csv", csv_text([Value._fields, *values]))
    save(picture(values, {one.name: one.identity for one in sets}), out / "claim.png")
    return f"tables: {out}/table.txt\npicture: {out}/claim.png"


def _sets(settings: Claim) -> list[DataSet]:
    if not settings.makes_shards:
        return [DataSet(settings.dataset, "")]
    sets = []
    for identity in settings.identity:
        own = {"identity": identity, "actions-per-video": settings.actions_per_video, "seed": settings.set_seed}
        own |= dict.fromkeys(("train", "val", "test"), settings.videos) if settings.videos else {}
        name = f"moments-{identity:g}-actions{settings.actions_per_video}-seed{settings.set_seed}"
        name += f"-{settings.videos}videos" if settings.videos else ""
        sets.append(DataSet(name, f"{identity:g}", tuple(f"--{key}={value}" for key, value in own.items())))
    return sets


def _make(one: DataSet, out: Path) -> float:
    """Generate and preprocess a data set unless it exists; return the seconds that it took."""
    began = time.monotonic()
    if one.arguments and not one.is_made:
        print(f"generating and preprocessing {one.name}; log: {out}/{one.name}.txt", flush=True)
        videos = Path("data/videos") / one.name
        for command in (
            ["generate", MOMENTS, "--destination", str(videos), "--no-progress", *one.arguments],
            ["preprocess", "--dataset", MOMENTS, "--source", str(videos),
             "--destination", str(shard_folder(one.name))],
        ):  # fmt: skip
            run_command(command, out / f"{one.name}.txt", "", one.name, threading.Event())
    return time.monotonic() - began


def _ablation(settings: Claim, one: DataSet, equal: Literal["videos", "compute"], out: Path) -> Ablation:
    return Ablation(
        dataset=one.name, rows=settings.rows, seeds=settings.seeds, equal=equal, size=settings.size,
        batch_size=settings.batch_size, steps=settings.steps, label=settings.label, clips=settings.clips,
        test_factors=settings.test_factors, protocols=("retrieval", "linear"), jobs=settings.jobs, out=out / one.name,
    )  # fmt: skip


def _measure(settings: Claim, one: DataSet, making: float, out: Path) -> Seconds:
    """Time a few steps of each row and one evaluation, once."""
    path = out / "seconds.json"
    own = {name: getattr(settings, name) for name in _TIMED}
    if path.is_file():
        measured = json.loads(path.read_text())
        if measured.get("settings") == own and measured["step"].keys() >= set(settings.rows):
            return Seconds(**measured)
    short = replace(
        _ablation(settings, one, "videos", out), steps=_MEASURED, seeds=settings.seeds[:1], test_factors="none",
        out=out / "measured",
    )  # fmt: skip
    shutil.rmtree(out / "measured", ignore_errors=True)
    print(f"measuring {_MEASURED} steps of each row; their R@1 means nothing", flush=True)
    began = time.monotonic()
    ablation(short)
    evaluated = time.monotonic()
    runs = plan(short).runs
    if settings.test_factors != "none":
        batch = runs[0].pretraining.composition.batch_size  # a single row may allow larger batches
        ablation(replace(short, rows=short.rows[:1], test_factors="first", batch_size=batch))
    step = {}
    for run in runs:
        clips = run.pretraining.composition.batch_size * run.pretraining.composition.clips_per_video
        lines = [json.loads(line) for line in (run.folder / METRICS).read_text().splitlines()]
        step[run.row] = float(np.median([clips / line["clips_per_second"] for line in lines[_MEASURED // 3 :]]))
    jobs = min(job_limit(settings.jobs), len(step))
    rest = (evaluated - began) * jobs / len(step) - _MEASURED * float(np.mean(list(step.values())))
    seconds = Seconds(step, max(rest, 0), time.monotonic() - evaluated, making, own)
    write_text(path, json.dumps(seconds._asdict()) + "\n")
    shutil.rmtree(out / "measured", ignore_errors=True)  # so that no report shows models of a few steps
    return seconds


def _forecast(settings: Claim, sets: Sequence[DataSet], seconds: Seconds, out: Path) -> str:
    """A sentence with the hours that the remaining runs will take."""
    work, runs, unmade = 0.0, 0, 0
    for one in sets:
        known = one if one.is_made else sets[0]  # all sets have the same number of videos
        unmade += not one.is_made
        planned = [plan(_ablation(settings, known, equal, out)) for equal in settings.equal]
        left = {run.folder: run for each in planned for run in (each.left if one.is_made else each.runs)}
        runs += len(left)
        for run in left.values():
            work += steps_of(run.pretraining) * seconds.step[run.row] + seconds.run
            work += seconds.factors if run.factors else 0
    jobs = job_limit(settings.jobs)
    hours = (work / jobs + unmade * seconds.making) / 3600
    steps = ", ".join(f"{row} {value:.2f} s" for row, value in seconds.step.items())
    untimed = f", without making {plural(unmade, 'data set')}" if unmade and seconds.making < 1 else ""
    return (
        f"{plural(runs, 'run')} left, {jobs} in parallel: about {hours:.1f} hours{untimed} ({work / 3600:.1f} "
        f"job-hours in total; measured per step: {steps})"
    )
