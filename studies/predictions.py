"""How many of docs/predictions.md held, from an ablation of all rows on synthetic-hard.

python -m studies.predictions --runs runs/ablation-synthetic-hard
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import tyro
from scipy import stats

from gdt.common.errors import UserError, exit_with_message
from gdt.eval import record
from gdt.eval.factors.lines import EMBEDDING, factor_of, seen_in
from gdt.eval.factors.promises import TOLD, TOLD_RANDOM
from gdt.eval.measures import Measure, difference
from gdt.eval.tables import layout

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


class Judged(NamedTuple):
    """A prediction and what came of it."""

    number: int
    said: str
    found: str
    verdict: Verdict


@dataclass(frozen=True)
class Runs:
    """What was measured."""

    labels: Mapping[str, Mapping[str, np.ndarray]]
    """R@1, percent, by column of labels and row: float64 [seeds], in one order for all columns."""
    asked: Mapping[str, Measure]
    """One measure of each column, for its chance and the number of queries."""
    told: Mapping[str, Mapping[str, Sequence[tuple[Measure, Measure]]]]
    """Of the picture's embedding, by factor and row: of each seed a probe's accuracy and that from random weights."""

    def values(self, label: str, row: str) -> np.ndarray:
        if row not in self.labels.get(label, {}):
            raise UserError(f"row {row} has no R@1 of {label}; run make ablation of all rows on synthetic-hard first")
        return self.labels[label][row]


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


def alike(found: Interval, either_way: bool = True) -> Verdict:
    """Of one that was predicted to be none, or with `either_way` False, to be none or negative."""
    size = abs(found.points) if either_way else found.points
    if size < NO_DIFFERENCE:
        return "held"
    return "undecided" if found.low <= 0 <= found.high else "failed"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a prediction about several rows."""
    return "failed" if "failed" in verdicts else "undecided" if "undecided" in verdicts else "held"


def judged(runs: Runs) -> list[Judged]:
    """Every prediction, in order."""
    found: list[Judged] = []

    def note(said: str, verdict: Verdict, text: object) -> None:
        found.append(Judged(len(found) + 1, said, str(text), verdict))

    def compare(label: str, one: str, sign: str, other: str) -> None:
        interval = contrast({one: 1, other: -1} if sign == ">" else {other: 1, one: -1}, _of(runs, label))
        note(f"{label}: {one} {sign} {other}", above(interval), interval)

    def groups(label: str, more: str, less: str) -> None:
        weights = {row: 1 / len(more) for row in more} | {row: -1 / len(less) for row in less}
        interval = contrast(weights, _of(runs, label))
        note(f"{label}: mean of {more} > mean of {less}", above(interval), interval)

    def no_difference(label: str, one: str, other: str) -> None:
        interval = contrast({one: 1, other: -1}, _of(runs, label))
        note(f"{label}: {one} as {other}", alike(interval), interval)

    for one, other in ("fe", "hg", "lj"):
        compare("direction", one, "<", other)
    below = {row: contrast({row: 1}, lambda row: _of(runs, "direction")(row) - 65) for row in "fhl"}
    verdicts = [above(Interval(-each.points, -each.high, -each.low)) for each in below.values()]
    note(
        "direction: f, h, l < 65", all_of(verdicts), ", ".join(f"{row} {65 + e.points:.1f}" for row, e in below.items())
    )
    for one, other in ("ie", "kg", "mj"):
        compare("direction", one, ">", other)
    interval = contrast({"b": 0.5, "d": 0.5, "a": -0.5, "c": -0.5}, _of(runs, "direction"))
    note("direction: b, d no better than a, c", alike(interval, either_way=False), interval)
    for one, other in ("fe", "hg", "lj"):
        interval = contrast({other: 1, one: -1}, lambda row: runs.values("direction", row) - runs.values("order", row))
        note(f"order: {one} loses less against {other} than of direction", above(interval), interval)
    groups("motion", ACROSS, WITHIN)
    for one, other in ("fe", "hg", "lj"):
        no_difference("motion", one, other)
    for one, sign, other in ("f<e", "h<g", "l<j", "i>e", "k>g", "m>j"):
        compare("action", one, sign, other)
    groups("action", ACROSS, WITHIN)
    for one, sign, other in ("l<e", "m>l"):
        compare("action", one, sign, other)
    for label in ("shape", "colour"):
        groups(label, WITHIN, ACROSS)
    groups("tempo", ACROSS, WITHIN)
    compare("tempo", "g", ">", "e")
    compare("tempo", "j", "<", "g")
    no_difference("tempo", "f", "e")
    note("timbre: every row at chance", *_at_chance(runs))
    interval = contrast({"l": 1, "e": -1}, _of(runs, "motion"))
    note("motion: l not above e", alike(interval, either_way=False), interval)
    for rows in ("ikm", "egj"):
        note(f"direction of time decodable from {', '.join(rows)}", *_decodable(runs, rows))
    note("reversal invariant: decoded less well than its pair", *_pairs(runs))
    note("third of the video: every row at chance", *_thirds(runs))
    return found


