"""Tables as views of results: one pivot, models x metrics, as text, LaTeX and CSV."""

import csv
import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from tabulate import tabulate

from gdt.common.files import write_text
from gdt.common.wording import TERMINAL_WIDTH
from gdt.eval import comparison, results
from gdt.eval.comparison import Compared, Comparisons
from gdt.eval.metrics import Metric, over_seeds
from gdt.eval.paper import SOUND, Reported, reported
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.results import RANDOM, Answers, Result
from gdt.pipeline import presets
from gdt.pipeline.leaves import MODALITIES

Lines = list[list[str]]
"""Cells of a table; the first line and the first cell of each line are headings."""
Groups = Mapping[str, Sequence[Result]]
"""Rows of a table by name: the results of their seeds and folds."""
_PUBLISHED = "published results were obtained with their authors' networks and clips, and on all classes"
_ROWS = "features should distinguish (d) or ignore (i) a shift or a reversal in time"
_IN_FOOTNOTES = ("left out", "copies", "warning", "labels", "neighbours")
"""Details of results that are printed below the tables."""
_FEW_QUERIES = 50
"""A footnote warns of fewer: the 95 % interval of a share of 50 answers is up to 27 points wide."""


@dataclass(frozen=True)
class Table:
    title: str
    lines: Lines
    footnotes: list[str] = field(default_factory=list)
    groups: Groups = field(default_factory=dict)
    comparisons: Comparisons = field(default_factory=dict)
    """Comparisons of its rows with the first model and with random weights."""

    def __str__(self) -> str:
        return "\n".join([wrap(self.title), to_text(self.lines), "", *map(wrap, self.footnotes)])


def pivot(
    every: Sequence[Result], by_row: bool = False, answers: Mapping[str, Answers] = MappingProxyType({})
) -> list[Table]:
    """Tables of results: a row per model with the mean over its folds, or, for `by_row`, per composition and number of
    steps with the mean over seeds. Random weights come first, chance and published results last. Of the runs of
    a composition that have one name, the last counts; other weights that share a name are told apart.

    With the `answers` of results, by key, differences from the first model and from random weights are marked.
    """

    def order(result: Result) -> tuple[bool, int, str, int, int]:
        """Random weights first; then protocols as in PROTOCOLS, folds and seeds, or models as in `every`."""
        protocol = [*PROTOCOLS].index(result.protocol)
        return result.preset != RANDOM, protocol, result.label, result.fold, result.seed if by_row else 0

    parts: dict[tuple[str, ...], list[Result]] = {}

    def name(result: Result) -> tuple[object, ...]:
        return (result.shared, result.model, result.seed, result.step) if by_row else (result.key,)

    last = {name(result): result for result in every}
    for result in sorted(last.values(), key=order):
        shared = (result.dataset, result.query_split, result.label, result.words)
        key = (PROTOCOLS[result.protocol].table, *shared, *_modalities(result))
        parts.setdefault(key, []).append(result)
    tables: list[Table] = []
    shown: set[str] = set()
    for part in parts.values():
        table = _table(part, by_row, answers)
        new = [footnote for footnote in table.footnotes if footnote not in shown]
        shown.update(table.footnotes)
        tables.append(replace(table, footnotes=new))
    return tables


def _table(part: Sequence[Result], by_row: bool, answers: Mapping[str, Answers]) -> Table:
    """The table of results that share one."""
    names = _row_names(part) if by_row else _model_names(part)
    groups: dict[str, list[Result]] = {name: [] for name in names.values()}
    for result in part:
        groups[names[_subject(result)]].append(result)
    published = {} if by_row else _published(part)
    comparisons = comparison.compare(groups, answers) if answers else {}
    lines = table_lines(groups, f"% on {part[0].query_split}", published, comparisons)
    if by_row:
        least = min((result.tflop for result in part if result.tflop), default=1.0)
        lines[0][1:1] = ["videos seen", "compute"]
        for line in lines[1:]:
            line[1:1] = _spent(groups.get(line[0], ()), least)
    footnotes = _footnotes(groups) + comparison.footnotes(groups, comparisons)
    if any(line[0] in published for line in lines):
        footnotes.append(_PUBLISHED)
    if by_row:
        footnotes.append(_ROWS)
    return Table(_title(part), lines, footnotes, groups, comparisons)


