"""Tables of an ablation: rows by metric, rows by label column, and differences between rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from gdt.common.errors import UserError, format_range, plural
from gdt.eval import record
from gdt.eval.metrics import difference, over_seeds
from gdt.eval.paper import TABLE_1, TABLE_2
from gdt.eval.record import RANDOM, Record
from gdt.eval.tables import (
    Groups,
    Lines,
    Table,
    columns,
    csv_text,
    few_videos,
    format_cell,
    layout,
    main_verdicts,
    metrics_of,
    table_lines,
    verdicts,
    with_notes,
    wrap,
)
from gdt.pipeline import presets

OTHERS = "results-others.json"
"""File of earlier records that cannot be compared with those in results.json."""
LINEAR = "linear top-1"
"""The metric of the linear probe."""
_MANY = 20
"""Of so many pairs that do not differ, one is expected to be significant by chance."""
_PRINTED = 3
"""Maximum number of metrics in the summary if there is no linear probe."""
_PRINTED_LABELS = 4
"""Maximum number of label columns in the summary."""
_SPENT_HEADS = ("clips", "TFLOP")
_PAPER = {
    **{row: f"{recall:.1f} / {accuracy:.1f}" for row, (accuracy, recall) in TABLE_1.items()},
    **{f"text-{row}": f"- / {accuracy:.1f}" for row, accuracy in TABLE_2.items()},
}
"""R@1 and finetuned accuracy on HMDB-51, by row."""
_NOTATION = (
    "rows: V video, A audio, T text; TR time reversal, TS time shift; features should distinguish (d) or ignore (i) "
    "them; '.': not varied"
)


class Difference(NamedTuple):
    """Difference between two rows in a metric of a label column."""

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
    def is_significant(self) -> bool:
        """Whether the 95 % interval excludes zero; False for two single seeds, whose interval is over queries only."""
        return self.is_tested and (self.low > 0 or self.high < 0)

    @property
    def is_tested(self) -> bool:
        """Whether one of the rows has several seeds, so that its interval covers them."""
        return max(self.seeds, self.other_seeds) > 1


class Comparison(NamedTuple):
    """The tables of an ablation."""

    text: str
    summary: str
    """The main columns of the first two tables, and the number of significant differences."""
    tables: list[Lines]
    differences: list[Difference]

    def to_csv(self) -> str:
        """The differences, one line per pair of rows and label column."""
        return csv_text([[name.replace("_", " ") for name in Difference._fields], *self.differences])


def compare_rows(records: Sequence[Record], labels: Sequence[str]) -> Comparison:
    """Compare rows by the metrics of the first label column, by the first metric of all columns, and pair by pair.

    Rows with and without text have their own tables.
    """
    labels = labels or ("label",)
    parts: list[tuple[Lines, list[str]]] = []
    title, summaries, differences = title_of(records), [], []
    for with_text in (False, True):  # rows with text are evaluated on the videos with captions only
        own = [each for each in records if bool(each.words) == with_text]
        if all(each.preset == RANDOM for each in own):  # none, or only kept from an earlier ablation
            continue
        table = table_of(_in_column(own, labels[0]))
        parts.append((table.lines, table.notes))
        if len(labels) > 1:
            parts.append((_label_lines(own, labels), _label_notes(own, labels)))
        pairs = [each for name in labels for each in _differences(own, name)]
        below = [*table.brief, *main_verdicts(table.groups)]
        of_first = [each for each in pairs if each.label == labels[0]]
        for metric in dict.fromkeys(each.metric for each in of_first):
            compared = [each for each in of_first if each.metric == metric]
            parts.append((_matrix(compared), [_matrix_note(compared)]))
            below.append(_tested(compared))
        summaries.append(with_notes(_main_columns(table.lines), dict.fromkeys(below), title=title))
        if len(labels) > 1:
            summaries.append(layout(_label_lines(own, labels[:_PRINTED_LABELS])))
        differences += pairs
    text = "\n\n".join(with_notes(lines, notes, title=title) for lines, notes in parts)
    return Comparison(text, "\n\n".join(summaries), [lines for lines, _ in parts], differences)


def table_of(records: Sequence[Record]) -> Table:
    """One row per preset, averaged over seeds; all records must be of the same videos."""
    rows = by_preset(records)
    groups = {label(preset): group for preset, group in rows.items()}
    lines = table_lines(groups, f"% on {_queries(records)}")
    notes = verdicts(groups)
    if any(record.tflop for record in records):
        spent = [_spent(groups.get(line[0], ())) for line in lines[1:]]
        heads = (_SPENT_HEADS, *spent)
        lines = [[line[0], *own, *line[1:]] for line, own in zip(lines, heads, strict=True)]
        notes.append("clips, TFLOP: video clips and FLOPs of the networks in the whole of a row's pretraining")
    brief = [_caption(groups), *few_videos(records), *_compute(records)]
    if published := [f"{row} {_PAPER[row]}" for row in rows if row in _PAPER]:
        brief.append(_NOTATION)
        notes.append(
            "the paper's R@1 / finetuned accuracy on HMDB-51, fold 1, of full networks and much more data: "
            f"{', '.join(published)}; compare only the order of rows"
        )
    return Table(groups, lines, brief, notes, title_of(records))


def _compute(records: Sequence[Record]) -> list[str]:
    """A note if the rows of an ablation at equal videos differ in compute."""
    spent = [record.tflop for record in records if record.equal.startswith("videos") and record.tflop]
    ratio = max(spent, default=1.0) / min(spent, default=1.0)
    if ratio <= 1.1:
        return []
    return [f"rows differ in compute by a factor of up to {ratio:.1f}; compare them with --equal compute, too"]


def _main_columns(lines: Lines) -> Lines:
    """The printed columns: names, costs, and the first metric with the linear probe's, or else the first few."""
    heads = lines[0]
    costs = [n for n, head in enumerate(heads) if head in _SPENT_HEADS]
    metrics = range(1 + len(costs), len(heads))
    main = [metrics[0], heads.index(LINEAR)] if LINEAR in heads[2 + len(costs) :] else metrics[:_PRINTED]
    return [[line[n] for n in (0, *costs, *main)] for line in lines]


