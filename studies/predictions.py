"""How many of docs/predictions.md held, from an ablation of all rows on synthetic-hard."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from gdt.common.errors import UserError
from gdt.eval import record
from gdt.eval.factors.lines import EMBEDDING, factor_of, seen_in
from gdt.eval.factors.promises import TOLD, TOLD_RANDOM
from gdt.eval.metrics import Metric, difference
from gdt.eval.tables import layout
from gdt.studies.settings import Predictions

Verdict = Literal["held", "failed", "undecided"]
WITHIN, ACROSS = "abcd", "efghijklm"
NO_DIFFERENCE = 5.0
"""Points."""


class Interval(NamedTuple):
    """A difference, points, with its 95 % interval over seeds."""

    points: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.points:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


Judged = tuple[Verdict, object]
"""What came of a prediction, and what was found, in words."""


@dataclass(frozen=True)
class Runs:
    """What was measured."""

    labels: Mapping[str, Mapping[str, np.ndarray]]
    """R@1, percent, by column of labels and row: float64 [seeds], in one order for all columns."""
    asked: Mapping[str, Metric]
    """One metric of each column, for its chance and the number of queries."""
    told: Mapping[str, Mapping[str, Sequence[tuple[Metric, Metric]]]]
    """Of the picture's embedding, by factor and row: of each seed a probe's accuracy and that from random weights."""

    def values(self, label: str, row: str) -> np.ndarray:
        if row not in self.labels.get(label, {}):
            raise UserError(f"row {row} has no R@1 of {label}; run make ablation of all rows on synthetic-hard first")
        return self.labels[label][row]

    def told_of(self, factor: str, row: str) -> Sequence[tuple[Metric, Metric]]:
        if row not in self.told.get(factor, {}):
            raise UserError(f"nothing is known of {factor} in row {row}; run make ablation with ARGS='--factors all'")
        return self.told[factor][row]


def contrast(weights: Mapping[str, float], values: Callable[[str], np.ndarray]) -> Interval:
    """Weighted sum of the means of rows, and its interval by Welch's t (Satterthwaite's degrees of freedom)."""
    points, variances, freedom = 0.0, [], []
    for row, weight in weights.items():
        each = values(row)
        points += weight * float(each.mean())
        if len(each) > 1:
            variances.append(weight**2 * each.var(ddof=1) / len(each))
            freedom.append(len(each) - 1)
    variance = np.array(variances)
    if len(variance) < len(weights):
        raise UserError("an interval over seeds needs two seeds or more of every row")
    if not variance.any():
        return Interval(points, points, points)
    degrees = variance.sum() ** 2 / (variance**2 / np.array(freedom)).sum()
    half = float(stats.t.ppf(0.975, degrees) * np.sqrt(variance.sum()))
    return Interval(points, points - half, points + half)


def above(found: Interval) -> Verdict:
    """Of a difference that was predicted to be positive."""
    return "held" if found.low > 0 else "failed" if found.high < 0 else "undecided"


def alike(found: Interval, either_way: bool) -> Verdict:
    """Of one that was predicted to be none, or with `either_way` False, to be none or negative."""
    size = abs(found.points) if either_way else found.points
    if size < NO_DIFFERENCE:
        return "held"
    return "undecided" if found.low <= 0 <= found.high else "failed"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a prediction about several rows."""
    return "failed" if "failed" in verdicts else "undecided" if "undecided" in verdicts else "held"


_SAID = re.compile(r"(\w+): (?:mean of )?([a-m, ]+?) (<|>|as|no better than|not above) (?:mean of )?([a-m, ]+)")
"""A prediction about the means of rows, in words."""


def _as_said(said: str, runs: Runs) -> Judged:
    parts = _SAID.fullmatch(said)
    assert parts, said
    label, one, sign, other = parts.groups()
    more, less = ([row for row in rows if row.isalpha()] for rows in ((other, one) if sign == "<" else (one, other)))
    weights = {row: 1 / len(more) for row in more} | {row: -1 / len(less) for row in less}
    found = contrast(weights, partial(runs.values, label))
    return (above(found) if sign in "<>" else alike(found, either_way=sign == "as")), found


def _below_65(runs: Runs) -> Judged:
    below = {row: contrast({row: 1}, lambda row: runs.values("direction", row) - 65) for row in "fhl"}
    verdicts = [above(Interval(-each.points, -each.high, -each.low)) for each in below.values()]
    return all_of(verdicts), ", ".join(f"{row} {65 + each.points:.1f}" for row, each in below.items())


def _loses_less(one: str, other: str, runs: Runs) -> Judged:
    """Of the order than of the direction, seed by seed."""
    found = contrast({other: 1, one: -1}, lambda row: runs.values("direction", row) - runs.values("order", row))
    return above(found), found


def _at_chance(runs: Runs) -> Judged:
    """Whether chance lies in the interval of every row's mean over seeds."""
    one = runs.asked["timbre"]
    verdict, outside = _all_at_chance({row: (one, values) for row, values in runs.labels["timbre"].items()})
    return verdict, outside or f"chance {one.chance:.1f}"


def _thirds(runs: Runs) -> Judged:
    told = {row: [own for own, _ in runs.told_of("time_shift", row)] for row in WITHIN + ACROSS}
    verdict, outside = _all_at_chance({row: (o[0], np.array([m.value for m in o])) for row, o in told.items()})
    return verdict, outside or "chance 33.3"


