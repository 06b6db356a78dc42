"""Rows of the paper's table 1 side by side: pretrain each, evaluate its frozen features, and compare.

A run that is done is not touched again: what it was asked to do, on which shards, lies beside its results.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.eval import record
from gdt.eval.ablation.compare import compared_rows, label, with_earlier
from gdt.eval.ablation.settings import Ablation, is_written_out
from gdt.eval.drawing import save
from gdt.eval.factors.evaluate import NAME
from gdt.eval.factors.settings import Factors
from gdt.eval.factors.tables import factor_of, mean_over_seeds, row_name
from gdt.eval.plots import bars, matrix
from gdt.eval.processes import job_limit, run_command, run_parallel, to_arguments
from gdt.eval.progress import Progress
from gdt.eval.protocols import FORMAT, short_digest
from gdt.eval.record import RANDOM, Record
from gdt.eval.search.settings import RECALL
from gdt.eval.settings import Downstream
from gdt.eval.tables import to_csv, write_tables
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.layout import shard_folder
from gdt.train.settings import SIZES, Pretrain

_DONE = "done.json"
"""In the folder of a run: what it was asked to do."""
_REVEALING = 2
"""A column whose values are shared by fewer videos on average than so many names videos and is no label."""


@dataclass(frozen=True)
class Run:
    """One row with one seed."""

    row: str
    name: str
    """Of the row, for files and plots."""
    pretraining: Pretrain
    commands: list[list[str]]
    """Training, evaluation by labels or across modalities, and by factors; arguments of `gdt`."""
    factors: Path | None
    """The file of what is known of each factor, where that is asked for."""

    @property
    def folder(self) -> Path:
        return self.pretraining.run_folder

    def found(self, protocols: Sequence[str]) -> list[Record]:
        """Its records; none of a row of one modality, without labels. An earlier call may have compared otherwise."""
        path = self.folder / "eval" / "results.json"
        found = [each for each in record.read(path) if each.protocol in protocols] if path.is_file() else []
        found.sort(key=lambda each: each.provenance.started)
        # where the run was made anew, its earlier weights are there, too
        return list({(each.preset, each.protocol, each.label): each for each in found}.values())


def ablation(settings: Ablation) -> str:
    """Run everything that is not there yet; returns the tables. Raises UserError if a run fails, naming its log."""
    shards = shard_folder(settings.dataset, settings.shards)
    index = Index.open(shards)  # or it says what is wrong, before hours of training
    out = settings.out or Path("runs") / f"ablation-{settings.dataset}"
    labels = _labels(settings, index)
    protocols: tuple[str, ...] = ("retrieval", "few-shot") if labels else ("cross-modal",)
    _require_sense(settings, index, shards, labels)
    planned = partial(_planned, settings, shards, out, labels, protocols)
    runs = [planned(row, seed) for seed in settings.seeds for row in settings.rows]
    out.mkdir(parents=True, exist_ok=True)
    _run_all(settings, runs, fingerprint(index), protocols, out)
    return _reported(runs, labels, protocols, out)


def _labels(settings: Ablation, index: Index) -> tuple[str, ...]:
    """Columns of labels that are asked for, `label` for the classes; empty for recall across modalities."""
    if not settings.labels:
        return telling(index, settings.query_split)
    if settings.labels == (RECALL,):
        return ()
    for name in settings.labels:
        index.labelled(name)  # or it says which there are
    return tuple(dict.fromkeys(settings.labels))


def _require_sense(settings: Ablation, index: Index, shards: Path, labels: Sequence[str]) -> None:
    """Raise UserError where rows lack the sound that they learn from, or nothing is left to compare them by."""
    modalities = {row: settings.composition(row).modalities for row in settings.rows}
    if not index.mel_count.any() and (asking := [row for row in modalities if "audio" in modalities[row]]):
        others = [row for row in modalities if row not in asking]
        raise UserError(
            f"the videos in {shards} have no sound, which these rows learn from: {' '.join(asking)}; take "
            f"--rows {' '.join(others) or 'a b c d'}"
        )
    if not labels and settings.factors == "no" and all(len(each) < 2 for each in modalities.values()):
        none = f"{shards} has no labels with a train and a {settings.query_split} split"
        raise UserError(
            f"{'recall takes two modalities' if settings.labels else none}, and none of the rows "
            f"{' '.join(settings.rows)} has two modalities: nothing is left to compare but what they know of each "
            "factor; leave --factors no out"
        )


def _planned(
    settings: Ablation, shards: Path, out: Path, labels: Sequence[str], protocols: tuple[str, ...], row: str,
    seed: int,
) -> Run:  # fmt: skip
    """What a run is to do."""
    composition, size = settings.composition(row), SIZES[settings.size][1]
    name = f"own-{short_digest(row)[:6]}" if is_written_out(row) else row
    folder = out / f"{name}-{seed}"
    own: dict[str, Any] = {"steps": settings.steps, "epochs": 0} if settings.steps else {}
    own |= {"factors": row, "factors_from": settings.factors_from} if is_written_out(row) else {"preset": row}
    pretraining = replace(
        size, dataset=settings.dataset, shards=shards, seed=seed, out=folder, bn_group_size=settings.bn_group_size,
        batch_size=settings.clips_per_step // composition.clips_per_video,
        word2vec=settings.word2vec if "text" in composition.modalities else None, **own,
    )  # fmt: skip
    commands = [["pretrain", settings.size, *to_arguments(pretraining, size)]]
    if labels or len(composition.modalities) > 1:
        evaluation = Downstream(
            (folder,), settings.dataset, shards, protocols, query_split=settings.query_split, label=",".join(labels),
            gallery_per_class=settings.gallery_per_class if labels else 0, clips=settings.clips,
            random_weights="include" if row == settings.rows[0] else "exclude", out=folder / "eval",
            word2vec=None if labels else pretraining.word2vec,
        )  # fmt: skip
        commands.append(["eval", "downstream", *to_arguments(evaluation, Downstream(()))])
    factors = None
    if settings.factors == "all" or (settings.factors == "first" and seed == settings.seeds[0]):
        factors = folder / "factors" / NAME
        looked = Factors((folder,), settings.dataset, shards, settings.query_split, out=factors.parent)
        commands.append(["eval", "factors", *to_arguments(looked, Factors((Path(),)))])
    return Run(row, name, pretraining, commands, factors)


def _run_all(settings: Ablation, runs: Sequence[Run], data: str, protocols: tuple[str, ...], out: Path) -> None:
    """Whatever is not done yet on shards with the fingerprint `data`, several at a time."""
    at_once = job_limit(settings.jobs)
    todo = [run for run in runs if any(command not in _done(run, data) for command in run.commands)]
    there = f", {len(runs) - len(todo)} of them are there" if len(todo) < len(runs) else ""
    print(
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}{there}, {at_once} at a time, "
        f"{settings.clips_per_step} video clips per step each; logs in {out}/<row>-<seed>/log.txt",
        flush=True,
    )
    began = time.monotonic()

    def work(run: Run, gpu: str) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        done = _done(run, data)
        for command in run.commands:
            if command in done:
                continue
            bar.set_status(run.folder, command[1] if command[0] == "eval" else "train")
            one_thread = [] if gpu or command[1] == "factors" else ["--threads", "1"]
            run_command([*command, *one_thread], run.folder / "log.txt", gpu, f"run {run.folder.name}")
            done = [other for other in done if other[:2] != command[:2]] + [command]  # whose results lie there now
            write_text(run.folder / _DONE, json.dumps({"data": data, "format": FORMAT, "done": done}) + "\n")

    with Progress({run.folder: run.pretraining for run in runs}) as bar:
        for run in run_parallel(todo, work, at_once, bar.refresh):
            first = next((each for each in run.found(protocols) if each.preset != RANDOM), None)
            column, metric = next(iter(first.metrics.items())) if first else ("", None)
            found = f": {column} {metric.value:.1f} %" if metric else ""
            seconds = time.monotonic() - began
            bar.finish(run.folder, f"[{seconds:4.0f} s] {label(run.row)}, seed {run.pretraining.seed}{found}")


def _done(run: Run, data: str) -> list[list[str]]:
    """Commands of a run that need not be run again: none where the shards or the training are others now."""
    try:
        there = json.loads((run.folder / _DONE).read_text())
        alike = there["data"] == data and there["format"] == FORMAT
        done: list[list[str]] = there["done"] if alike and run.commands[0] in there["done"] else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return done


def _reported(runs: Sequence[Run], labels: Sequence[str], protocols: tuple[str, ...], out: Path) -> str:
    records = [found for run in runs for found in run.found(protocols)]
    parts, files, tables = [], [], []
    if records:
        records, others = with_earlier(records, out / "results.json")
        record.write(out / "results.json", records + others)
        write_text(out / "results.csv", to_csv(records))
        compared = compared_rows(records, labels)
        tables = compared.tables
        write_text(out / "differences.csv", compared.to_csv())
        save(bars(records), out / "table.png")
        parts.append(compared.text)
        files.append("tables (txt, tex, csv), differences.csv, plot, numbers and checkpoints")
    if any(run.factors for run in runs):
        known = [replace(row, model=run.name) for run in runs if run.factors for row in record.read(run.factors)]
        record.write(out / NAME, known)
        save(matrix(mean_over_seeds(known)), out / "factors.png")
        parts.append(_factors_said(known))
        files.append("what features know of each factor, factors.png and factors.json")
    text = "\n\n".join(parts)
    write_tables(out, text, tables)
    return f"\n{text}\n\n{'; '.join(files)}: {out}/"


def telling(index: Index, query_split: str) -> tuple[str, ...]:
    """Columns of labels that part the videos in a way of their own, `label` (the classes) first.

    A column counts where videos to search and to ask have two values or more, and values are shared by several videos:
    an id is no label.
    """
    found: dict[tuple[int, ...], str] = {}
    for name in ("label", *index.columns):
        values = index.labelled(name).label.astype(str)
        known = [values[(index.split == split) & (values != "")] for split in ("train", query_split)]
        shared = np.intersect1d(*known)
        if len(shared) > 1 and len(np.unique(known[0])) <= len(known[0]) / _REVEALING:
            found.setdefault(tuple(np.unique(values, return_inverse=True)[1].tolist()), name)
    return tuple(found.values())


def _factors_said(records: Sequence[Record]) -> str:
    """Which promises were not kept, row by row."""
    lines = ["Promises of the compositions that are not kept (runs of all runs that make them), see factors.png:"]
    promises: dict[tuple[str, str, str], list[bool]] = {}
    for found in records:
        factor = factor_of(found)
        if factor.kept is not None:
            promises.setdefault((found.preset, row_name(found), factor.promise), []).append(factor.kept)
    for (preset, name, promise), kept in promises.items():
        if not all(kept):
            lines.append(f"{label(preset)}: {name} is {promise}, {kept.count(False)} of {len(kept)}")
    return "\n".join(lines if len(lines) > 1 else ["Every promise of the compositions is kept."])