def title_of(records: Sequence[Record]) -> str:
    """The title of a table: what all its rows share in pretraining; empty if it is not of an ablation."""
    rows = sorted(records, key=lambda record: record.model == RANDOM)  # random weights may be of another --equal
    equal = next((record.equal for record in rows if record.equal), "")
    return f"equal {equal}" if equal else ""


def _spent(records: Sequence[Record]) -> tuple[str, str]:
    """Video clips and TFLOP of the pretraining of a row; empty without one."""
    trained = [each for each in records if each.tflop]
    if not trained:
        return "", ""
    compositions = ((each.step, each.pretraining.composition) for each in trained)
    clips = format_range(step * own.batch_size * own.clips_per_video for step, own in compositions)
    tflop = trained[0].tflop
    return clips, f"{tflop:,.1f}" if tflop >= 1 else f"{tflop:.2g}"


def _queries(records: Sequence[Record]) -> str:
    """The split of the queries, and the official fold if there is one."""
    return f"{records[0].query_split}{f', fold {records[0].fold}' if records[0].fold else ''}"


def _caption(groups: Groups) -> str:
    """Queries and gallery, the pretraining, and the meaning of the brackets."""
    records = [record for group in groups.values() for record in group]
    trained = [record for record in records if record.preset != RANDOM]
    first = records[0]
    seeds = sorted({record.seed for record in records})
    videos = f"{first.queries} queries"
    if first.gallery:
        videos += f" against a gallery of {first.gallery} videos, {first.classes} classes"
    column = f" of the label column {first.label}" if first.label else ""
    pretrainings = [record.pretraining for record in trained]
    norm = {each.group_size for each in pretrainings if each.group_size}
    groups_of = f"batch norm over groups of {format_range(norm)} leaves, " if norm else ""
    clips = format_range(each.composition.batch_size * each.composition.clips_per_video for each in pretrainings)
    return (
        f"{videos}{column}; {clips} video clips per step, {format_range(record.step for record in trained)} steps, "
        f"{groups_of}seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}; in brackets {_brackets(groups)}"
    )