def _all_at_chance(rows: Mapping[str, tuple[Metric, np.ndarray]]) -> tuple[Verdict, str]:
    """Of rows, by a metric of each and the values of all seeds; and which are not."""
    outside = []
    for row, (one, values) in rows.items():
        low, high = one._replace(value=float(values.mean())).interval
        if not low <= one.chance <= high:
            outside.append(f"{row} {values.mean():.1f}")
    return ("failed", f"not {', '.join(outside)}") if outside else ("held", "")


def _decodable(rows: str, runs: Runs) -> Judged:
    """Above chance and above random weights, by the probe's accuracy over seeds."""
    verdicts: list[Verdict] = []
    said = []
    for row in rows:
        pairs = runs.told_of("time_reversal", row)
        own, random = (np.array([pair[k].value for pair in pairs]) for k in (0, 1))
        chance = pairs[0][0].chance
        if len(pairs) > 1:
            values = {"own": own, "random": random, "chance": np.full(len(own), chance)}
            intervals = [contrast({"own": 1, name: -1}, values.__getitem__) for name in ("chance", "random")]
        else:
            low, high = pairs[0][0].interval
            intervals = [
                Interval(own[0] - chance, low - chance, high - chance),
                Interval(*difference([pairs[0][0]], [pairs[0][1]])),
            ]
        verdicts += [above(interval) for interval in intervals]
        said.append(f"{row} {own.mean():.1f} (random {random.mean():.1f})")
    return all_of(verdicts), ", ".join(said)


def _pairs(runs: Runs) -> Judged:
    """Of the mean over the five pairs that differ in the reversal alone."""
    weights = {
        row: sign / 5 for pair in ("ba", "dc", "fe", "hg", "lj") for row, sign in zip(pair, (-1, 1), strict=True)
    }
    found = contrast(weights, lambda row: np.array([own.value for own, _ in runs.told_of("time_reversal", row)]))
    return above(found), found


def _words(*said: str) -> dict[str, Callable[[Runs], Judged]]:
    return {each: partial(_as_said, each) for each in said}


PREDICTIONS: Mapping[str, Callable[[Runs], Judged]] = {
    **_words("direction: f < e", "direction: h < g", "direction: l < j"),
    "direction: f, h, l < 65": _below_65,
    **_words("direction: i > e", "direction: k > g", "direction: m > j", "direction: b, d no better than a, c"),
    **{f"order: {one} loses less against {other} than of direction": partial(_loses_less, one, other)
       for one, other in ("fe", "hg", "lj")},
    **_words("motion: mean of efghijklm > mean of abcd", "motion: f as e", "motion: h as g", "motion: l as j"),
    **_words("action: f < e", "action: h < g", "action: l < j", "action: i > e", "action: k > g", "action: m > j",
             "action: mean of efghijklm > mean of abcd", "action: l < e", "action: m > l"),
    **_words("shape: mean of abcd > mean of efghijklm", "colour: mean of abcd > mean of efghijklm",
             "tempo: mean of efghijklm > mean of abcd", "tempo: g > e", "tempo: j < g", "tempo: f as e"),
    "timbre: every row at chance": _at_chance,
    **_words("motion: l not above e"),
    "direction of time decodable from i, k, m": partial(_decodable, "ikm"),
    "direction of time decodable from e, g, j": partial(_decodable, "egj"),
    "reversal invariant: decoded less well than its pair": _pairs,
    "third of the video: every row at chance": _thirds,
}  # fmt: skip
"""As they are listed, by the number."""


def read(folder: Path) -> Runs:
    """The results of an ablation. Raises UserError where there are none."""
    paths = [folder / "results.json", folder / "factors.json"]
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no {path}; run make ablation of all rows with ARGS='--factors all' first")
    labels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    asked: dict[str, Metric] = {}
    for result in record.read(paths[0]):
        if result.protocol == "retrieval" and result.preset in WITHIN + ACROSS:
            label = result.label or "action"
            asked[label] = result.metrics["R@1"]
            labels.setdefault(label, {}).setdefault(result.preset, []).append((result.seed, asked[label].value))
    told: dict[str, dict[str, list[tuple[Metric, Metric]]]] = {}
    for looked in record.read(paths[1]):
        factor, seen = factor_of(looked), seen_in(EMBEDDING, looked)
        if factor.network == "video" and seen:
            told.setdefault(factor.name, {}).setdefault(looked.preset, []).append((seen[TOLD], seen[TOLD_RANDOM]))
    by_seed = {
        label: {row: np.array([value for _, value in sorted(values)]) for row, values in of.items()}
        for label, of in labels.items()
    }
    return Runs(by_seed, asked, told)


def predictions(settings: Predictions) -> str:
    """Judge them all; returns the table."""
    runs = read(settings.runs)
    found = [(said, *judge(runs)) for said, judge in PREDICTIONS.items()]
    lines = [["", "predicted", "found, points", "verdict"]]
    lines += [[str(number), said, str(what), verdict] for number, (said, verdict, what) in enumerate(found, 1)]
    verdicts = [verdict for _, verdict, _ in found]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("held", "failed", "undecided"))
    return f"{layout(lines)}\n\n{counts}, of {len(found)}"
