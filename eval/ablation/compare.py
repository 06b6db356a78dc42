"""The table of an ablation: rows by metric, means over seeds, with random weights and chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdt.common.errors import format_range
from gdt.eval.record import RANDOM, Record
from gdt.eval.tables import Groups, Table, few_videos, table_lines
from gdt.pipeline import presets

_NOTATION = (
    "rows: V video, A audio, T text; TR time reversal, TS time shift; features should distinguish (d) or ignore (i) "
    "them; '.': not varied"
)


def table_of(records: Sequence[Record]) -> Table:
    """One row per preset, averaged over seeds; all records must be of the same videos and label column."""
    groups = {label(preset): group for preset, group in by_preset(records).items()}
    fold = f", fold {records[0].fold}" if records[0].fold else ""
    lines = table_lines(groups, f"% on {records[0].query_split}{fold}")
    if any(record.tflop for record in records):
        spent = [_spent(groups.get(line[0], ())) for line in lines[1:]]
        heads = (("clips", "TFLOP"), *spent)
        lines = [[line[0], *own, *line[1:]] for line, own in zip(lines, heads, strict=True)]
    brief = [_caption(groups), *few_videos(records), *_compute(records), _NOTATION]
    return Table(groups, lines, brief, [], title_of(records))


def first_metrics(records: Sequence[Record]) -> list[Record]:
    """The records with the first metric of each protocol alone."""
    return [replace(each, metrics=dict([*each.metrics.items()][:1])) for each in records]


def title_of(records: Sequence[Record]) -> str:
    """The title of a table: what all its rows share in pretraining; empty if it is not of an ablation."""
    rows = sorted(records, key=lambda record: record.model == RANDOM)  # random weights may be of another --equal
    equal = next((record.equal for record in rows if record.equal), "")
    return f"equal {equal}" if equal else ""


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


def _spent(records: Sequence[Record]) -> tuple[str, str]:
    """Video clips and TFLOP of the pretraining of a row; empty without one."""
    if not (trained := next((each for each in records if each.tflop), None)):
        return "", ""
    composition, tflop = trained.pretraining.composition, trained.tflop
    clips = trained.step * composition.batch_size * composition.clips_per_video
    return str(clips), f"{tflop:,.1f}" if tflop >= 1 else f"{tflop:.2g}"


def _compute(records: Sequence[Record]) -> list[str]:
    """A note if the rows of an ablation at equal videos differ in compute."""
    spent = [record.tflop for record in records if record.equal.startswith("videos") and record.tflop]
    ratio = max(spent, default=1.0) / min(spent, default=1.0)
    if ratio <= 1.1:
        return []
    return [f"rows differ in compute by a factor of up to {ratio:.1f}; compare them with --equal compute, too"]


def _caption(groups: Groups) -> str:
    """Queries and gallery, seeds, and the meaning of the brackets."""
    records = [record for group in groups.values() for record in group]
    first, steps = records[0], format_range(record.step for record in records if record.preset != RANDOM)
    videos = f"{first.queries} queries"
    if first.gallery:
        videos += f" against a gallery of {first.gallery} videos, {first.classes} classes"
    column = f" of the label column {first.label}" if first.label else ""
    seeds = sorted({record.seed for record in records})
    counts = {len({record.seed for record in group}) for group in groups.values()}
    brackets = ["95 % intervals over seeds"] if max(counts) > 1 else []
    if min(counts) == 1:
        alone = "of rows with one seed, over queries" if brackets else "95 % intervals over queries"
        brackets.append(f"{alone}; another seed or CPU may differ by more")
    return (
        f"{videos}{column}; {steps} steps, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}; in "
        f"brackets {'; '.join(brackets)}"
    )
