"""Whether two rows of a table differ on the same queries: paired tests of their answers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from gdt.eval.results import RANDOM, Answers, Result

LEVEL = 0.05
"""Differences with a lower p are marked."""
DRAWS = 10_000
"""Resamples of the queries."""
FEWEST = 20
"""Fewer answers give the bootstrap no p: with 5, it is below 0.05 in 16 % of cases without a difference."""
_EQUAL = 1e-6
"""Values of answers that differ by less are the same, since they are stored as float32."""


class Difference(NamedTuple):
    """How far a row is above another on the same queries."""

    points: float
    """In percent, over the queries of all folds."""
    p: float | None
    """Two-sided p of no difference; None of fewer than FEWEST answers that are not right or wrong."""


Compared = dict[str, Difference]
"""A number of a row against others, by the names in _MARKS."""
Comparisons = dict[tuple[str, str], Compared]
"""By row and metric."""
_MARKS = {"first": "*", "random": "†"}
"""Marks of numbers that differ from those of the first model, or of random weights."""


def compare(groups: Mapping[str, Sequence[Result]], answers: Mapping[str, Answers]) -> Comparisons:
    """Every number of the models of a table, a group of results each, against the first model and random weights.

    Rows are compared in a metric if they have answers of the same queries in the same folds.
    """
    references = _references(groups)
    comparisons: Comparisons = {}
    for name, group in groups.items():
        if name == references.get("random"):
            continue
        others = {kind: groups[other] for kind, other in references.items() if other != name}
        for metric in dict.fromkeys(metric for result in group for metric in result.metrics):
            compared = {kind: _difference(group, other, metric, answers) for kind, other in others.items()}
            found = {kind: difference for kind, difference in compared.items() if difference}
            if found:
                comparisons[name, metric] = found
    return comparisons


def _references(groups: Mapping[str, Sequence[Result]]) -> dict[str, str]:
    """The rows of the first model and of random weights, where there are such, by the names in _MARKS."""
    rows: dict[str, str] = {}
    for name, group in groups.items():
        rows.setdefault("random" if group[0].preset == RANDOM else "first", name)
    return {kind: rows[kind] for kind in _MARKS if kind in rows}


def columns(compared: Compared) -> dict[str, float | str]:
    """The differences as columns of results.csv: in points, with two digits of p."""
    cells: dict[str, float | str] = {}
    for kind, (points, p) in compared.items():
        cells |= {f"above_{kind}": points, f"p_{kind}": "" if p is None else f"{p:.2g}"}
    return cells


def mark(compared: Compared) -> str:
    """The marks of a number in a table: * if it differs from the first model, † if from random weights."""
    return "".join(_MARKS[kind] for kind, (_, p) in compared.items() if p is not None and p < LEVEL)


def footnotes(groups: Mapping[str, Sequence[Result]], comparisons: Comparisons) -> list[str]:
    """What the marks in a table mean."""
    used = {kind for compared in comparisons.values() for kind in compared}
    meanings = [f"{_MARKS[kind]} differs from {row}" for kind, row in _references(groups).items() if kind in used]
    rule = f"p < {LEVEL} on the same queries, not corrected for the number of comparisons"
    return [f"{', '.join(meanings)}: {rule}"] if meanings else []


def _difference(
    row: Sequence[Result], other: Sequence[Result], metric: str, answers: Mapping[str, Answers]
) -> Difference | None:
    """The difference of a row from another in a metric, over all folds; None if their queries are not the same."""
    ours = _answers(row, metric, answers)
    theirs = _answers(other, metric, answers)
    if not ours or ours.keys() != theirs.keys():
        return None
    if any(not np.array_equal(ours[fold].queries, theirs[fold].queries) for fold in ours):
        return None
    one = np.concatenate([ours[fold].values[metric] for fold in ours])
    two = np.concatenate([theirs[fold].values[metric] for fold in ours])
    if len(one) != len(two):
        return None
    queries = np.concatenate([rows.queries for rows in ours.values()])
    if len(queries) == len(one):  # else answers are of labels
        one = _per_query(queries, one)
        two = _per_query(queries, two)
    return difference(one, two)


def _per_query(queries: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """One answer per query: the mean over the folds that share it, as some do of HMDB-51; they are not independent."""
    unique, position = np.unique(queries, return_inverse=True)
    if len(unique) == len(queries):
        return answers
    return np.bincount(position, answers) / np.bincount(position)


def _answers(rows: Sequence[Result], metric: str, answers: Mapping[str, Answers]) -> dict[str, Answers]:
    """The answers of a row by its folds; empty if some are missing."""
    asked = [row for row in rows if metric in row.metrics]
    known = {row.shared: answers[row.key] for row in asked if row.key in answers}
    complete = len(known) == len(asked) and all(metric in of_fold.values for of_fold in known.values())
    return known if complete else {}


def difference(one: np.ndarray, two: np.ndarray) -> Difference:
    """The difference of the means of answers [n] to the same queries, by McNemar's exact test if they are bool, else by
    the bootstrap.
    """
    apart = one.astype(float) - two.astype(float)
    p = None
    if one.dtype == two.dtype == bool:
        p = mcnemar(one, two)
    elif len(one) >= FEWEST:
        p = bootstrap(apart)
    return Difference(100 * float(apart.mean()), p)


def mcnemar(one: np.ndarray, two: np.ndarray) -> float:
    """Two-sided p of McNemar's exact test: of the queries [n] that one alone answers right, half by chance."""
    only_one = int((one & ~two).sum())
    only_two = int((two & ~one).sum())
    apart = only_one + only_two
    return float(stats.binomtest(only_one, apart).pvalue) if apart else 1.0


def bootstrap(apart: np.ndarray) -> float:
    """Two-sided p of paired differences [n] of mean 0: how often the mean of a resample is as far from their mean as
    that is from 0.
    """
    values, counts = np.unique(np.round(apart / _EQUAL) * _EQUAL, return_counts=True)
    n = len(apart)
    mean = values @ counts / n
    # how often each value is drawn, which is faster than drawing queries, since there are few values
    drawn = np.random.default_rng(0).multinomial(n, counts / n, DRAWS) @ values / n
    as_far = np.abs(drawn - mean) >= abs(mean) - _EQUAL / n
    return float((as_far.sum() + 1) / (DRAWS + 1))
