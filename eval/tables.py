"""Tables of records as text, LaTeX and CSV, with notes on the data, the models and the protocols."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tabulate import tabulate

from gdt.common.errors import COLUMNS, format_range
from gdt.common.files import write_text
from gdt.eval import record
from gdt.eval.metrics import Metric, over_seeds
from gdt.eval.paper import reported
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.record import RANDOM, Record, format_details
from gdt.eval.subjects import name_of
from gdt.pipeline.leaves import MODALITIES

Lines = list[list[str]]
"""Cells of a table; the first line and the first cell of each line are headings."""
Groups = Mapping[str, Sequence[Record]]
"""Rows of a table by name: the records of their seeds and folds."""
_PUBLISHED = "published results were obtained with their authors' networks and clips, and on all classes"
_FEW_QUERIES = 50
"""A warning is printed for fewer: the 95 % interval of a share of 50 answers is up to 27 points wide."""


@dataclass(frozen=True)
class Table:
    """A table of records."""

    groups: Groups
    lines: Lines
    brief: list[str]
    """Notes to print."""
    details: list[str]
    """Other notes, for files and pages only."""
    title: str = ""

    @property
    def notes(self) -> list[str]:
        return [*self.brief, *self.details]


def with_notes(lines: Sequence[Sequence[str]], notes: Iterable[str], title: str = "") -> str:
    """A table as text, with a title above and notes below, at most 100 columns wide."""
    return "\n".join([*([wrap(title)] if title else []), layout(lines), "", *map(wrap, notes)])


def wrap(note: str, indent: str = "  ") -> str:
    """A note in lines of at most 100 columns; numbers, paths and words are kept whole."""
    return textwrap.fill(note, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def layout(lines: Sequence[Sequence[str]], width: int = COLUMNS) -> str:
    """A table as text. If it is wider than `width`, it is split into tables that all begin with the first column."""
    count = max(1, len(lines[0]) - 1)
    text = ""
    for parts in range(1, count + 1):
        size = -(-count // parts)
        tables = []
        for start in range(1, 1 + count, size):
            part = [[line[0], *line[start : start + size]] for line in lines]
            tables.append(_render([part[0], *(line for line in part[1:] if parts == 1 or any(line[1:]))]))
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
    """Write a text as table.txt and tables as table.tex, which is removed if there are none."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "table.txt", text + "\n")
    if tables:
        write_text(out / "table.tex", "\n\n".join(map(to_latex, tables)) + "\n")
    else:
        (out / "table.tex").unlink(missing_ok=True)


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Lines of cells as CSV; floats have four decimals."""
    text = io.StringIO()
    for line in lines:
        cells = [f"{cell:.4f}" if isinstance(cell, float) else cell for cell in line]
        csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


_CSV_NAMES = {"value": "percent", **{name: f"{name}_checksum" for name in ("weights", "data", "labels", "words")}}


def to_csv(records: Iterable[Record]) -> str:
    """CSV of `record.rows`, one line per metric, with clearer names for some columns."""
    rows = list(record.rows(records))
    heads = dict.fromkeys(name for row in rows for name in row)
    measured = ("value", "low", "high", "chance", "spread")
    # only measured values are rounded
    lines = ([row.get(name) if name in measured else _as_text(row.get(name)) for name in heads] for row in rows)
    return csv_text([[_CSV_NAMES.get(name, name) for name in heads], *lines])


def _as_text(value: object) -> str:
    return "" if value is None else str(value)


def columns(groups: Groups) -> list[str]:
    """Names of all metrics, in the order of their columns."""
    return list(dict.fromkeys(name for records in groups.values() for each in records for name in each.metrics))


def metrics_of(records: Sequence[Record], column: str) -> list[Metric]:
    """The metric of a column, of the records that have it."""
    return [each.metrics[column] for each in records if column in each.metrics]


def mean_of(metrics: Sequence[Metric]) -> Metric:
    """One metric with its interval, or the mean of several with that over seeds or folds."""
    return metrics[0] if len(metrics) == 1 else over_seeds(metrics)


def table_lines(groups: Groups, corner: str = "", others: Mapping[str, Mapping[str, float]] | None = None) -> Lines:
    """A table with a line per group, one for chance, and one per published result in `others`.

    `corner` is the first heading.
    """
    names = columns(groups)
    lines = [[corner, *map(_heading, names)]]
    for name, records in groups.items():
        lines.append([name, *(mean_of(of).text() if (of := metrics_of(records, column)) else "" for column in names)])
    every = [each for records in groups.values() for each in records]
    lines.append(["chance", *(f"{np.mean([m.chance for m in metrics_of(every, column)]):.1f}" for column in names)])
    for name, values in (others or {}).items():
        if any(column in values for column in names):
            lines.append([name, *(f"{values[column]:.1f}" if column in values else "" for column in names)])
    return lines


def _heading(column: str) -> str:
    """Heading of a metric, with modalities as letters: 'video to audio R@1' becomes 'V→A R@1'."""
    for modality in MODALITIES:
        column = column.replace(modality, modality[0].upper())
    return column.replace(" to ", "→")


def by_direction(lines: Lines) -> Lines:
    """A table with a line per direction instead of columns such as V→A R@1 and A→V R@1; others are unchanged."""
    heads = [head.split(" ", 1) for head in lines[0][1:]]
    if not all("→" in head[0] for head in heads):
        return lines
    directions, names = dict.fromkeys(head[0] for head in heads), dict.fromkeys(head[1] for head in heads)
    found: Lines = [[lines[0][0], *names]]
    for first, *cells in lines[1:]:
        of = {tuple(head): cell for head, cell in zip(heads, cells, strict=True)}
        rows = {direction: [of.get((direction, name), "") for name in names] for direction in directions}
        if first == "chance":  # it is the same in all directions
            found.append([first, *rows[next(iter(rows))]])
        else:
            found += [[f"{first}, {direction}", *row] for direction, row in rows.items()]
    return found


def report(parts: Sequence[Iterable[Record]], out: Path) -> str:
    """Tables to print, with the most important notes. The records of a part were evaluated with the same settings.

    Writes the tables with all notes, LaTeX, CSV and JSON to `out`.
    """
    ordered = [_sorted(records) for records in parts]
    tables = [table for records in ordered for table in build_tables(records)]
    whole = "\n\n".join(with_notes(by_direction(table.lines), table.notes) for table in tables)
    write_tables(out, whole, [table.lines for table in tables])
    every = [each for records in ordered for each in records]
    write_text(out / "results.csv", to_csv(every))
    record.write(out / "results.json", every)
    return "\n\n".join(with_notes(by_direction(table.lines), table.brief) for table in tables)


def build_tables(records: Iterable[Record]) -> list[Table]:
    """Tables of records evaluated with the same settings, with published results and notes."""
    records = _sorted(records)
    tables: list[Table] = []
    for name in dict.fromkeys(protocol.table for protocol in PROTOCOLS.values()):
        protocols = [protocol.name for protocol in PROTOCOLS.values() if protocol.table == name]
        groups = _rows([each for each in records if each.protocol in protocols])
        if not groups:
            continue
        first = next(iter(groups.values()))[0]
        samples = max(each.settings["train_samples"] for group in groups.values() for each in group)
        of_video = first.settings["modalities"] == ["video"]
        others = {} if first.label or not of_video else reported(first.dataset, protocols, samples)
        brief = [_caption(groups), *([] if tables else few_videos(records)), *_seen_in_pretraining(groups)]
        published = any(column in values for values in others.values() for column in columns(groups))
        if published and all(_PUBLISHED not in table.brief for table in tables):
            brief.append(_PUBLISHED)
        lines = table_lines(groups, f"% on {first.query_split}", others)
        tables.append(Table(groups, lines, brief, _descriptions(groups)))
    return tables


def few_videos(records: Sequence[Record]) -> list[str]:
    """A warning if there are few queries, or if the gallery is so small that a metric is 100 % for any model."""
    few = [each.queries for each in records if each.queries < _FEW_QUERIES]
    parts = [f"only {format_range(few)} queries: the 95 % intervals are wide"] if few else []
    full: dict[str, dict[str, None]] = {}
    for each in records:
        names = {name.split()[-1]: None for name, metric in each.metrics.items() if metric.chance >= 100}
        if names:
            small = f"the gallery has {each.gallery or each.queries} videos"
            full.setdefault("there is one class" if each.classes == 1 else small, {}).update(names)
    for why, names in full.items():
        parts.append(f"{', '.join(names)}: 100 % for any model, as {why}")
    return [f"warning: {'; '.join(parts)}; evaluate on more videos"] if parts else []


def _sorted(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda each: (each.model != RANDOM, each.fold))


def _rows(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by row. The name of a row without all folds lists those that it has."""
    folds = {each.fold for each in records}
    names = _names(records)
    rows: dict[str, list[Record]] = {}
    for each in records:
        own = sorted({other.fold for other in records if other.weights == each.weights and other.model == each.model})
        name = names[each.model, each.weights]
        if set(own) != folds:
            name += f", fold{'s' if len(own) > 1 else ''} {' '.join(map(str, own))}"
        rows.setdefault(name, []).append(each)
    return rows


