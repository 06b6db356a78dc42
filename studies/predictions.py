"""Which predictions of docs/predictions.md held, from an ablation of rows a to m on synthetic-hard."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError
from gdt.eval import record
from gdt.eval.factors.promises import ACCURACY, ACCURACY_RANDOM
from gdt.eval.factors.tables import EMBEDDING, factor_of, metrics_at
from gdt.eval.metrics import Metric, difference
from gdt.studies.judge import (
    Interval,
    Judgement,
    Verdict,
    all_of,
    contrast,
    judge_equal,
    judge_positive,
    table,
)
from gdt.studies.settings import Predictions

WITHIN, ACROSS = "abcd", "efghijklm"
_REMEDY = (
    """run 'make ablation DATASET=synthetic-hard ROWS="a b c d e f g h i j k l m" EQUAL=clips CLIPS=3 """
    "TEST_FACTORS=all' first"
)


@dataclass(frozen=True)
class Runs:
    """Results of an ablation."""

    recall: Mapping[str, Mapping[str, np.ndarray]]
    """R@1, percent, by label and row: float64 [seeds], in one order for all labels."""
    example: Mapping[str, Metric]
    """One metric per label, for its chance and number of queries."""
    probes: Mapping[str, Mapping[str, Sequence[tuple[Metric, Metric]]]]
    """Accuracy of a probe on the video embedding, and on that of random weights: per seed, by factor and row."""

    def values(self, label: str, row: str) -> np.ndarray:
        if row not in self.recall.get(label, {}):
            raise UserError(f"row {row} has no R@1 of {label}; {_REMEDY}")
        return self.recall[label][row]

    def probed(self, factor: str, row: str) -> Sequence[tuple[Metric, Metric]]:
        if row not in self.probes.get(factor, {}):
            raise UserError(f"row {row} was not probed for {factor}; {_REMEDY}")
        return self.probes[factor][row]


_COMPARISON = re.compile(
    r"(\w+): (?:mean of )?([a-m, ]+?) (<|>|equals|no better than|not above) (?:mean of )?([a-m, ]+)"
)
"""A prediction that compares the means of rows by a label."""


def _compare(prediction: str, runs: Runs) -> Judgement:
    parts = _COMPARISON.fullmatch(prediction)
    assert parts, prediction
    label, one, sign, other = parts.groups()
    more, less = ([row for row in rows if row.isalpha()] for rows in ((other, one) if sign == "<" else (one, other)))
    weights = {row: 1 / len(more) for row in more} | {row: -1 / len(less) for row in less}
    found = contrast(weights, partial(runs.values, label))
    return (judge_positive(found) if sign in "<>" else judge_equal(found, two_sided=sign == "equals")), found


def _below_65(runs: Runs) -> Judgement:
    below = {row: contrast({row: -1}, lambda row: runs.values("direction", row) - 65) for row in "fhl"}
    verdicts = [judge_positive(each) for each in below.values()]
    return all_of(verdicts), ", ".join(f"{row} {65 - each.points:.1f}" for row, each in below.items())


def _loses_less(one: str, other: str, runs: Runs) -> Judgement:
    """Whether row `one`, relative to row `other`, loses less R@1 of the order than of the direction, seed by seed."""
    found = contrast({other: 1, one: -1}, lambda row: runs.values("direction", row) - runs.values("order", row))
    return judge_positive(found), found


def _timbre_at_chance(runs: Runs) -> Judgement:
    values = {row: runs.values("timbre", row) for row in WITHIN + ACROSS}
    return _at_chance({row: (runs.example["timbre"], own) for row, own in values.items()})


def _third_at_chance(runs: Runs) -> Judgement:
    own = {row: [metric for metric, _ in runs.probed("time_shift", row)] for row in WITHIN + ACROSS}
    return _at_chance({row: (metrics[0], np.array([m.value for m in metrics])) for row, metrics in own.items()})


def _at_chance(rows: Mapping[str, tuple[Metric, np.ndarray]]) -> Judgement:
    """Whether chance lies in the interval of every row's mean over seeds."""
    outside = []
    for row, (metric, values) in rows.items():
        low, high = metric._replace(value=float(values.mean())).interval
        if not low <= metric.chance <= high:
            outside.append(f"{row} {values.mean():.1f}")
    chance = next(metric.chance for metric, _ in rows.values())
    return ("failed", f"not {', '.join(outside)}") if outside else ("held", f"chance {chance:.1f}")


