"""Tables of records as text, LaTeX and CSV, with notes on the data, the models, the protocols and significance."""

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
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.record import RANDOM, Record, format_details
from gdt.pipeline.leaves import MODALITIES

Lines = list[list[str]]
"""Cells of a table; the first line and the first cell of each line are headings."""
Groups = Mapping[str, Sequence[Record]]
"""Rows of a table: names, and the records of their seeds and folds."""


@dataclass(frozen=True)
class Table:
    """A table of records."""

    groups: Groups
    lines: Lines
    notes: list[str]

    def __str__(self) -> str:
        return "\n".join([layout(self.lines), "", *self.notes])


def layout(lines: Sequence[Sequence[str]], width: int = 100, keys: int = 1) -> str:
    """A table as text. If it is wider than `width`, it is split by columns into tables below each other.

    Each of these begins with the first `keys` columns.
    """
    count = max(1, len(lines[0]) - keys)
    text = ""
    for parts in range(1, count + 1):
        size = -(-count // parts)
        tables = []
        for start in range(keys, keys + count, size):
            part = [[*line[:keys], *line[start : start + size]] for line in lines]
            tables.append(_render([line for line in part if parts == 1 or any(line[keys:])]))
        text = "\n\n".join(tables)
        if max(map(len, text.splitlines())) <= width:
            break
    return text


def _render(lines: Sequence[Sequence[str]], style: str = "simple") -> str:
    alignment = ["left", *["right"] * (len(lines[0]) - 1)]
    return tabulate(lines[1:], lines[0], tablefmt=style, colalign=alignment, disable_numparse=True)


def to_latex(lines: Sequence[Sequence[str]]) -> str:
    """A table as LaTeX for the package booktabs."""
    return _render([[cell.replace("→", " to ") for cell in line] for line in lines], "latex_booktabs")


def write_tables(out: Path, text: str, tables: Sequence[Sequence[Sequence[str]]] = ()) -> None:
    """Write a text as table.txt and tables as table.tex."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "table.txt", text + "\n")
    if tables:
        write_text(out / "table.tex", "\n\n".join(map(to_latex, tables)) + "\n")


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Lines of cells as CSV; floats have four decimals."""
    text = io.StringIO()
    for line in lines:
        cells = [f"{cell:.4f}" if isinstance(cell, float) else cell for cell in line]
        csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def to_csv(records: Iterable[Record]) -> str:
    """CSV of `record.rows`, one line per metric, with the value as `percent`."""
    rows = list(record.rows(records))
    heads = dict.fromkeys(name for row in rows for name in row)
    measured = ("value", "low", "high", "chance", "spread")
    lines = ([row.get(name) if name in measured else _exactly(row.get(name)) for name in heads] for row in rows)
    return csv_text([["percent" if name == "value" else name for name in heads], *lines])


def _exactly(value: object) -> str:
    return "" if value is None else str(value)


def columns(groups: Groups) -> list[str]:
    """Names of all metrics, in order."""
    return list(dict.fromkeys(name for records in groups.values() for each in records for name in each.metrics))


def metrics_of(records: Sequence[Record], column: str) -> list[Metric]:
    """One metric of the records that have it."""
    return [each.metrics[column] for each in records if column in each.metrics]


def format_cell(metrics: Sequence[Metric]) -> str:
    """One value with its 95 % interval, or the mean of several with the lowest and highest; empty for no values."""
    if not metrics:
        return ""
    if len(metrics) == 1:
        return metrics[0].text()
    values = [each.value for each in metrics]
    return Metric(float(np.mean(values)), bounds=(min(values), max(values))).text()


def format_range(numbers: Iterable[int]) -> str:
    """Lowest and highest number, or the only one."""
    return "-".join(map(str, sorted({min(numbers := list(numbers)), max(numbers)})))


def table_lines(groups: Groups, corner: str = "", others: Mapping[str, Mapping[str, float]] | None = None) -> Lines:
    """A table with a line per group, chance, and published results of `others`; `corner` is the first heading."""
    names = columns(groups)
    lines = [[corner, *map(_heading, names)]]
    for name, records in groups.items():
        lines.append([name, *(format_cell(metrics_of(records, column)) for column in names)])
    every = [each for records in groups.values() for each in records]
    lines.append(["chance", *(f"{np.mean([m.chance for m in metrics_of(every, column)]):.1f}" for column in names)])
    for name, values in (others or {}).items():
        if any(column in values for column in names):
            lines.append([name, *(f"{values[column]:.1f}" if column in values else "" for column in names)])
    return lines


def _heading(column: str) -> str:
    """Heading of a metric, with the modalities' first letters: video to audio R@1 becomes V→A R@1."""
    for modality in MODALITIES:
        column = column.replace(modality, modality[0].upper())
    return column.replace(" to ", "→")


def verdicts(groups: Groups) -> list[str]:
    """A sentence per group and protocol: whether its first metric differs from random weights."""
    sentences = []
    untrained = [each for group in groups.values() for each in group if each.preset == RANDOM]
    for name, records in groups.items():
        if records[0].preset == RANDOM:
            continue
        network = records[0].pretraining.network
        folds = {each.fold for each in records}
        random = [each for each in untrained if each.pretraining.network == network and each.fold in folds]
        for column in dict.fromkeys(next(iter(each.metrics)) for each in records if each.metrics):
            if other := metrics_of(random, column):
                sentences.append(f"{column} of {name}: {_verdict(*difference(metrics_of(records, column), other))}")
    return sentences


def _verdict(points: float, low: float, high: float) -> str:
    interval = f"95 % CI {low:+.1f} to {high:+.1f}"
    if low <= 0 <= high:
        return f"no significant difference from random weights ({points:+.1f} points, {interval})"
    return f"{abs(points):.1f} points {'above' if points > 0 else 'below'} random weights ({interval})"


def report(parts: Sequence[Iterable[Record]], out: Path) -> str:
    """Tables of records as text, for each part (evaluated in one way); writes text, LaTeX, CSV and JSON to `out`."""
    ordered = [_sorted(records) for records in parts]
    tables = [table for records in ordered for table in build_tables(records)]
    text = "\n\n".join(map(str, tables))
    write_tables(out, text, [table.lines for table in tables])
    every = [each for records in ordered for each in records]
    write_text(out / "results.csv", to_csv(every))
    record.write(out / "results.json", every)
    return text


def build_tables(records: Iterable[Record]) -> list[Table]:
    """Tables of records that were evaluated with the same settings, with published results and notes."""
    records, tables = _sorted(records), []
    for name in dict.fromkeys(protocol.table for protocol in PROTOCOLS.values()):
        protocols = [protocol.name for protocol in PROTOCOLS.values() if protocol.table == name]
        groups = _rows([each for each in records if each.protocol in protocols])
        if not groups:
            continue
        first = next(iter(groups.values()))[0]
        samples = max(each.settings["train_samples"] for group in groups.values() for each in group)
        others = {} if first.label else reported(first.dataset, protocols, samples)
        notes = _caption(groups) + verdicts(groups)
        if any(column in values for values in others.values() for column in columns(groups)):
            notes.append("published results are with their authors' networks, clips and all classes")
        tables.append(Table(groups, table_lines(groups, f"% on {first.query_split}", others), notes))
    return tables


def _sorted(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda each: (each.model != RANDOM, each.fold))


def _rows(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by row. A row's name has the digest if models share a name, and the folds if it lacks some."""
    folds = {each.fold for each in records}
    rows: dict[str, list[Record]] = {}
    for each in records:
        namesakes = [other for other in records if other.model == each.model]
        own = sorted({other.fold for other in namesakes if other.weights == each.weights})
        unique = len({other.weights for other in namesakes}) == 1
        name = each.model if unique else f"{each.model} ({each.weights[:8]})"
        if set(own) != folds:
            name += f", fold{'s' if len(own) > 1 else ''} {' '.join(map(str, own))}"
        rows.setdefault(name, []).append(each)
    return rows


def _caption(groups: Groups) -> list[str]:
    """Notes on queries and gallery, the meaning of the brackets, the models and the protocols."""
    every = [each for records in groups.values() for each in records]
    first = every[0]
    folds = sorted({each.fold for each in every} - {0})
    data = first.dataset
    data += f", fold{'s' if len(folds) > 1 else ''} {' '.join(map(str, folds))}" if folds else ""
    data += f", labels of the column {first.label}" if first.label else ""
    data += f": {format_range(each.queries for each in every)} queries"
    galleries = {each.gallery for each in every}
    data += f" against {format_range(galleries)} videos" if max(galleries) else ""
    data += f", {format_range(each.classes for each in every)} classes" if first.classes else ""
    brackets = "lowest and highest fold, or the 95 % CI of one fold" if len(folds) > 1 else "95 % CI"
    short = {each.held for each in every}
    held = f"; {format_range(short)} videos shorter than a clip, last frame repeated" if any(short) else ""
    lines = [f"{data}; in brackets {brackets}{held}"]
    for name, records in groups.items():
        if records[0].model != RANDOM:
            lines.append(f"{name}: {records[0].preset}, {records[0].step} steps, {records[0].checkpoint}")
        seen = {each.fold: f"{each.seen} of {each.queries} queries" for each in records if each.seen}
        if seen:
            counts = ", ".join(count + f" of fold {fold}" * bool(fold) for fold, count in seen.items())
            lines.append(f"{name} was pretrained, without labels, on {counts}")
    for protocol in dict.fromkeys(each.protocol for each in every):
        details = {name: _details(records, protocol) for name, records in groups.items()}
        if len(set(details.values()) - {""}) == 1:
            lines.append(f"{protocol}: {max(details.values())}")
        else:
            lines += [f"{protocol} of {name}: {text}" for name, text in details.items() if text]
    if PROTOCOLS[first.protocol].pairs:
        lines += [f"{name}: {_in_plain_words(records[0])}" for name, records in groups.items()]
    return lines


def _details(records: Sequence[Record], protocol: str) -> str:
    return format_details(next((each.how for each in records if each.protocol == protocol), {}))


def _in_plain_words(row: Record) -> str:
    """The first cross-modal metric as a plain sentence."""
    column, metric = next(iter(row.metrics.items()))
    query, _, gallery, _ = column.split()
    nouns = {"video": "frames", "audio": "sound", "text": "words"}
    kind = {"others": "an unseen video", "these": "a training video", "unknown": "a video"}[row.trained_on]
    note = "" if row.trained_on != "unknown" else "; it is not known whether they were used in training"
    return (
        f"Given {nouns[query]} of {kind}, it ranks that video's {nouns[gallery]} first {metric.value:.1f} % of the "
        f"time ({row.queries} candidates; chance {metric.chance:.1f} %{note})"
    )