def _names(records: Sequence[Record]) -> dict[tuple[str, str], str]:
    """Names of rows by model and weights.

    If several weights share a name, it is completed: for random weights by the run with the same network, for others by
    the steps, or else by a digest.
    """
    firsts = {(each.model, each.weights): each for each in reversed(records)}
    names = {}
    for (model, weights), first in firsts.items():
        namesakes = [other for (name, _), other in firsts.items() if name == model]
        runs = [name_of(other.checkpoint) for other in namesakes]
        own = name_of(first.checkpoint)
        if len(namesakes) == 1:
            names[model, weights] = model
        elif model == RANDOM and runs.count(own) == 1:
            names[model, weights] = f"{RANDOM} of {own}"
        elif [other.step for other in namesakes].count(first.step) == 1:
            names[model, weights] = f"{model} ({first.step} steps)"
        else:
            names[model, weights] = f"{model} ({weights[:8]})"
    return names


def _caption(groups: Groups) -> str:
    """Data, queries and gallery, and the meaning of the brackets."""
    every = [each for records in groups.values() for each in records]
    first = every[0]
    folds = sorted({each.fold for each in every} - {0})
    data = first.dataset
    data += f", fold{'s' if len(folds) > 1 else ''} {' '.join(map(str, folds))}" if folds else ""
    data += f", labels of the column {first.label}" if first.label else ""
    modalities = first.settings["modalities"]
    data += f", features of {' and '.join(modalities)}" if modalities != ["video"] else ""
    data += f": {format_range(each.queries for each in every)} queries"
    galleries = {each.gallery for each in every}
    data += f" against {format_range(galleries)} videos" if max(galleries) else ""
    noun = "class" if all(each.classes == 1 for each in every) else "classes"
    data += f", {format_range(each.classes for each in every)} {noun}" if first.classes else ""
    brackets = "95 % CI over folds, or over the queries of one fold" if len(folds) > 1 else "95 % CI"
    short = {each.short for each in every}
    repeated = (
        f"; videos shorter than a clip, whose last frame is repeated: {format_range(short)}" if any(short) else ""
    )
    return f"{data}; in brackets {brackets}{repeated}"


