"""The table of the paper's pictures, from records, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Sequence

from gdt.eval.metrics import Metric
from gdt.eval.record import Record
from gdt.eval.tables import Lines, format_range, layout

DEVIATION, RELATIVE, RATIO, MORE, NEAREST = "deviation", "relative", "ratio", "minus random", "nearest"
"""Numbers: see `spread`; MORE is the difference of RATIO to random weights of the same network."""
NUMBERS, KIND, ON_PLANES, IN_TIME, LEFT_OUT = "numbers in a feature", "of", "on planes", "clips", "left out"
"""What `Record.how` says: all that a reader needs to trust the numbers, in words."""


def lines(records: Sequence[Record]) -> Lines:
    """The table, the heads first."""
    compared = any(MORE in record.metrics for record in records)
    rows = [["", DEVIATION, RATIO, *([MORE] if compared else []), "nearest %"]]
    for record in records:
        found, more = record.metrics, record.metrics.get(MORE)
        difference = [_interval(more, "{:+.2f}", " to ") if more else ""] if compared else []
        rows.append([record.model, _interval(found[DEVIATION], "{:.4f}"), _interval(found[RATIO], "{:.2f}"),
                     *difference, _interval(found[NEAREST], "{:.1f}")])  # fmt: skip
    chance = f"{records[0].metrics[NEAREST].chance:.1f}"
    return [*rows, ["chance", "", "", *([""] if compared else []), chance]]


def _interval(metric: Metric, form: str, between: str = "-") -> str:
    value, low, high = map(form.format, (metric.value, metric.low, metric.high))
    return f"{value} ({low}{between}{high})"


def told(records: Sequence[Record]) -> list[str]:
    """The table, and what a reader needs to trust it, line by line."""
    first, how = records[0], records[0].how
    dims = format_range(int(record.how[NUMBERS]) for record in records)
    said = [
        layout(lines(records)), "",
        f"{first.dataset}, {first.query_split}: {first.queries} videos, {first.clips} clips each; {how[KIND]} of the "
        f"picture, {dims} numbers, at length 1; in brackets 95 % intervals over videos",
        f"deviation: standard deviation over the clips of a video, mean over the {dims} numbers, as in the paper; "
        "median over videos",
        "ratio: distance between clips of a video as a multiple of that between clips of two videos, root mean square; "
        "models can be compared by it, and not by deviations, which are small where all videos lie close together",
        f"nearest: {how[ON_PLANES]}; how often the nearest other clip, by cosine, is of the same video",
        f"clips {how[IN_TIME]}",
    ]  # fmt: skip
    if LEFT_OUT in how:
        said.append(f"{how[LEFT_OUT]} videos are left out: they offer fewer than {first.clips} different starts")
    if learned := [record.model for record in records if record.trained_on == "these"]:
        said.append(f"{', '.join(learned)}: learned from these videos")
    return [*said, *dict.fromkeys(note for record in records for note in record.notes)]
