"""Tables of records in text, LaTeX and CSV, with all that a reader needs to trust them: who, against whom, how, and how
sure.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tabulate import tabulate

from gdt.common.files import write_text
from gdt.eval import record
from gdt.eval.metrics import Metric, difference
from gdt.eval.paper import reported
from gdt.eval.record import RANDOM, Record, format_details
from gdt.eval.settings import PROTOCOLS, Protocol
from gdt.pipeline.leaves import MODALITIES

_SHARED: tuple[tuple[Protocol, ...], ...] = (("retrieval", "few-shot"), ("linear", "finetune"))
"""Protocols that share a table."""
_TABLES = tuple(dict.fromkeys(next((some for some in _SHARED if each in some), (each,)) for each in PROTOCOLS))

Lines = list[list[str]]
"""Cells of a table, the heads first; the first of each line heads that line."""
Groups = Mapping[str, Sequence[Record]]
"""Rows of a table: a name, and the records of its seeds and folds."""


@dataclass(frozen=True)
class Table:
    """Records side by side."""

    groups: Groups
    lines: Lines
    notes: list[str]
    """What a reader needs to trust them, a sentence each."""

    def __str__(self) -> str:
        return "\n".join([layout(self.lines), "", *self.notes])


def layout(lines: Sequence[Sequence[str]], kind: str = "simple") -> str:
    """Lines of cells, the first the heads, as text, or with `latex_booktabs` as LaTeX."""
    alignment = ["left", *["right"] * (len(lines[0]) - 1)]
    return tabulate(lines[1:], lines[0], tablefmt=kind, colalign=alignment, disable_numparse=True)


def to_latex(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells, the first the heads, as LaTeX for the package booktabs."""
    return layout([[cell.replace("→", " to ") for cell in line] for line in lines], "latex_booktabs")


def write_tables(out: Path, text: str, tables: Sequence[Sequence[Sequence[str]]] = ()) -> None:
    """Write what is said with its tables to a folder, as text, and the tables as LaTeX."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "table.txt", text + "\n")
    if tables:
        write_text(out / "table.tex", "\n\n".join(map(to_latex, tables)) + "\n")


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Lines of cells as CSV; numbers that are no counts with four digits."""
    text = io.StringIO()
    for line in lines:
        cells = [f"{cell:.4f}" if isinstance(cell, float) else cell for cell in line]
        csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


_COLUMNS = ("model", "weights", "preset", "seed", "step", "dataset", "fold", "protocol", "metric", "percent", "low",
            "high", "chance", "spread", "queries", "gallery", "held", "commit")  # fmt: skip


def to_csv(records: Iterable[Record]) -> str:
    """One line per number: what it is of, value, 95 % interval, chance and counts."""
    rows = (row | {"percent": row["value"]} for row in record.rows(records))
    return csv_text([_COLUMNS, *([row[name] for name in _COLUMNS] for row in rows)])


def columns(groups: Groups) -> list[str]:
    """The metrics that there are, in order."""
    return list(dict.fromkeys(name for records in groups.values() for found in records for name in found.metrics))


def metrics_of(records: Sequence[Record], column: str) -> list[Metric]:
    """One metric of several records, of those that have it."""
    return [found.metrics[column] for found in records if column in found.metrics]


def format_cell(metrics: Sequence[Metric]) -> str:
    """The one value with its 95 % interval, or the mean of several with lowest and highest; empty without any."""
    if not metrics:
        return ""
    values = [each.value for each in metrics]
    low, high = metrics[0].interval if len(metrics) == 1 else (min(values), max(values))
    return f"{np.mean(values):.1f} ({low:.1f}-{high:.1f})"


def format_range(numbers: Iterable[int]) -> str:
    """Lowest and highest of some numbers, or the one there is."""
    return "-".join(map(str, sorted({min(numbers := list(numbers)), max(numbers)})))


def table_lines(groups: Groups, corner: str = "", others: Mapping[str, Mapping[str, float]] | None = None) -> Lines:
    """A table: one line per group, chance, and what others report. `corner` heads the column of names.

    Where a group has one record, its value stands with the 95 % interval; where it has several, their mean with lowest
    and highest.
    """
    names = columns(groups)
    lines = [[corner, *(_headed(name) for name in names)]]
    for name, records in groups.items():
        lines.append([name, *(format_cell(metrics_of(records, column)) for column in names)])
    every = [found for records in groups.values() for found in records]
    lines.append(["chance", *(f"{np.mean([m.chance for m in metrics_of(every, column)]):.1f}" for column in names)])
    for name, values in (others or {}).items():
        if any(column in values for column in names):
            lines.append([name, *(f"{values[column]:.1f}" if column in values else "" for column in names)])
    return lines


def _headed(column: str) -> str:
    """A metric as the head of a column: directions between modalities by their letters."""
    for modality in MODALITIES:
        column = column.replace(modality, modality[0].upper())
    return column.replace(" to ", "→")