def _published(part: Sequence[Result]) -> Reported:
    """Published results that stand beside those of a table: of the same modality, and of the classes of a data set."""
    first = part[0]
    if first.label or _modalities(first) != ["audio" if first.dataset in SOUND else "video"]:
        return {}
    if first.query_split != "test" or first.settings.get("gallery_split", "train") != "train":
        return {}
    samples = max(result.settings.get("train_samples", 0) for result in part)
    protocols = list(dict.fromkeys(result.protocol for result in part))
    whole = [result.gallery for result in part if not result.settings.get("train_samples")]
    queries = min(result.queries for result in part)
    return reported(first.dataset, protocols, samples, queries, min(whole, default=0))


def _subject(result: Result) -> tuple[str, str]:
    return result.model, result.weights


def _model_names(part: Sequence[Result]) -> dict[tuple[str, str], str]:
    """Names of rows by model and weights; weights that share a name are told apart by a digest."""
    subjects = dict.fromkeys(map(_subject, part))
    models = [model for model, _ in subjects]
    return {
        (model, weights): model if models.count(model) == 1 else f"{model} ({weights[:6]})"
        for model, weights in subjects
    }


def _row_names(part: Sequence[Result]) -> dict[tuple[str, str], str]:
    """Names of the rows of an ablation by model and weights: the composition, with the steps of longer runs."""
    least = {result.preset: result.step for result in sorted(part, key=lambda result: -result.step)}
    longer = {}
    for result in part:
        is_longer = result.step > least[result.preset] and result.preset != RANDOM
        longer[_subject(result)] = result.step if is_longer else 0
    ordered = sorted(part, key=lambda result: (result.preset != RANDOM, longer[_subject(result)], result.preset))
    return {_subject(result): row_label(result.preset, longer[_subject(result)]) for result in ordered}


def row_label(preset: str, steps: int = 0) -> str:
    """Label of a row: a preset with its description, and the steps if given; other compositions by themselves."""
    if preset in presets.PRESETS:
        kind = "row " if preset in presets.TABLE_1 else ""
        preset = f"{kind}{preset}: {presets.preset(preset).label}"
    return f"{preset}, {steps:,} steps" if steps else preset


def _spent(group: Sequence[Result], least: float) -> tuple[str, str]:
    """Training videos that a row has seen, with repetitions, and its FLOPs relative to `least`; empty without them."""
    trained = next((result for result in group if result.videos), None)
    return (f"{trained.videos:,}", f"{trained.tflop / least:.1f}x") if trained else ("", "")


def _title(part: Sequence[Result]) -> str:
    """The data, the queries and what they are compared with."""
    first = part[0]
    folds = sorted({result.fold for result in part} - {0})
    title = first.dataset
    if folds:
        title += f", {'folds' if len(folds) > 1 else 'fold'} {' '.join(map(str, folds))}"
    if first.label:
        title += f", labels of the column {first.label}"
    if _modalities(first) != ["video"]:
        title += f", features of {' and '.join(_modalities(first))}"
    title += f": {format_range(result.queries for result in part)} queries"
    if first.gallery:
        title += f" against {format_range(result.gallery for result in part)} videos"
        title += f" of {format_range(result.classes for result in part)} classes"
    return title


def _modalities(result: Result) -> list[str]:
    return list(result.settings.get("modalities", ["video"]))


def _footnotes(groups: Groups) -> list[str]:
    """Footnotes: what the brackets are, and what makes a comparison misleading."""
    part = [result for group in groups.values() for result in group]
    runs = {name: len({(result.seed, result.fold) for result in group}) for name, group in groups.items()}
    what = "folds" if any(result.fold for result in part) else "seeds"
    over = f"over {what}" if max(runs.values()) > 1 else "over the queries; another seed or CPU may differ by more"
    footnotes = [f"in brackets: 95 % intervals {over}"]
    if len({*runs.values()}) > 1:
        numbers = "; ".join(f"{name} ({count})" for name, count in runs.items())
        footnotes.append(f"{what} differ in number: {numbers}")
    if min(result.queries for result in part) < _FEW_QUERIES:
        footnotes.append(
            f"warning: only {format_range(result.queries for result in part)} queries: the intervals are wide"
        )
    full = {name for result in part for name, metric in result.metrics.items() if metric.chance >= 100}
    if full:
        footnotes.append(
            f"warning: {', '.join(sorted(full))}: 100 % for any model, since the gallery is small or has one class"
        )
    for name, group in groups.items():
        unfinished = next((result for result in group if result.step < result.steps), None)
        seen = max(result.seen for result in group)
        if seen > 0:
            footnotes.append(f"{name} was pretrained, without labels, on up to {seen} queries")
        if any(result.seen < 0 for result in group):
            footnotes.append(f"warning: {name} may have been pretrained on queries: its data is unknown or has changed")
        if unfinished:
            footnotes.append(f"{name}: its run had done {unfinished.step} of {unfinished.steps} steps")
    details = [f"{name}: {result.details[name]}" for name in _IN_FOOTNOTES for result in part if name in result.details]
    return [*footnotes, *dict.fromkeys(details)]


