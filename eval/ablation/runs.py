"""`gdt ablation`: pretrain compositions, evaluate their frozen features, and compare them.

Each run's folder lists its finished commands, which are skipped when the ablation resumes.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gdt.common import serialization
from gdt.common.errors import UserError, plural
from gdt.common.files import write_text
from gdt.common.gpu import default_size
from gdt.common.lock import locked
from gdt.eval import record
from gdt.eval.ablation.compare import OTHERS, compare_rows, label, with_earlier
from gdt.eval.ablation.equal import equalise
from gdt.eval.ablation.settings import RECALL, Ablation, is_composition
from gdt.eval.drawing import save
from gdt.eval.factors.evaluate import NAME
from gdt.eval.factors.settings import Factors
from gdt.eval.factors.tables import factor_of, is_promised, mean_over_seeds, row_name
from gdt.eval.plots import bars, matrix
from gdt.eval.processes import job_limit, run_command, run_parallel
from gdt.eval.progress import LogReader, Progress
from gdt.eval.protocols import FORMAT, short_digest
from gdt.eval.record import RANDOM, Record
from gdt.eval.settings import Downstream
from gdt.eval.subjects import folds, gallery_split, held_out
from gdt.eval.tables import to_csv, wrap, write_tables
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.layout import shard_folder
from gdt.train import provenance
from gdt.train.checkpoint import other_rates, read_run
from gdt.train.flops import step_flops
from gdt.train.run import CHECKPOINT, LENGTH, METRICS, SETTINGS, differences, from_file, to_json
from gdt.train.settings import SIZES, Pretrain

_DONE = "done.json"
"""In the folder of a run: its finished commands."""
_MIN_SHARED = 2
"""Minimum mean number of videos per value of a label column; with fewer, values are ids."""


@dataclass(frozen=True)
class Run:
    """One row with one seed."""

    row: str
    name: str
    """Name of the row in file names and plots."""
    pretraining: Pretrain
    commands: list[list[str]]
    """Arguments of `gdt` for training and evaluations."""
    factors: Path | None
    """File of records of `gdt factors`; None if it is not run."""
    equal: str
    """What all rows get, as text."""
    bands: int
    """Mel bands of the shards."""

    @property
    def folder(self) -> Path:
        return self.pretraining.run_folder

    @property
    def results(self) -> Path:
        """File of records of `gdt evaluate`."""
        return self.folder / "eval" / "results.json"

    def records(self, protocols: Sequence[str]) -> list[Record]:
        """Records of these protocols; empty before the evaluation."""
        every = record.read(self.results) if self.results.is_file() else []
        records = [each for each in every if each.protocol in protocols]
        records.sort(key=lambda each: each.provenance["started"])
        # the file may also have records of earlier weights, and of folds that `_evaluation` does not choose
        latest = {(each.preset, each.protocol, each.label): each for each in records if each.fold < 2}.values()
        return [replace(each, equal=self.equal, tflop=self._tflop(each)) for each in latest]

    def _tflop(self, each: Record) -> float:
        return 0.0 if each.preset == RANDOM else each.step * step_flops(each.pretraining, self.bands) / 1e12


class Inputs(NamedTuple):
    """Checksums of the data that the results of an ablation depend on."""

    data: str
    """Fingerprint of the shards."""
    labels: str
    """Of gallery, queries and their labels in all columns; empty for recall."""

    @staticmethod
    def of(evaluation: Downstream, index: Index, labels: Sequence[str]) -> Inputs:
        digests = [
            fold.digest for name in labels for fold in folds(evaluation, index.labelled(name), evaluation.query_split)
        ]
        return Inputs(fingerprint(index), short_digest(digests) if labels else "")


class Plan(NamedTuple):
    """What an ablation does."""

    runs: list[Run]
    equal: str
    """What all rows get, as text."""
    lowered: str
    """A note on the default that was lowered because there are too few videos; empty if none was."""
    inputs: Inputs
    labels: tuple[str, ...]
    """Label columns; empty for recall between modalities."""
    protocols: tuple[str, ...]
    out: Path


def ablation(settings: Ablation) -> str:
    """Run the unfinished commands and write the tables; returns a summary. Raises UserError if a run fails."""
    planned = plan(settings)
    with locked(planned.out, "set --out to another folder"):
        _run_all(settings, planned)
        return _report(planned.runs, planned.labels, planned.protocols, planned.out)


def plan(settings: Ablation) -> Plan:
    """The runs of an ablation. Raises UserError if the videos do not fit the rows or labels."""
    shards = shard_folder(settings.dataset, settings.shards)
    index = Index.open(shards)
    out = settings.out or Path("runs") / f"ablation-{settings.dataset}{'-clips' if settings.equal == 'clips' else ''}"
    if not (index.split == "train").any():
        raise UserError(f"{shards} has no videos in the split 'train', which rows train on; preprocess training videos")
    held_out(index, settings.query_split)  # raises UserError if there are none
    labels = _labels(settings, index)
    protocols: tuple[str, ...] = settings.protocols if labels else ("cross-modal",)
    _require_comparable(settings, index, shards, labels)
    evaluation = replace(_evaluation(settings, index, labels), dataset=settings.dataset, shards=shards)
    of_row = partial(_run, settings, replace(evaluation, protocols=protocols), out, index)
    rows, equal, lowered = equalise(
        settings, {row: _pretraining(settings, shards, row) for row in settings.rows}, index
    )
    runs = [of_row(row, run, equal, seed) for seed in dict.fromkeys(settings.seeds) for row, run in rows.items()]
    return Plan(runs, equal, lowered, Inputs.of(evaluation, index, labels), labels, protocols, out)


def _labels(settings: Ablation, index: Index) -> tuple[str, ...]:
    """Label columns to compare by, `label` for the classes; empty for recall between modalities."""
    if not settings.labels:
        return label_columns(index, settings.query_split, _gallery(settings, index))
    if settings.labels == (RECALL,):
        return ()
    for name in settings.labels:
        index.labelled(name)  # raises UserError if the column does not exist
    return settings.labels


def _gallery(settings: Ablation, index: Index) -> str:
    """The split of the gallery."""
    return gallery_split(settings.gallery_split, index, settings.query_split)


def _require_comparable(settings: Ablation, index: Index, shards: Path, labels: Sequence[str]) -> None:
    """Raise UserError if rows need sound that the videos lack, no metric can compare them, or videos are too few."""
    queries, least = int((index.split == settings.query_split).sum()), Factors((Path(),)).min_videos
    if settings.test_factors != "none" and queries < least:
        raise UserError(
            f"the split '{settings.query_split}' of {shards} has only {plural(queries, 'video')}, but factors are "
            f"tested on {least} or more; set --test-factors none, or hold out more videos"
        )
    modalities = {row: settings.composition(row).modalities for row in settings.rows}
    if not index.mel_count.any() and (audible := [row for row in modalities if "audio" in modalities[row]]):
        others = [row for row in modalities if row not in audible]
        raise UserError(
            f"the videos in {shards} have no sound, which these rows need: {' '.join(audible)}; set "
            f"--rows {shlex.join(others) or 'a b c d'}"
        )
    for option in ("gallery_split", "gallery_per_class") if not labels else ():
        if getattr(settings, option):
            raise UserError(f"--{option.replace('_', '-')} has no effect on recall between modalities; remove it")
    if not labels and settings.test_factors == "none" and all(len(each) < 2 for each in modalities.values()):
        reason = f"{shards} has no labels in the splits {_gallery(settings, index)} and {settings.query_split}"
        raise UserError(
            f"{'recall needs two modalities' if settings.labels else reason}, and none of the rows "
            f"{' '.join(settings.rows)} has two, so only factors can be compared; remove --test-factors none"
        )


def _evaluation(settings: Ablation, index: Index, labels: Sequence[str]) -> Downstream:
    """The evaluation of every run.

    Of official folds it takes the first, whose splits are those of pretraining; the other folds test videos that
    pretraining has used.
    """
    return Downstream(
        (), label=",".join(labels), folds=(1,) if labels and any(index.folds) else (), clips=settings.clips,
        query_split=settings.query_split, gallery_per_class=settings.gallery_per_class if labels else 0,
        gallery_split=_gallery(settings, index) if labels else "",
    )  # fmt: skip


def _pretraining(settings: Ablation, shards: Path, row: str) -> Pretrain:
    """The run of a row, without its batch size and seed."""
    options: dict[str, Any] = {"steps": settings.steps, "epochs": 0} if settings.steps else {}
    options |= {"factors": row, "factors_from": settings.factors_from} if is_composition(row) else {"preset": row}
    return replace(
        SIZES[settings.size or default_size()], dataset=settings.dataset, shards=shards,
        group_size=settings.group_size,
        word2vec=settings.word2vec if "text" in settings.composition(row).modalities else None, **options,
    )  # fmt: skip


def _run(
    settings: Ablation, evaluation: Downstream, out: Path, index: Index, row: str, pretraining: Pretrain, equal: str,
    seed: int,
) -> Run:  # fmt: skip
    """The run of a row with a seed."""
    pretraining = replace(pretraining, seed=seed)
    # with another body of --factors-from, the same composition is another run
    code = pretraining.resolved().factors_digest
    name = f"own-{short_digest([row, code] if code else row)[:6]}" if is_composition(row) else row
    adjusted = pretraining.steps != settings.steps
    folder = out / f"{name}{f'-{pretraining.steps}steps' if adjusted else ''}-{seed}"
    pretraining = replace(pretraining, out=folder)
    commands = [["pretrain", to_json(pretraining)]]
    if evaluation.label or len(pretraining.composition.modalities) > 1:
        downstream = replace(
            evaluation, ckpt=(folder,), random_weights="include" if row == settings.rows[0] else "exclude",
            out=folder / "eval", word2vec=None if evaluation.label else pretraining.word2vec,
        )  # fmt: skip
        commands.append(["evaluate", serialization.to_json(downstream)])
    factors = None
    if settings.test_factors == "all" or (settings.test_factors == "first" and seed == settings.seeds[0]):
        factors = folder / "factors" / NAME
        test = Factors((folder,), settings.dataset, evaluation.shards, settings.query_split, out=factors.parent)
        commands.append(["factors", serialization.to_json(test)])
    return Run(row, name, pretraining, commands, factors, equal, index.bands)


def _run_all(settings: Ablation, planned: Plan) -> None:
    """Run the commands that are not finished with these inputs."""
    runs, inputs, protocols, out = planned.runs, planned.inputs, planned.protocols, planned.out
    for path in (path for run in runs for path in (run.results, run.factors) if path and path.is_file()):
        if not _is_readable(path):
            print(f"{path} is damaged or of another version; it is computed again")
    finished = {run.folder: _done(run, inputs) for run in runs}
    jobs, todo = job_limit(settings.jobs), [run for run in runs if _left(run, finished[run.folder])]
    untrained = [run for run in todo if run.commands[0] not in finished[run.folder]]
    replaced = {run.folder for run in untrained if _is_replaced(run, inputs.data, settings.overwrite)}
    unevaluated = [run for run in todo if any(each not in finished[run.folder] for each in run.commands[1:2])]
    if relabelled := [run for run in unevaluated if run.commands[1] in _done(run, inputs, any_labels=True)]:
        print(f"the labels of {plural(len(relabelled), 'evaluated run')} have changed; evaluating again")
    if todo and planned.lowered:
        print(planned.lowered)
    print(f"{len(todo)} of {plural(len(runs), 'run')} left, {jobs} in parallel; equal {planned.equal}\n"
          f"logs: {out}/<run>/log.txt", flush=True)  # fmt: skip
    began = time.monotonic()

    def work(run: Run, gpu: str, stop: threading.Event) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        done = finished[run.folder]
        for command in _left(run, done):
            bar.set_status(run.folder, command[0])
            started = command
            if command[0] == "pretrain" and run.folder in replaced:
                started = [command[0], to_json(replace(run.pretraining, overwrite=True))]
            run_command(started, run.folder / "log.txt", gpu, f"run {run.folder.name}", stop)
            done = [other for other in done if other[0] != command[0]] + [command]  # it overwrote their results
            content = {**inputs._asdict(), "format": FORMAT, "done": done}
            write_text(run.folder / _DONE, json.dumps(content) + "\n")

    with Progress({run.folder: run.pretraining for run in runs}) as bar:
        for run in run_parallel(todo, work, jobs, bar.refresh):
            first = next((each for each in run.records(protocols) if each.preset != RANDOM), None)
            column, metric = next(iter(first.metrics.items())) if first else ("", None)
            result = f": {column} {metric.value:.1f} %" if metric else ""
            seconds = time.monotonic() - began
            bar.finish(run.folder, f"[{seconds:4.0f} s] {label(run.row)}, seed {run.pretraining.seed}{result}")


def _is_replaced(run: Run, data: str, overwrite: bool) -> bool:
    """Whether pretraining cannot resume the run in a folder on shards `data`, and `overwrite` is set.

    Raises UserError if it is not set.
    """
    if changed := _changed(run, data):
        if overwrite:
            return True
        way_out = f"set --out to another folder, use the same {changed.split()[0]}, or replace it with --overwrite"
        raise UserError(f"{run.folder} holds a run with different {changed}; {way_out}")
    if overwrite:
        try:
            read_run(run.folder)
        except UserError:  # a damaged checkpoint
            return True
    return False


def _changed(run: Run, data: str) -> str:
    """What differs between a run and the one whose checkpoint is in its folder; empty if it can be resumed."""
    folder, now = run.folder, run.pretraining.resolved()
    if not (folder / CHECKPOINT).is_file():
        return ""
    try:
        before = from_file(folder / SETTINGS)
        if json.loads((folder / provenance.NAME).read_text())["data"] != data:
            return "shards"
    except (OSError, ValueError, UserError):
        return ""  # pretraining compares with the checkpoint
    free = {"device", "precision", "threads", "network.word_dimensions"}  # the run decides
    ignored = free | ({"group_size"} if now.group_size is None else set())
    changed = differences(to_json(before), to_json(now), ignored={*ignored, *LENGTH})
    if not changed and (longer := differences(to_json(before), to_json(now), ignored)):
        log = LogReader(folder / METRICS)
        log.read()
        batches, done = now.tree(Index.open(now.shard_folder)).batches_per_epoch, int(log.last.get("step", -1)) + 1
        changed = longer if other_rates(before, now, batches, done) else []
    more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"settings ({min(changed, key=len)}{more})" if changed else ""


def _left(run: Run, done: Sequence[list[str]]) -> list[list[str]]:
    """The commands of a run that are not done."""
    return [command for command in run.commands if command not in done]


def _done(run: Run, inputs: Inputs, any_labels: bool = False) -> list[list[str]]:
    """Finished commands of a run whose results can be read.

    Empty if shards or training changed; without evaluations by labels if labels changed.
    """
    try:
        last = json.loads((run.folder / _DONE).read_text())
        same = last["data"] == inputs.data and last["format"] == FORMAT
        done: list[list[str]] = last["done"] if same and run.commands[0] in last["done"] else []
        if last["labels"] != inputs.labels and not any_labels:
            done = [command for command in done if command[0] != "evaluate"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    files = {"evaluate": run.results, "factors": run.factors}
    return [command for command in done if not (path := files.get(command[0])) or _is_readable(path)]


def _is_readable(path: Path) -> bool:
    """Whether a file of records is there, undamaged and of this version."""
    try:
        record.read(path)
    except (OSError, UserError):
        return False
    return True


def _report(runs: Sequence[Run], labels: Sequence[str], protocols: tuple[str, ...], out: Path) -> str:
    records = [each for run in runs for each in run.records(protocols)]
    texts, summary, files, tables = [], [], [], []
    if records:
        records, others = with_earlier(records, out / "results.json")
        record.write(out / OTHERS, others)
        record.write(out / "results.json", records)
        write_text(out / "results.csv", to_csv(records))
        comparison = compare_rows(records, labels)
        tables = comparison.tables
        write_text(out / "differences.csv", comparison.to_csv())
        save(bars(records), out / "table.png")
        texts.append(comparison.text)
        summary.append(comparison.summary)
        files.append("table.png")
    if any(run.factors for run in runs):
        factors = [replace(row, model=run.name) for run in runs if run.factors for row in record.read(run.factors)]
        record.write(out / NAME, factors)
        save(matrix(mean_over_seeds(factors)), out / "factors.png")
        promises, broken, unclear = _broken_promises(factors)
        texts.append("\n".join(["Broken promises of the compositions (see factors.png):", *(broken or ["none"])]))
        few = f"; for {unclear}, there are too few videos to tell" if unclear else ""
        summary.append(
            wrap(
                f"{len(broken)} of {promises} promises of the compositions (features encode distinctive factors and "
                f"ignore invariant ones) are broken{few}; table.txt lists them, --test-factors none skips this test"
            )
        )
        files.append("factors.png")
    write_tables(out, "\n\n".join(texts), tables)
    pictures = ", ".join(f"{out}/{name}" for name in files)
    return "\n".join(["", *summary, "", f"all tables: {out}/table.txt", f"pictures: {pictures}"])


def label_columns(index: Index, query_split: str, gallery_split: str = "train") -> tuple[str, ...]:
    """Label columns, `label` (the classes) first, without those that group the videos as an earlier one does.

    Gallery and queries must share at least two values, and values must have several videos (unlike ids).
    """
    columns: dict[tuple[int, ...], str] = {}
    for name in ("label", *index.columns):
        values = index.labelled(name).label.astype(str)
        known = [values[(index.split == split) & (values != "")] for split in (gallery_split, query_split)]
        shared = np.intersect1d(*known)
        if len(shared) > 1 and len(np.unique(known[0])) <= len(known[0]) / _MIN_SHARED:
            values = values[np.isin(index.split, (gallery_split, query_split))]
            columns.setdefault(tuple(np.unique(values, return_inverse=True)[1].tolist()), name)
    return tuple(columns.values())


def _broken_promises(records: Sequence[Record]) -> tuple[int, list[str], int]:
    """The number of promises, a line per broken one, and the number of those with too few videos to tell."""
    promises: dict[tuple[str, str, str], list[bool | None]] = {}
    for each in records:
        factor = factor_of(each)
        if is_promised(factor):
            promises.setdefault((each.preset, row_name(each), factor.promise), []).append(factor.kept)
    broken = [
        f"{label(preset)}: {name} is {promise}, broken in {kept.count(False)} of {plural(len(kept), 'run')}"
        for (preset, name, promise), kept in promises.items()
        if False in kept
    ]
    return len(promises), broken, sum(None in kept and False not in kept for kept in promises.values())
