"""Results of an ablation as tables, with those of earlier calls: rows by measures, rows by labels, row against row."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gdt.eval import results as tables
from gdt.eval.measures import difference, over_seeds
from gdt.eval.paper import TABLE_1, TABLE_2
from gdt.eval.results import RANDOM, Result, Table, from_json, measured
from gdt.pipeline import presets

REVEALING = 2
"""A column whose values are shared by fewer videos on average than so many names videos and is no label."""


_MANY = 20
"""From so many pairs on, one is expected to look sure by chance alone."""


class Difference(NamedTuple):
    """Of two rows, by the first measure of a column of labels."""

    label: str
    measure: str
    row: str
    other: str
    seeds: tuple[int, int]
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
    latex: str
    differences: list[Difference]


def compared_rows(results: Sequence[Result], labels: Sequence[str]) -> Compared:
    """Tables of all rows: by the measures of the first column of labels, by all columns, and of their differences."""
    first = [result for result in results if _label_of(result) == (labels[0] if labels else "label")]
    table = table_of(first)
    parts = ["\n".join([tables.layout(table.lines), "", *table.said])]
    latex = [tables.to_latex(table.lines)]
    if len(labels) > 1:
        lines = _label_lines(results, labels)
        latex.append(tables.to_latex(lines))
        parts.append("\n".join([tables.layout(lines), "", *_label_said(results, labels)]))
    differences = [each for name in labels or ("label",) for each in _differences(results, name)]
    own = [each for each in differences if each.label == _label_of(first[0])]
    if own:
        lines = _matrix(own)
        latex.append(tables.to_latex(lines))
        parts.append("\n".join([tables.layout(lines), "", _matrix_said(own)]))
    return Compared("\n\n".join(parts), "\n\n".join(latex), differences)


def table_of(results: Sequence[Result]) -> Table:
    """A row for every preset, over its seeds, of results that are of the same videos; with what is to be said of it."""
    groups = {label(preset): group for preset, group in by_preset(results).items()}
    lines = tables.rows(groups, f"% on {results[0].query_split}")
    said = _caption(groups) + tables.compared(groups)
    if any(preset in _PAPER for preset in by_preset(results)):
        names = dict(zip(groups, by_preset(results), strict=True))
        cells = [_PAPER.get(names.get(line[0], ""), ("", "")) for line in lines[1:]]
        lines = [[*lines[0], *_PAPER_HEADS], *([*line, *own] for line, own in zip(lines[1:], cells, strict=True))]
        said.append(
            "paper: tables 1 and 2, HMDB-51, fold 1, after Kinetics-400 or HowTo100M with the full network; to be "
            "compared by the order of rows only"
        )
    return Table(groups, lines, said)


_PAPER_HEADS = ("paper R@1", "paper finetuned")
_PAPER = {
    **{row: (f"{recall:.1f}", f"{accuracy:.1f}") for row, (accuracy, recall) in TABLE_1.items()},
    **{f"text-{row}": ("", f"{accuracy:.1f}") for row, accuracy in TABLE_2.items()},
}


def _label_lines(results: Sequence[Result], labels: Sequence[str]) -> list[list[str]]:
    """R@1 by rows and columns of labels; the heads first."""
    lines = [[f"R@1, % on {results[0].query_split}", *(_word(name) for name in labels)]]
    for preset, group in by_preset(results).items():
        cells = [tables.cell(measured(_of(group, name), "R@1")) for name in labels]
        lines.append([label(preset), *cells])
    chances = [measured(_of(results, name), "R@1")[0].chance for name in labels]
    return [*lines, ["chance", *(f"{chance:.1f}" for chance in chances)]]


def _label_said(results: Sequence[Result], labels: Sequence[str]) -> list[str]:
    counts = []
    for name in labels:
        first = _of(results, name)[0]
        counts.append(f"{_word(name)} {first.queries} against {first.gallery}, {first.classes} values")
    return [f"queries and videos that are searched: {'; '.join(counts)}"]


def _differences(results: Sequence[Result], name: str) -> list[Difference]:
    """Of all pairs of rows, by the first measure that both have of a column of labels."""
    groups = {preset: _of(group, name) for preset, group in by_preset(results).items() if preset != RANDOM}
    groups = {preset: group for preset, group in groups.items() if group}
    found = []
    for row, mine in groups.items():
        for other, its in groups.items():
            column = next(iter(mine[0].measures))
            one, two = measured(mine, column), measured(its, column)
            if row != other and one and two:
                compare = over_seeds if min(len(one), len(two)) > 1 else difference
                found.append(Difference(name, column, row, other, (len(one), len(two)), *compare(one, two)))
    return found


def _matrix(differences: Sequence[Difference]) -> list[list[str]]:
    """Row minus column, points, a * where the interval leaves out zero; the heads first."""
    rows = list(dict.fromkeys(each.row for each in differences))
    cells = {(d.row, d.other): f"{d.points:+.1f}{'*' if d.is_sure else ' '}" for d in differences}
    short = {row: row if len(row) < 12 else f"({number})" for number, row in enumerate(rows, 1)}
    lines = [[differences[0].measure, *(f"- {short[row]}" for row in rows)]]
    return [*lines, *([short[row], *(cells.get((row, other), "") for other in rows)] for row in rows)]


def _matrix_said(differences: Sequence[Difference]) -> str:
    pairs = sum(each.is_sure for each in differences) // 2
    if min(min(each.seeds) for each in differences) > 1:
        sure = "over seeds (Welch), on these very questions"
    else:
        sure = "of the choice of questions, and of seeds where there are several"
    every = len(differences) // 2
    by_chance = f", and by chance alone about {every / 20:.0f} would" if every >= _MANY else ""
    return f"row minus column, points; * the 95 % interval {sure}, leaves out zero: {pairs} of {every} pairs{by_chance}"


def to_csv(differences: Sequence[Difference]) -> str:
    """One line per pair of rows and column of labels."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["label", "measure", "row", "other", "seeds", "other seeds", "points", "low", "high"])
    for d in differences:
        writer.writerow([d.label, d.measure, d.row, d.other, *d.seeds, *(f"{x:.4f}" for x in d[5:])])
    return text.getvalue()


