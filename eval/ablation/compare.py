"""Rows of an ablation side by side, with those of earlier calls: by metrics, by labels, and row against row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gdt.eval import record
from gdt.eval.metrics import difference, over_seeds
from gdt.eval.paper import TABLE_1, TABLE_2
from gdt.eval.record import RANDOM, Record, format_details
from gdt.eval.tables import (
    Groups,
    Lines,
    Table,
    csv_text,
    format_cell,
    format_range,
    layout,
    metrics_of,
    table_lines,
    verdicts,
)
from gdt.pipeline import presets

_MANY = 20
"""From so many pairs on, one is expected to look sure by chance alone."""
_PAPER_HEADS = ("paper R@1", "paper finetuned")
_PAPER = {
    **{row: (f"{recall:.1f}", f"{accuracy:.1f}") for row, (accuracy, recall) in TABLE_1.items()},
    **{f"text-{row}": ("", f"{accuracy:.1f}") for row, accuracy in TABLE_2.items()},
}


class Difference(NamedTuple):
    """Of two rows, by the first metric of a column of labels."""

    label: str
    metric: str
    row: str
    other: str
    seeds: int
    other_seeds: int
    points: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether the 95 % interval leaves out zero."""
        return self.low > 0 or self.high < 0


class Compared(NamedTuple):
    """All of it."""

    text: str
    tables: list[Lines]
    differences: list[Difference]

    def to_csv(self) -> str:
        """The differences, one line per pair of rows and column of labels."""
        return csv_text([[name.replace("_", " ") for name in Difference._fields], *self.differences])


def compared_rows(records: Sequence[Record], labels: Sequence[str]) -> Compared:
    """Tables of all rows: by the metrics of the first column of labels, by all columns, and of their differences."""
    labels = labels or ("label",)
    first = _of(records, labels[0])
    table = table_of(first)
    parts: list[tuple[Lines, list[str]]] = [(table.lines, table.notes)]
    if len(labels) > 1:
        parts.append((_label_lines(records, labels), _label_said(records, labels)))
    differences = [each for name in labels for each in _differences(records, name)]
    if own := [each for each in differences if each.label == labels[0]]:
        parts.append((_matrix(own), [_matrix_said(own)]))
    text = "\n\n".join("\n".join([layout(lines), "", *said]) for lines, said in parts)
    return Compared(text, [lines for lines, _ in parts], differences)


def table_of(records: Sequence[Record]) -> Table:
    """A row for every preset, over its seeds, of records that are of the same videos; with what is to be said of it."""
    rows = by_preset(records)
    groups = {label(preset): group for preset, group in rows.items()}
    lines = table_lines(groups, f"% on {records[0].query_split}")
    said = _caption(groups) + verdicts(groups)
    if any(preset in _PAPER for preset in rows):
        names = dict(zip(groups, rows, strict=True))
        cells = [_PAPER.get(names.get(line[0], ""), ("", "")) for line in lines[1:]]
        lines = [[*lines[0], *_PAPER_HEADS], *([*line, *own] for line, own in zip(lines[1:], cells, strict=True))]
        said.append(
            "paper: tables 1 and 2, HMDB-51, fold 1, after Kinetics-400 or HowTo100M with the full network; to be "
            "compared by the order of rows only"
        )
    return Table(groups, lines, said)


def _caption(groups: Groups) -> list[str]:
    """Who was asked and searched, what the runs were, and what the brackets are."""
    every = [found for records in groups.values() for found in records]
    trained = [found for found in every if found.preset != RANDOM]
    first = every[0]
    seeds = sorted({found.seed for found in every})
    brackets = "lowest and highest seed" if len(seeds) > 1 else "95 % intervals"
    asked = f"{first.queries} queries"
    if first.gallery:
        asked += f" against {first.gallery} videos, {first.classes} classes"
    column = f" of the column {first.label}" if first.label else ""
    pretrainings = [found.pretraining for found in trained]
    clips = format_range(each.composition.batch_size * each.composition.clips_per_video for each in pretrainings)
    return [
        f"{asked}{column}; {clips} video clips per step, {format_range(found.step for found in trained)} steps, seeds "
        f"{', '.join(map(str, seeds))}; in brackets {brackets}"
    ]


