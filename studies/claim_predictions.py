"""Which predictions of docs/claim.md held, from the values that `gdt study claim` writes."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdt.common.errors import UserError, first_line
from gdt.eval.ablation.compare import LINEAR
from gdt.eval.factors.promises import DISTANCE
from gdt.eval.factors.tables import EMBEDDING, factor_of
from gdt.eval.record import RANDOM, Record
from gdt.studies.judge import Judgement, all_of, contrast, judge_equal, judge_positive, table
from gdt.studies.settings import ClaimPredictions

_ACTION, _SHIFT = "", "time shift"
_RECALL = "R@1"
_A, _B, _C = "moments-{}-actions3-seed1", "moments-{}-actions1-seed1", "hard-seed1"
"""Data sets of the parts of the study; {} is the strength of the identity."""


class Value(NamedTuple):
    """One number of one run."""

    dataset: str
    equal: str
    row: str
    """Preset, or RANDOM."""
    seed: int
    label: str
    """Label column, empty for the class; of a distance, the factor that changes."""
    metric: str
    value: float
    """Percent; of a distance, a share of the distance between videos."""
    low: float
    high: float


class Where(NamedTuple):
    """What a prediction is about."""

    dataset: str
    equal: str
    label: str = _ACTION
    metric: str = LINEAR


def values_of(dataset: str, equal: str, records: Iterable[Record], factors: Iterable[Record]) -> list[Value]:
    """R@1 and linear top-1 of every label, and how far the time shift moves embeddings of the video network."""
    found = [
        (each, each.label, name, metric)
        for each in records for name, metric in each.metrics.items() if name in (_RECALL, LINEAR)
    ]  # fmt: skip
    found += [
        (each, _SHIFT, DISTANCE, each.metrics[f"{EMBEDDING} {DISTANCE}"])
        for each in factors
        if (factor_of(each).name, factor_of(each).network) == ("time_shift", "video")
    ]
    return [
        Value(dataset, equal, each.preset, each.seed, label, name, metric.value, metric.low, metric.high)
        for each, label, name, metric in found
    ]


def read(paths: Sequence[Path]) -> list[Value]:
    """Values of several files. Raises UserError for any other file."""
    found = []
    for path in paths:
        try:
            with path.open(newline="") as file:
                for line in csv.DictReader(file):
                    numbers = {name: float(line[name]) for name in ("value", "low", "high")}
                    found.append(Value(**line | numbers | {"seed": int(line["seed"])}))  # type: ignore[arg-type]
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} is not a values.csv of 'gdt study claim' ({first_line(error)}); set --values to one"
            ) from error
    return found


class Values:
    """The values of the study, by what a prediction is about."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values: dict[tuple[Where, str], dict[int, Value]] = {}
        for each in values:
            where = Where(each.dataset, each.equal, each.label, each.metric)
            self._values.setdefault((where, each.row), {})[each.seed] = each

    def seeds(self, where: Where, row: str) -> np.ndarray:
        """float64 [seeds], in the order of the seeds."""
        if (where, row) not in self._values:
            raise KeyError(f"row {row} of {where}")
        return np.array([each.value for _, each in sorted(self._values[where, row].items())])

    def first(self, where: Where, row: str) -> Value:
        """Of the first seed."""
        if (where, row) not in self._values:
            raise KeyError(f"row {row} of {where}")
        return min(self._values[where, row].values(), key=lambda each: each.seed)


_COMPARISON = re.compile(r"(\w+)(?: at ([\d.]+))? (>|<|equals|not above) (\w+)(?: at ([\d.]+))?")
"""Two rows, each at a strength of the identity if the data set has one."""


def _compare(text: str, where: Where, values: Values) -> Judgement:
    """Judge `text`; `where.dataset` has {} in place of the strength."""
    parts = _COMPARISON.fullmatch(text)
    assert parts, text
    cells = []
    for row, at in ((parts[1], parts[2]), (parts[4], parts[5])):
        own = where._replace(dataset=where.dataset.format(at or parts[2] or parts[5]))
        cells.append(values.seeds(own, RANDOM if row == "random" else row))
    more, less = reversed(cells) if parts[3] == "<" else cells
    found = contrast({"more": 1, "less": -1}, {"more": more, "less": less}.__getitem__)
    return (judge_positive(found) if parts[3] in "<>" else judge_equal(found, two_sided=parts[3] == "equals")), found


