"""The table of an ablation: rows by metric, means over seeds, with random weights and chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdt.common.errors import format_range
from gdt.eval.record import RANDOM, Record
from gdt.eval.tables import Groups, Table, few_videos, table_lines
from gdt.pipeline import presets

_NOTATION = "features should distinguish (d) or ignore (i) a shift or a reversal in time"


def table_of(records: Sequence[Record]) -> Table:
    """A row per composition and its steps, averaged over seeds; all records must be of the same videos and labels."""
    groups = {label(*key): group for key, group in by_row(records).items()}
    fold = f", fold {records[0].fold}" if records[0].fold else ""
    lines = table_lines(groups, f"% on {records[0].query_split}{fold}")
    if least := min((record.tflop for record in records if record.tflop), default=0.0):
        spent = [_spent(groups.get(line[0], ()), least) for line in lines[1:]]
        heads = (("videos seen", "compute"), *spent)
        lines = [[line[0], *own, *line[1:]] for line, own in zip(lines, heads, strict=True)]
    brief = [_caption(groups), *few_videos(records), _NOTATION]
    return Table(groups, lines, brief, [], title_of(records))


def first_metrics(records: Sequence[Record]) -> list[Record]:
    """The records with the first metric of each protocol alone."""
    return [replace(each, metrics=dict([*each.metrics.items()][:1])) for each in records]


def title_of(records: Sequence[Record]) -> str:
    """The title of a table: what all its rows share in pretraining; empty if it is not of an ablation."""
    rows = sorted(records, key=lambda record: record.model == RANDOM)  # random weights may be of another --equal
    equal = next((record.equal for record in rows if record.equal), "")
    return f"equal {equal}" if equal else ""


def label(preset: str, steps: int = 0) -> str:
    """Label of a row: a preset with its description, and the steps if given; other compositions by themselves."""
    if preset in presets.PRESETS:
        preset = f"{'row ' if preset in presets.TABLE_1 else ''}{preset}: {presets.preset(preset).label}"
    return f"{preset}, {steps} steps" if steps else preset


def by_row(records: Sequence[Record]) -> dict[tuple[str, int], list[Record]]:
    """Records by preset and steps: random weights first, then in the order of the records.

    The steps are 0 for random weights, and for the shortest runs of a preset.
    """
    usual: dict[str, int] = {}
    for each in records:
        usual[each.preset] = min(each.step, usual.get(each.preset, each.step))
    groups: dict[tuple[str, int], list[Record]] = {}
    for each in sorted(records, key=lambda each: each.preset != RANDOM):
        longer = each.preset != RANDOM and each.step != usual[each.preset]
        groups.setdefault((each.preset, each.step if longer else 0), []).append(each)
    return groups


def _spent(records: Sequence[Record], least: float) -> tuple[str, str]:
    """Training videos that a row has seen, with repetitions, and its FLOPs relative to `least`; empty without them."""
    if not (trained := next((each for each in records if each.tflop), None)):
        return "", ""
    return f"{trained.step * trained.pretraining.composition.batch_size:,}", f"{trained.tflop / least:.1f}x"


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
