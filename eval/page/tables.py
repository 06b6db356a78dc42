"""Records as tables of the page, and beside each number what could change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.ablation.compare import table_of
from gdt.eval.page.collect import Data, Evaluation, Run
from gdt.eval.page.curves import smooth
from gdt.eval.record import Record, sentence
from gdt.eval.tables import Table, tables_of

Lines = list[list[str]]
"""Cells of a table, the heads first; the first of each line heads that line."""

_TRAINED = {"others": "other videos", "these": "these very videos", "unknown": "not known"}


@dataclass(frozen=True)
class Compared:
    """Records that were got in the same way, side by side."""

    lines: Lines
    said: list[str]
    alike: list[tuple[str, str]]
    """What could change the results and is the same for all of them: its name and value."""
    sources: Lines
    """What could change them and is not, a line for every result."""


def compared(evaluation: Evaluation) -> list[Compared]:
    """The tables of an evaluation. Raises UserError where its results, read from files, make none."""
    made = []
    for results in _alike([found.result for found in evaluation.found]):
        try:
            found: list[Table] = [table_of(results)] if evaluation.is_ablation else tables_of(results)
        except (ValueError, KeyError, IndexError, ArithmeticError) as error:
            raise UserError(
                f"the results in {evaluation.folder} make no table ({error}); evaluate them again"
            ) from error
        made += [Compared(table.lines, table.said, *_sources(table)) for table in found]
    return made


def _alike(results: Sequence[Record]) -> list[list[Record]]:
    """Records that may stand in one table: of the same videos, labels and settings."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for result in results:
        groups.setdefault(_settings(result), []).append(result)
    found = []
    for group in groups.values():
        labels: dict[tuple[str, int], set[str]] = {}
        for row in group:
            labels.setdefault((row.protocol, row.fold), set()).add(row.labels)
        if max(map(len, labels.values())) == 1:
            found.append(group)
        else:  # labels have changed in between
            found += [[row for row in group if row.labels == one] for one in sorted({row.labels for row in group})]
    return found


def _settings(result: Record) -> tuple[Any, ...]:
    e = result.settings
    learned = tuple(
        e[name] for name in ("train_samples", "linear_c", "recipe", "size", "epochs", "rate", "clips_per_epoch")
    )
    return (
        result.dataset, result.data, result.query_split, result.label, e["gallery_split"], e["gallery_per_class"],
        result.clips, e["seed"],
        result.how.get("precision"), learned if result.protocol in ("linear", "finetune") else (),
        result.protocol == "cross-modal",
    )  # fmt: skip


def _sources(table: Table) -> tuple[list[tuple[str, str]], Lines]:
    heads = ["row", "protocol", "fold", "seed", "steps", "weights", "data set", "data", "labels", "split", "asked",
             "searched", "how", "learned from", "device", "versions", "commit", "evaluated"]  # fmt: skip
    lines = [heads]
    for name, results in table.groups.items():
        for row in results:
            versions = ", ".join(f"{package} {version}" for package, version in row.provenance.versions.items())
            lines.append([
                name, row.protocol, str(row.fold or "-"), str(row.seed), str(row.step), row.weights[:8], row.dataset,
                row.data[:8], row.labels[:8], row.query_split, str(row.queries), str(row.gallery or row.queries),
                sentence(row.how), _TRAINED[row.trained_on], row.provenance.device, versions,
                short_commit(row.provenance.commit), row.provenance.started,
            ])  # fmt: skip
    columns = list(zip(*lines, strict=True))
    alike = [(head, cells[0]) for head, *cells in columns[1:] if set(cells) == {cells[0]} - {"-"}]
    kept = [columns[0], *(column for column in columns[1:] if len(set(column[1:])) > 1)]
    return alike, [list(line) for line in zip(*kept, strict=True)] if len(kept) > 1 else []


def short_commit(commit: str) -> str:
    """The first digits of a commit, and whether files differed from it."""
    digits, dash, dirty = commit.partition("-")
    return digits[:12] + dash + dirty or "not known"


def runs_table(runs: Sequence[Run], smoothing: int) -> Lines:
    """A line for every run."""
    lines = [["run", "data set", "composition", "steps", "seed", "loss at the end", "clips/s", "waiting", "device",
              "commit", "started"]]  # fmt: skip
    for run in runs:
        settings, metrics = run.settings, run.metrics
        done = len(metrics["step"])
        last = run.starts[-1].provenance if run.starts else None
        planned = (
            "" if settings is None else f" of {settings.steps}" if settings.steps else f"; {settings.epochs} epochs"
        )
        lines.append([
            run.name, run.dataset, (settings.factors or settings.preset) if settings else "",
            f"{metrics['step'][-1] + 1:.0f}{planned}" if done else "",
            str(settings.seed) if settings else "",
            f"{smooth(metrics['loss'], smoothing)[-1]:.3f}" if done else "",
            f"{median(metrics['clips_per_second']):.0f}" if done else "",
            f"{100 * median(metrics['waiting']):.0f} %" if done else "",
            last.device if last else "", short_commit(last.commit) if last else "", last.started if last else "",
        ])  # fmt: skip
    return lines


def data_tables(data: Data) -> tuple[Lines, Lines]:
    """What preprocessing counted in a data set's shards, and why videos were left out."""
    counted = data.counted
    if counted is None:
        return [], []
    splits = ", ".join(f"{n} {split}" for split, n in counted.splits.items())
    lines = [
        ["", "number"], ["videos found", f"{counted.videos}"], ["kept", f"{counted.kept} ({splits})"],
        ["left out", f"{sum(counted.left_out.values())}"], ["classes", f"{counted.classes}"],
        ["hours", f"{counted.hours:.2f}"], ["GB", f"{counted.gigabytes:.2f}"],
        ["kept without sound", f"{counted.without_sound}"], ["seconds of silence", f"{counted.silent_seconds:.0f}"],
        ["words", f"{counted.words}"],
    ]  # fmt: skip
    reasons = [[reason, "left out", f"{n}"] for reason, n in counted.left_out.items()]
    reasons += [[note, "kept, with this note", f"{n}"] for note, n in counted.notes.items()]
    return lines, [["reason", "what became of them", "videos"], *reasons] if reasons else []


def confusion_shade(percent: np.ndarray) -> list[list[float]]:
    """How strongly the cells of a confusion matrix are coloured, so weakly that text stays readable: 0 to 0.45."""
    shade: list[list[float]] = (percent / 100 * 0.45).round(3).tolist()
    return shade