def wrap(text: str) -> str:
    """A line of text in lines of at most 100 columns; numbers, paths and words are kept whole."""
    return textwrap.fill(text, TERMINAL_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def to_text(lines: Sequence[Sequence[str]], width: int = TERMINAL_WIDTH) -> str:
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
    plain = [[cell.replace("→", " to ") for cell in line] for line in lines]
    return _render(plain, "latex_booktabs").replace("†", r"$\dagger$")


def write_tables(out: Path, tables: Sequence[Table], every: Iterable[Result]) -> str:
    """Write table.txt, table.tex and results.csv; returns the text."""
    text = "\n\n".join(map(str, tables))
    write_text(out / "table.txt", text + "\n")
    titled = (f"% {' '.join(table.title.split())}\n{to_latex(table.lines)}" for table in tables)
    write_text(out / "table.tex", "\n\n".join(titled) + "\n")
    comparisons = {
        (result.key, metric): comparison.columns(compared)
        for table in tables
        for (name, metric), compared in table.comparisons.items()
        for result in table.groups[name]
    }
    rows = [row | comparisons.get((row["key"], row["metric"]), {}) for row in results.rows(every)]
    names = dict.fromkeys(name for row in rows for name in row)
    write_text(out / "results.csv", csv_text([[*names], *([row.get(name, "") for name in names] for row in rows)]))
    return text


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Lines of cells as CSV; floats have four decimals."""
    text = io.StringIO()
    for line in lines:
        cells = [f"{cell:.4f}" if isinstance(cell, float) else cell for cell in line]
        csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def metrics_of(group: Sequence[Result], column: str) -> list[Metric]:
    """The metric of a column, of the results that have it."""
    return [result.metrics[column] for result in group if column in result.metrics]


def table_lines(
    groups: Groups,
    corner: str = "",
    others: Mapping[str, Mapping[str, float]] | None = None,
    comparisons: Mapping[tuple[str, str], Compared] = MappingProxyType({}),
) -> Lines:
    """A table with a line per group, one for chance, and one per published result in `others`.

    `corner` is the first heading. Differences in `comparisons` are marked.
    """
    every = [result for group in groups.values() for result in group]
    names = list(dict.fromkeys(name for result in every for name in result.metrics))
    lines = [[corner, *map(_heading, names)]]
    for name, group in groups.items():
        cells = []
        for column in names:
            metrics = metrics_of(group, column)
            mark = comparison.mark(comparisons.get((name, column), {}))
            cells.append(over_seeds(metrics).text() + mark if metrics else "")
        lines.append([name, *cells])
    chances = [np.mean([metric.chance for metric in metrics_of(every, column)]) for column in names]
    lines.append(["chance", *(f"{chance:.1f}" for chance in chances)])
    for name, values in (others or {}).items():
        if any(column in values for column in names):
            lines.append([name, *(f"{values[column]:.1f}" if column in values else "" for column in names)])
    return lines


def _heading(column: str) -> str:
    """Heading of a metric, with modalities as letters: 'video to audio R@1' becomes 'V→A R@1'."""
    for modality in MODALITIES:
        column = column.replace(modality, modality[0].upper())
    return column.replace(" to ", "→")


def format_range(numbers: Iterable[int]) -> str:
    """The lowest and the highest number, or the only one."""
    ordered = sorted(numbers)
    low = ordered[0]
    high = ordered[-1]
    return str(low) if low == high else f"{low}-{high}"