def _brackets(groups: Groups) -> str:
    """The meaning of the brackets of every row."""
    seeds = {name.partition(": ")[0]: len({record.seed for record in records}) for name, records in groups.items()}
    single = [name for name, count in seeds.items() if count == 1]
    if len(single) == len(seeds):
        return "95 % intervals over queries; another seed or CPU may differ by more"
    others = f"; of {', '.join(single)} (one seed) 95 % intervals over queries" if single else ""
    return f"lowest and highest seed{others}"


def _label_lines(records: Sequence[Record], labels: Sequence[str]) -> Lines:
    """The first metric by row and label column, headings first."""
    groups = by_preset(records)
    metric = columns(groups)[0]
    lines = [[f"{metric}, % on {_queries(records)}", *map(_heading, labels)]]
    for preset, group in groups.items():
        lines.append([label(preset), *(format_cell(metrics_of(_in_column(group, name), metric)) for name in labels)])
    chances = [metrics_of(_in_column(records, name), metric)[0].chance for name in labels]
    return [*lines, ["chance", *(f"{chance:.1f}" for chance in chances)]]


def _label_notes(records: Sequence[Record], labels: Sequence[str]) -> list[str]:
    firsts = [(name, _in_column(records, name)[0]) for name in labels]
    counts = [f"{_heading(name)} {one.queries} against {one.gallery}, {one.classes} values" for name, one in firsts]
    return [f"queries against gallery: {'; '.join(counts)}"]


def _differences(records: Sequence[Record], name: str) -> list[Difference]:
    """Differences between all pairs of rows, in the first metric of a label column and the linear probe's."""
    groups = {preset: own for preset, group in by_preset(records).items() if (own := _in_column(group, name))}
    groups.pop(RANDOM, None)
    differences = []
    names = columns(groups)
    for column in (each for each in names if each in (names[0], LINEAR)):
        for row, other in permutations(groups, 2):
            one, two = metrics_of(groups[row], column), metrics_of(groups[other], column)
            if one and two:
                compare = over_seeds if min(len(one), len(two)) > 1 else difference
                differences.append(Difference(name, column, row, other, len(one), len(two), *compare(one, two)))
    return differences


def _matrix(differences: Sequence[Difference]) -> Lines:
    """Row minus column in points, with * if significant; headings first."""
    rows = list(dict.fromkeys(each.row for each in differences))
    cells = {(d.row, d.other): f"{d.points:+.1f}{'*' if d.is_significant else ' '}" for d in differences}
    short = {row: row if len(row) < 12 else f"({number})" for number, row in enumerate(rows, 1)}
    lines = [[differences[0].metric, *(f"- {short[row]}" for row in rows)]]
    return [*lines, *([short[row], *(cells.get((row, other), "") for other in rows)] for row in rows)]


def _matrix_note(differences: Sequence[Difference]) -> str:
    tested = [each for each in differences if each.is_tested]
    pairs = len(tested) // 2
    note = "row minus column in points"
    if tested:
        note += "; * significant: the 95 % interval over seeds (Welch), on these queries, excludes zero"
    if any(min(each.seeds, each.other_seeds) == 1 for each in tested):
        note += "; a row with one seed is assigned the variance of the other row"
    by_chance = f", about {pairs / _MANY:.0f} expected by chance" if pairs >= _MANY else ""
    return f"{note}; {_tested(differences)}{by_chance}"