def _decodable(rows: str, runs: Runs) -> Judgement:
    """Whether a probe is above chance and above random weights in every row."""
    verdicts: list[Verdict] = []
    shown = []
    for row in rows:
        pairs = runs.probed("time_reversal", row)
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
        verdicts += [judge_positive(interval) for interval in intervals]
        shown.append(f"{row} {own.mean():.1f} (random {random.mean():.1f})")
    return all_of(verdicts), ", ".join(shown)


def _reversal_pairs(runs: Runs) -> Judgement:
    """Mean over the five pairs of rows that differ in the reversal alone."""
    weights = {row: sign / 5 for rows, sign in (("bdfhl", -1), ("acegj", 1)) for row in rows}
    found = contrast(weights, lambda row: np.array([own.value for own, _ in runs.probed("time_reversal", row)]))
    return judge_positive(found), found


def _comparisons(*predictions: str) -> dict[str, Callable[[Runs], Judgement]]:
    return {each: partial(_compare, each) for each in predictions}


PREDICTIONS: Mapping[str, Callable[[Runs], Judgement]] = {
    **_comparisons("direction: f < e", "direction: h < g", "direction: l < j"),
    "direction: f, h, l < 65": _below_65,
    **_comparisons("direction: i > e", "direction: k > g", "direction: m > j",
                   "direction: b, d no better than a, c"),
    **{f"order: {one} loses less of it than of direction, relative to {other}": partial(_loses_less, one, other)
       for one, other in ("fe", "hg", "lj")},
    **_comparisons("motion: mean of efghijklm > mean of abcd", "motion: f equals e", "motion: h equals g",
                   "motion: l equals j"),
    **_comparisons("action: f < e", "action: h < g", "action: l < j", "action: i > e", "action: k > g",
                   "action: m > j", "action: mean of efghijklm > mean of abcd", "action: l < e", "action: m > l"),
    **_comparisons("shape: mean of abcd > mean of efghijklm", "colour: mean of abcd > mean of efghijklm",
                   "tempo: mean of efghijklm > mean of abcd", "tempo: g > e", "tempo: j < g", "tempo: f equals e"),
    "timbre: every row at chance": _timbre_at_chance,
    **_comparisons("motion: l not above e"),
    "direction of time decodable from i, k, m": partial(_decodable, "ikm"),
    "direction of time decodable from e, g, j": partial(_decodable, "egj"),
    "direction of time decoded less well if reversal is invariant": _reversal_pairs,
    "third of the video: every row at chance": _third_at_chance,
}  # fmt: skip
"""In the order of their numbers in docs/predictions.md."""


def read(folder: Path) -> Runs:
    """The results of an ablation. Raises UserError where there are none."""
    paths = [folder / "results.json", folder / "factors.json"]
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no {path}; {_REMEDY}")
    recall: dict[str, dict[str, list[tuple[int, float]]]] = {}
    example: dict[str, Metric] = {}
    for result in record.read(paths[0]):
        if result.protocol == "retrieval" and result.preset in WITHIN + ACROSS:
            label = result.label or "action"
            example[label] = result.metrics["R@1"]
            recall.setdefault(label, {}).setdefault(result.preset, []).append((result.seed, example[label].value))
    probes: dict[str, dict[str, list[tuple[Metric, Metric]]]] = {}
    for result in record.read(paths[1]):
        factor, metrics = factor_of(result), metrics_at(EMBEDDING, result)
        if factor.network == "video" and metrics:
            pair = metrics[ACCURACY], metrics[ACCURACY_RANDOM]
            probes.setdefault(factor.name, {}).setdefault(result.preset, []).append(pair)
    by_seed = {
        label: {row: np.array([value for _, value in sorted(values)]) for row, values in rows.items()}
        for label, rows in recall.items()
    }
    return Runs(by_seed, example, probes)


def predictions(settings: Predictions) -> str:
    """Judge all predictions; return the table."""
    runs = read(settings.runs)
    return table([(prediction, judge(runs)) for prediction, judge in PREDICTIONS.items()])