def _of(runs: Runs, label: str) -> Callable[[str], np.ndarray]:
    return lambda row: runs.values(label, row)


def _at_chance(runs: Runs) -> tuple[Verdict, str]:
    """Whether chance lies in the interval of every row's mean over seeds."""
    one = runs.asked["timbre"]
    outside = []
    for row, values in runs.labels["timbre"].items():
        low, high = one._replace(value=float(values.mean())).interval
        if not low <= one.chance <= high:
            outside.append(f"{row} {values.mean():.1f}")
    return ("failed" if outside else "held"), f"not {', '.join(outside)}" if outside else f"chance {one.chance:.1f}"


def _decodable(runs: Runs, rows: str) -> tuple[Verdict, str]:
    """Above chance and above random weights, by the probe's accuracy over seeds."""
    verdicts: list[Verdict] = []
    said = []
    for row in rows:
        pairs = _told(runs, "time_reversal", row)
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


def _pairs(runs: Runs) -> tuple[Verdict, Interval | str]:
    """Of the mean over the five pairs that differ in the reversal alone."""
    weights = {
        row: sign / 5 for pair in ("ba", "dc", "fe", "hg", "lj") for row, sign in zip(pair, (-1, 1), strict=True)
    }
    values = {row: np.array([own.value for own, _ in _told(runs, "time_reversal", row)]) for row in weights}
    interval = contrast(weights, values.__getitem__)
    return above(interval), interval


def _thirds(runs: Runs) -> tuple[Verdict, str]:
    outside = []
    for row in WITHIN + ACROSS:
        pairs = _told(runs, "time_shift", row)
        mean = pairs[0][0]._replace(value=float(np.mean([own.value for own, _ in pairs])))
        if not mean.interval[0] <= mean.chance <= mean.interval[1]:
            outside.append(f"{row} {mean.value:.1f}")
    return ("failed" if outside else "held"), f"not {', '.join(outside)}" if outside else "chance 33.3"


def _told(runs: Runs, factor: str, row: str) -> Sequence[tuple[Measure, Measure]]:
    if row not in runs.told.get(factor, {}):
        raise UserError(f"nothing is known of {factor} in row {row}; run make ablation with ARGS='--factors all'")
    return runs.told[factor][row]


def read(folder: Path) -> Runs:
    """The results of an ablation. Raises UserError where there are none."""
    paths = [folder / "results.json", folder / "factors.json"]
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no {path}; run make ablation of all rows with ARGS='--factors all' first")
    labels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    asked: dict[str, Measure] = {}
    for result in record.read(paths[0]):
        if result.protocol == "retrieval" and result.preset in WITHIN + ACROSS:
            label = result.label or "action"
            asked[label] = result.measures["R@1"]
            labels.setdefault(label, {}).setdefault(result.preset, []).append((result.seed, asked[label].value))
    told: dict[str, dict[str, list[tuple[Measure, Measure]]]] = {}
    for looked in record.read(paths[1]):
        factor, seen = factor_of(looked), seen_in(EMBEDDING, looked)
        if factor.network == "video" and seen:
            told.setdefault(factor.name, {}).setdefault(looked.preset, []).append((seen[TOLD], seen[TOLD_RANDOM]))
    by_seed = {
        label: {row: np.array([value for _, value in sorted(values)]) for row, values in of.items()}
        for label, of in labels.items()
    }
    return Runs(by_seed, asked, told)


@dataclass(frozen=True)
class Predictions:
    """Judge docs/predictions.md by the rule that it states."""

    runs: Path = Path("runs/ablation-synthetic-hard")
    """Folder of the ablation of rows a to m, two seeds or more."""


def main() -> None:
    found = judged(read(tyro.cli(Predictions, prog="python -m studies.predictions").runs))
    lines = [["", "predicted", "found, points", "verdict"]]
    print(layout([*lines, *([str(each.number), *each[1:]] for each in found)]))
    counts = {verdict: sum(each.verdict == verdict for each in found) for verdict in ("held", "failed", "undecided")}
    print(f"\n{', '.join(f'{count} {verdict}' for verdict, count in counts.items())}, of {len(found)}")


if __name__ == "__main__":
    exit_with_message(main)