def _tested(differences: Sequence[Difference]) -> str:
    """A sentence on how many pairs of rows differ significantly, and how many were not tested."""
    pairs = len(differences) // 2  # each has a difference in both directions
    tested = sum(each.is_tested for each in differences) // 2
    significant = sum(each.is_significant for each in differences) // 2
    parts = []
    if tested:
        differ = f"differ{'s' if tested == 1 < pairs else ''} significantly in {differences[0].metric}"
        who = f"{significant} of {plural(tested, 'pair')} of rows" if pairs > 1 else "the two rows"
        parts.append(f"{who} {'do not ' if pairs == 1 and not significant else ''}{differ}")
    if single := pairs - tested:
        verb = "is" if single == 1 else "are"
        parts.append(f"{plural(single, 'pair')} of rows with one seed each {verb} not tested; add seeds (--seeds)")
    return "; ".join(parts)


def with_earlier(records: list[Record], path: Path) -> tuple[list[Record], list[Record]]:
    """The new records with the comparable earlier ones (of a file and of OTHERS next to it), and the incomparable ones.

    Prints why they cannot be compared.
    """
    earlier = [each for file in (path.with_name(OTHERS), path) if file.is_file() for each in record.read(file)]
    if not earlier:
        return records, []
    rows: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for each in records:
        of_column = rows.setdefault((each.protocol, each.label), [])
        if (peer := (each.preset, _shared(each))) not in of_column:
            of_column.append(peer)
    kept: dict[tuple[object, ...], Record] = {}
    others, reasons = [], Counter[str]()
    for each in earlier:
        reason = _difference(each, rows.get((each.protocol, each.label), []))
        if reason:
            others.append(each)
            reasons[reason] += 1
        else:
            kept[_run(each)] = each
    for reason, count in reasons.items():
        kept_in = f"not in this table but kept in {path.with_name(OTHERS)}: {plural(count, 'earlier result')}"
        print(wrap(f"{kept_in} ({reason})"))
    new = set(map(_run, records))
    return [each for run, each in kept.items() if run not in new] + records, others


def _run(result: Record) -> tuple[object, ...]:
    return (result.preset, result.seed, result.protocol, result.label)


def _shared(result: Record) -> dict[str, Any]:
    """What seeds and rows of one table share."""
    return record.conditions(result) | record.budget(result)


def _difference(earlier: Record, peers: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Why an earlier record cannot be compared with the new ones of its row, or else of any row; empty if it can."""
    if not peers:
        return "different protocols or label columns"
    try:
        before = _shared(earlier)
    except UserError as error:
        return f"compositions that cannot be read again ({error})"
    reasons = []
    rows = [peer for peer in peers if peer[0] != RANDOM] or peers  # random weights have no budget
    for now in [own for preset, own in peers if preset == earlier.preset] or [own for _, own in rows]:
        both = before.keys() & now.keys()
        if not (before["words"] and now["words"]):
            both -= {"words"}  # one of the rows is without text
        changed = [name for name in both if before[name] != now[name]]
        if not changed:
            return ""
        reasons.append(", ".join(_change(name, before[name], now[name]) for name in sorted(changed)))
    return reasons[0]


def _change(name: str, before: object, now: object) -> str:
    checksums = {"data": "videos", "labels": "labels", "words": "words"}
    return f"different {checksums[name]}" if name in checksums else f"{name} was {before}, now {now}"


def label(preset: str) -> str:
    """Label of a row: a preset with its description; random weights and other compositions unchanged."""
    if preset not in presets.PRESETS:
        return preset
    return f"{'row ' if preset in presets.TABLE_1 else ''}{preset}: {presets.preset(preset).label}"


def by_preset(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by preset: random weights first, then the rows in order."""
    groups: dict[str, list[Record]] = {}
    for each in sorted(records, key=lambda each: (each.preset != RANDOM, each.preset)):
        groups.setdefault(each.preset, []).append(each)
    return groups


def _in_column(records: Sequence[Record], name: str) -> list[Record]:
    """Records of a label column."""
    return [each for each in records if (each.label or "label") == name]


def _heading(name: str) -> str:
    return "class" if name == "label" else name