def _label_lines(records: Sequence[Record], labels: Sequence[str]) -> Lines:
    """R@1 by rows and columns of labels; the heads first."""
    lines = [[f"R@1, % on {records[0].query_split}", *map(_word, labels)]]
    for preset, group in by_preset(records).items():
        lines.append([label(preset), *(format_cell(metrics_of(_of(group, name), "R@1")) for name in labels)])
    chances = [metrics_of(_of(records, name), "R@1")[0].chance for name in labels]
    return [*lines, ["chance", *(f"{chance:.1f}" for chance in chances)]]


def _label_said(records: Sequence[Record], labels: Sequence[str]) -> list[str]:
    firsts = [(name, _of(records, name)[0]) for name in labels]
    counts = [f"{_word(name)} {one.queries} against {one.gallery}, {one.classes} values" for name, one in firsts]
    return [f"queries and videos that are searched: {'; '.join(counts)}"]


def _differences(records: Sequence[Record], name: str) -> list[Difference]:
    """Of all pairs of rows, by the first metric that both have of a column of labels."""
    groups = {preset: own for preset, group in by_preset(records).items() if (own := _of(group, name))}
    groups.pop(RANDOM, None)
    found = []
    for row, mine in groups.items():
        column = next(iter(mine[0].metrics))
        for other, its in groups.items():
            one, two = metrics_of(mine, column), metrics_of(its, column)
            if row != other and one and two:
                compare = over_seeds if min(len(one), len(two)) > 1 else difference
                found.append(Difference(name, column, row, other, len(one), len(two), *compare(one, two)))
    return found


def _matrix(differences: Sequence[Difference]) -> Lines:
    """Row minus column, points, a * where the interval leaves out zero; the heads first."""
    rows = list(dict.fromkeys(each.row for each in differences))
    cells = {(d.row, d.other): f"{d.points:+.1f}{'*' if d.is_sure else ' '}" for d in differences}
    short = {row: row if len(row) < 12 else f"({number})" for number, row in enumerate(rows, 1)}
    lines = [[differences[0].metric, *(f"- {short[row]}" for row in rows)]]
    return [*lines, *([short[row], *(cells.get((row, other), "") for other in rows)] for row in rows)]


def _matrix_said(differences: Sequence[Difference]) -> str:
    pairs = sum(each.is_sure for each in differences) // 2
    if min(each.seeds for each in differences) > 1:
        sure = "over seeds (Welch), on these very questions"
    else:
        sure = "of the choice of questions, and of seeds where there are several"
    every = len(differences) // 2
    by_chance = f", and by chance alone about {every / 20:.0f} would" if every >= _MANY else ""
    return f"row minus column, points; * the 95 % interval {sure}, leaves out zero: {pairs} of {every} pairs{by_chance}"


def with_earlier(records: list[Record], path: Path) -> tuple[list[Record], list[Record]]:
    """New records with those of the same videos that an earlier call left in a file and that were not made anew, and
    apart from them the records of other videos that it left.
    """
    if not path.is_file():
        return records, []
    made = {(_made(found), _compared_on(found)) for found in records}
    alike = {_compared_on(found) for found in records}
    earlier = [each for each in record.read(path) if (_made(each), _compared_on(each)) not in made]
    others = [each for each in earlier if _compared_on(each) not in alike]
    if others:
        print(
            f"{len(others)} earlier results in {path} are of other videos, labels or clips; they stay there, and are "
            "not in the table"
        )
    return [each for each in earlier if _compared_on(each) in alike] + records, others


def _made(found: Record) -> tuple[object, ...]:
    return (found.preset, found.seed, found.protocol)


def _compared_on(found: Record) -> tuple[object, ...]:
    return (found.protocol, found.data, found.labels, format_details(found.how))


def label(preset: str) -> str:
    """A row in words."""
    if preset not in presets.PRESETS:
        return preset  # random weights, or a composition in full
    return f"{'row ' if preset in presets.TABLE_1 else ''}{preset}: {presets.preset(preset).label}"


def by_preset(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Random weights first, then the rows in order."""
    groups: dict[str, list[Record]] = {}
    for found in sorted(records, key=lambda each: (each.preset != RANDOM, each.preset)):
        groups.setdefault(found.preset, []).append(found)
    return groups


def _of(records: Sequence[Record], name: str) -> list[Record]:
    """Those of a column of labels."""
    return [found for found in records if (found.label or "label") == name]


def _word(name: str) -> str:
    return "class" if name == "label" else name