def _all_compared(texts: Sequence[str], wheres: Sequence[Where], values: Values) -> Judgement:
    judged = [_compare(text, where, values) for text, where in zip(texts, wheres, strict=True)]
    shown = ", ".join(f"{found.points:+.1f}" for _, found in judged)  # type: ignore[attr-defined]
    return all_of([verdict for verdict, _ in judged]), shown


def _identity_hides(values: Values) -> Judgement:
    """The probe above R@1, in row l more than in random weights."""
    where = Where(_A.format("0.3"), "compute")
    hidden = {
        row: values.seeds(where, row) - values.seeds(where._replace(metric=_RECALL), row) for row in ("l", RANDOM)
    }
    found = contrast({"l": 1, RANDOM: -1}, hidden.__getitem__)
    return judge_positive(found), found


def _shift_moves(values: Values) -> Judgement:
    """Embeddings move further with the time shift in row l than in row g: the intervals do not overlap."""
    one, other = (values.first(Where(_A.format("0.3"), "videos", _SHIFT, DISTANCE), row) for row in "lg")
    verdict = "held" if one.low > other.high else "failed" if one.high < other.low else "undecided"
    shown = (f"{each.row} {each.low:.3f} to {each.high:.3f}" for each in (one, other))
    return verdict, ", ".join(shown)  # type: ignore[return-value]


_VIDEOS, _COMPUTE, _IDENTITY = Where(_A, "videos"), Where(_A, "compute"), Where(_A, "videos", "identity")
_ONE_VIDEOS, _ONE_COMPUTE = Where(_B, "videos"), Where(_B, "compute")
_HARD = [Where(_C, equal, _ACTION, _RECALL) for equal in ("videos", "compute")]


def _comparisons(where: Where, what: str, *texts: str) -> dict[str, Callable[[Values], Judgement]]:
    return {f"{what}: {text}": partial(_compare, text, where) for text in texts}


PREDICTIONS: Mapping[str, Callable[[Values], Judgement]] = {
    **_comparisons(
        _VIDEOS, "videos", "e at 0 > random", "l at 0 > random", "j at 0 > random", "e at 0.04 < e at 0",
        "e at 0.3 not above random", "e at 1 not above random",
    ),
    **_comparisons(_IDENTITY, "identity", "e at 0.3 > e at 0"),
    "identity: e, g, j, l at 0 equal random": partial(
        _all_compared, [f"{row} at 0 equals random" for row in "egjl"], [_IDENTITY] * 4
    ),
    **_comparisons(
        _VIDEOS, "videos", "j at 0.04 > e", "l at 0.04 > e", "l at 0.3 > e", "l at 0.3 > j", "l at 1 equals e",
        "g at 0 < e", "g at 0.04 < j",
    ),
    **_comparisons(
        _COMPUTE, "compute", "l at 0 equals e", "l at 0.1 > e", "l at 0.3 > e", "j at 0.3 > e",
        "l at 0.3 equals j", "g at 0.3 not above e", "l at 1 equals e",
    ),
    "compute, probe - R@1: l at 0.3 > random": _identity_hides,
    "time shift moves clips: l at 0.3 > g": _shift_moves,
    **_comparisons(_ONE_VIDEOS, "one action, videos", "g at 0.3 > e", "g at 0.3 > j"),
    **_comparisons(_ONE_COMPUTE, "one action, compute", "g at 0.3 equals e"),
    "hard: l > e (videos), not above (compute)": partial(
        _all_compared, ["l > e", "l not above e"], _HARD
    ),
    **_comparisons(_VIDEOS, "videos", "l at 0.1 > e", "j at 0.1 > e"),
}  # fmt: skip
"""In the order of their numbers in docs/claim.md."""


def claim_predictions(settings: ClaimPredictions) -> str:
    """Judge all predictions; return the table."""
    values = Values(read(settings.values))
    return table([(text, _judged(judge, values)) for text, judge in PREDICTIONS.items()])


def _judged(judge: Callable[[Values], Judgement], values: Values) -> Judgement:
    try:
        return judge(values)
    except KeyError:
        return "not measured", ""