def verdicts(groups: Groups) -> list[str]:
    """For every group and the first metric of each protocol, whether it differs from random weights, in words."""
    said = []
    every = [found for group in groups.values() for found in group if found.preset == RANDOM]
    for name, records in groups.items():
        if records[0].preset == RANDOM:
            continue
        network = records[0].pretraining.network
        folds = {found.fold for found in records}
        random = [found for found in every if found.pretraining.network == network and found.fold in folds]
        for column in dict.fromkeys(next(iter(found.metrics)) for found in records if found.metrics):
            one, other = metrics_of(records, column), metrics_of(random, column)
            if other:
                points, low, high = difference(one, other)
                verdict = f"{abs(points):.1f} points {'above' if points > 0 else 'below'} random weights"
                if low <= 0 <= high:
                    verdict = f"not to be told from random weights ({points:+.1f} points)"
                said.append(f"{column} of {name}: {verdict}; 95 %: {low:+.1f} to {high:+.1f}")
    return said


def report(labels: Sequence[Iterable[Record]], out: Path) -> str:
    """Tables of records, each group of which was got in the same way, as text; in `out` also as LaTeX, CSV, JSON."""
    ordered = [_in_order(found) for found in labels]
    tables = [table for found in ordered for table in build_tables(found)]
    text = "\n\n".join(map(str, tables))
    write_tables(out, text, [table.lines for table in tables])
    every = [found for records in ordered for found in records]
    write_text(out / "results.csv", to_csv(every))
    record.write(out / "results.json", every)
    return text


def build_tables(found: Iterable[Record]) -> list[Table]:
    """Tables of records that were got in the same way, beside what others report, with what is to be said of them."""
    made = []
    records = _in_order(found)
    for protocols in _TABLES:
        groups = _rows([each for each in records if each.protocol in protocols])
        if not groups:
            continue
        first = next(iter(groups.values()))[0]
        samples = max(each.settings["train_samples"] for group in groups.values() for each in group)
        others = {} if first.label else reported(first.dataset, protocols, samples)
        said = _caption(groups) + verdicts(groups)
        if any(column in values for values in others.values() for column in columns(groups)):
            said.append("what others report is of their networks, clips and all classes of the data set")
        made.append(Table(groups, table_lines(groups, f"% on {first.query_split}", others), said))
    return made


def _in_order(found: Iterable[Record]) -> list[Record]:
    return sorted(found, key=lambda each: (each.model != RANDOM, each.fold))


def _rows(found: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by the name of their row: with the digest where several models have one name, and with the folds where a
    model lacks some that others have.
    """
    folds = {each.fold for each in found}
    rows: dict[str, list[Record]] = {}
    for each in found:
        alike = [other for other in found if other.model == each.model]
        own = sorted({other.fold for other in alike if other.weights == each.weights})
        name = each.model if len({other.weights for other in alike}) == 1 else f"{each.model} ({each.weights[:8]})"
        if set(own) != folds:
            name += f", fold{'s' if len(own) > 1 else ''} {' '.join(map(str, own))}"
        rows.setdefault(name, []).append(each)
    return rows


def _caption(groups: Groups) -> list[str]:
    """Who was asked and searched, what the brackets are, what the models are, and how it all came about."""
    every = [found for records in groups.values() for found in records]
    first = every[0]
    folds = sorted({found.fold for found in every} - {0})
    where = f"{first.dataset}, folds {' '.join(map(str, folds))}" if len(folds) > 1 else first.dataset
    where += f", fold {folds[0]}" if len(folds) == 1 else ""
    where += f", labels of the column {first.label}" if first.label else ""
    galleries = {found.gallery for found in every}
    against = f" against {format_range(galleries)} videos" if max(galleries) else ""
    short = {found.held for found in every}
    held = f"; {format_range(short)} shorter than a clip, last frame held" if any(short) else ""
    classes = f", {format_range(found.classes for found in every)} classes" if first.classes else ""
    brackets = "lowest and highest fold, of one fold the 95 % interval" if len(folds) > 1 else "95 % intervals"
    queries = format_range(found.queries for found in every)
    lines = [f"{where}: {queries} queries{against}{classes}; in brackets {brackets}{held}"]
    for name, records in groups.items():
        if records[0].model != RANDOM:
            lines.append(f"{name}: {records[0].preset}, {records[0].step} steps, {records[0].checkpoint}")
    for protocol in dict.fromkeys(found.protocol for found in every):
        ways = {name: _way(records, protocol) for name, records in groups.items()}
        if len(set(ways.values()) - {""}) == 1:
            lines.append(f"{protocol}: {max(ways.values())}")
        else:
            lines += [f"{protocol} of {name}: {way}" for name, way in ways.items() if way]
    if first.protocol == "cross-modal":
        lines += [f"{name}: {_said(records[0])}" for name, records in groups.items()]
    return lines


def _way(records: Sequence[Record], protocol: str) -> str:
    return format_details(next((found.how for found in records if found.protocol == protocol), {}))


def _said(found: Record) -> str:
    """The first figure across modalities in a line that anybody understands."""
    column, metric = next(iter(found.metrics.items()))
    one, _, other, _ = column.split()
    words = {"video": "picture", "audio": "sound", "text": "words"}
    seen = {
        "others": "videos it never saw", "these": "videos that it was trained on",
        "unknown": "videos (it is not known whether it was trained on them)",
    }[found.trained_on]  # fmt: skip
    return (
        f"asked with the {words[one]} of one of {found.queries} {seen}, it finds that video's own {words[other]} "
        f"first in {metric.value:.1f} % (chance {metric.chance:.1f} %)"
    )