def _seen_in_pretraining(groups: Groups) -> list[str]:
    """A note per model that was pretrained on some of the queries, or perhaps was."""
    lines = []
    for name, records in groups.items():
        seen = {each.fold: f"up to {each.seen} of {each.queries} queries" for each in records if each.seen}
        if seen:
            counts = ", ".join(f"{count} of fold {fold}" if fold else count for fold, count in seen.items())
            lines.append(f"{name} was pretrained, without labels, on {counts}")
        elif any(each.trained_on == "unknown" and each.pretraining.dataset == each.dataset for each in records):
            lines.append(
                f"warning: {name} may have been pretrained on these queries: the videos or splits of "
                f"{records[0].dataset} have changed since, or it started from other weights (--init); to be sure, "
                "pretrain again"
            )
    return lines


def _descriptions(groups: Groups) -> list[str]:
    """Notes on the models and the details of the protocols."""
    lines = []
    for name, records in groups.items():
        if records[0].model != RANDOM:
            described = (f"{records[0].preset}, {records[0].step} steps, {records[0].checkpoint}", *records[0].notes)
            lines.append(f"{name}: {'; '.join(described)}")
    for protocol in dict.fromkeys(each.protocol for records in groups.values() for each in records):
        details = {name: _details(records, protocol) for name, records in groups.items()}
        if len(set(details.values()) - {""}) == 1:
            lines.append(f"{protocol}: {max(details.values())}")
        else:
            lines += [f"{protocol} of {name}: {text}" for name, text in details.items() if text]
    return lines


def _details(records: Sequence[Record], protocol: str) -> str:
    return format_details(next((each.details for each in records if each.protocol == protocol), {}))