def _caption(groups: tables.Groups) -> list[str]:
    """Who was asked and searched, what the runs were, and what the brackets are."""
    every = [result for results in groups.values() for result in results]
    first = every[0]
    seeds = sorted({result.seed for result in every})
    brackets = "lowest and highest seed" if len(seeds) > 1 else "95 % intervals"
    asked = f"{first.queries} queries"
    if first.gallery:
        asked += f" against {first.gallery} videos, {first.classes} classes"
    column = f" of the column {first.evaluation.label}" if first.evaluation.label else ""
    return [
        f"{asked}{column}; {_clips(every)} video clips per step, {_steps(every)} steps, seeds "
        f"{', '.join(map(str, seeds))}; in brackets {brackets}"
    ]


def with_earlier(results: list[Result], path: Path) -> tuple[list[Result], list[Result]]:
    """New results with those of the same videos that an earlier call left in a file and that were not made anew, and
    apart from them the results of other videos that it left.
    """
    if not path.is_file():
        return results, []
    made = {(_made(result), _compared_on(result)) for result in results}
    alike = {_compared_on(result) for result in results}
    earlier = [r for r in from_json(path.read_text(), str(path)) if (_made(r), _compared_on(r)) not in made]
    others = [result for result in earlier if _compared_on(result) not in alike]
    if others:
        print(
            f"{len(others)} earlier results in {path} are of other videos, labels or clips; they stay there, and are "
            "not in the table"
        )
    return [result for result in earlier if _compared_on(result) in alike] + results, others


def label(preset: str) -> str:
    """A row in words."""
    if preset not in presets.PRESETS:
        return preset  # random weights, or a composition in full
    return f"{'row ' if preset in presets.TABLE_1 else ''}{preset}: {presets.preset(preset).label}"


def by_preset(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Random weights first, then the rows in order."""
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: (result.preset != RANDOM, result.preset)):
        groups.setdefault(result.preset, []).append(result)
    return groups


def _of(results: Sequence[Result], name: str) -> list[Result]:
    """Those of a column of labels."""
    return [result for result in results if _label_of(result) == name]


def _label_of(result: Result) -> str:
    return result.evaluation.label or "label"


def _word(name: str) -> str:
    return "class" if name == "label" else name


def _made(result: Result) -> tuple[object, ...]:
    return (result.preset, result.seed, result.protocol)


def _compared_on(result: Result) -> tuple[object, ...]:
    return (result.protocol, result.data, result.labels, tables.sentence(result.how))


def _steps(results: Sequence[Result]) -> str:
    """How many steps the runs took; a range where they differ."""
    return tables.span([result.step for result in results if result.preset != RANDOM])


def _clips(results: Sequence[Result]) -> str:
    """Video clips in a batch; a range where runs differ."""
    return tables.span(
        [
            result.pretraining.videos_per_batch * result.pretraining.composition.clips_per_video
            for result in results
            if result.preset != RANDOM
        ]
    )
