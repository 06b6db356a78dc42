"""The rule by which predictions are judged, from differences between rows over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy import stats

from gdt.common.errors import UserError, plural
from gdt.eval.tables import layout

Verdict = Literal["held", "failed", "undecided", "not measured"]
NO_DIFFERENCE = 5.0
"""Points below which a predicted "no difference" holds."""


class Interval(NamedTuple):
    """A difference in points, with its 95 % interval over seeds."""

    points: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.points:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


Judgement = tuple[Verdict, object]
"""The verdict, and the measurement behind it for the table."""


def contrast(weights: Mapping[str, float], values: Callable[[str], np.ndarray]) -> Interval:
    """Weighted sum of the means of rows, with its interval by Welch's t (Satterthwaite's degrees of freedom)."""
    points, variances, freedom = 0.0, [], []
    for row, weight in weights.items():
        each = values(row)
        if len(each) < 2:
            raise UserError(
                f"row {row} has {plural(len(each), 'seed')}, and an interval over seeds needs 2 or more; repeat the "
                "study with more --seeds"
            )
        points += weight * float(each.mean())
        variances.append(weight**2 * each.var(ddof=1) / len(each))
        freedom.append(len(each) - 1)
    variance = np.array(variances)
    if not variance.any():
        return Interval(points, points, points)
    degrees = variance.sum() ** 2 / (variance**2 / np.array(freedom)).sum()
    half = float(stats.t.ppf(0.975, degrees) * np.sqrt(variance.sum()))
    return Interval(points, points - half, points + half)


def judge_positive(found: Interval) -> Verdict:
    """Verdict on a difference predicted to be positive."""
    return "held" if found.low > 0 else "failed" if found.high < 0 else "undecided"


def judge_equal(found: Interval, two_sided: bool) -> Verdict:
    """Verdict on a difference predicted to be zero; without `two_sided`, zero or negative."""
    size = abs(found.points) if two_sided else found.points
    if size < NO_DIFFERENCE:
        return "held"
    return "undecided" if found.low <= 0 <= found.high else "failed"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Verdict on a prediction about several rows: all must hold."""
    return "failed" if "failed" in verdicts else "undecided" if "undecided" in verdicts else "held"


def table(judged: Sequence[tuple[str, Judgement]]) -> str:
    """One line per prediction, numbered, and the counts of verdicts."""
    lines = [["", "predicted", "found, points", "verdict"]]
    lines += [[str(k), text, str(found), verdict] for k, (text, (verdict, found)) in enumerate(judged, 1)]
    verdicts = [verdict for _, (verdict, _) in judged]
    counts = ", ".join(f"{verdicts.count(one)} {one}" for one in get_args(Verdict) if one in verdicts)
    return f"{layout(lines)}\n\n{counts}, of {len(judged)}"
