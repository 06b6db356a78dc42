"""Which predictions of docs/claim_predictions.md held, from the values that `gdt study claim` writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gdt.eval.ablation.compare import LINEAR
from gdt.eval.drawing import save
from gdt.eval.factors.promises import DISTANCE
from gdt.eval.record import RANDOM
from gdt.studies.claim_values import ACTION, RECALL, SHIFT, Selection, Values, picture, read
from gdt.studies.judge import Judgement, all_of, contrast, judge_equal, judge_positive, table
from gdt.studies.settings import Claim, ClaimPredictions

_A, _B, _C = "moments-{}-actions3-seed1", "moments-{}-actions1-seed1", "hard-seed1"
"""Data sets of the parts of the study; {} is the strength of the identity."""


_COMPARISON = re.compile(r"(\w+)(?: at ([\d.]+))? (>|<|equals|not above) (\w+)(?: at ([\d.]+))?")
"""Two rows, each at a strength of the identity if the data set has one."""


def _compare(text: str, selection: Selection, values: Values) -> Judgement:
    """Judge `text`; `selection.dataset` has {} in place of the strength."""
    parts = _COMPARISON.fullmatch(text)
    assert parts, text
    cells = []
    for row, at in ((parts[1], parts[2]), (parts[4], parts[5])):
        own = selection._replace(dataset=selection.dataset.format(at or parts[2] or parts[5]))
        cells.append(values.seeds(own, RANDOM if row == "random" else row))
    more, less = reversed(cells) if parts[3] == "<" else cells
    found = contrast({"more": 1, "less": -1}, {"more": more, "less": less}.__getitem__)
    return (judge_positive(found) if parts[3] in "<>" else judge_equal(found, two_sided=parts[3] == "equals")), found


def _compare_all(texts: Sequence[str], selections: Sequence[Selection], values: Values) -> Judgement:
    judged = [_compare(text, selection, values) for text, selection in zip(texts, selections, strict=True)]
    shown = ", ".join(f"{found.points:+.1f}" for _, found in judged)  # type: ignore[attr-defined]
    return all_of([verdict for verdict, _ in judged]), shown


def _identity_hides(values: Values) -> Judgement:
    """Whether the probe exceeds R@1 by more in row l than with random weights."""
    probe, recall = (Selection(_A.format("0.3"), "compute", metric=metric) for metric in (LINEAR, RECALL))
    hidden = {row: values.seeds(probe, row) - values.seeds(recall, row) for row in ("l", RANDOM)}
    found = contrast({"l": 1, RANDOM: -1}, hidden.__getitem__)
    return judge_positive(found), found


def _shift_moves(values: Values) -> Judgement:
    """Whether a time shift moves embeddings farther in row l than in row g, by intervals that do not overlap."""
    one, other = (values.first(Selection(_A.format("0.3"), "videos", SHIFT, DISTANCE), row) for row in "lg")
    verdict = "held" if one.low > other.high else "failed" if one.high < other.low else "undecided"
    shown = (f"{each.row} {each.low:.3f} to {each.high:.3f}" for each in (one, other))
    return verdict, ", ".join(shown)  # type: ignore[return-value]


_VIDEOS, _COMPUTE, _IDENTITY = Selection(_A, "videos"), Selection(_A, "compute"), Selection(_A, "videos", "identity")
_ONE_VIDEOS, _ONE_COMPUTE = Selection(_B, "videos"), Selection(_B, "compute")
_HARD = [Selection(_C, equal, ACTION, RECALL) for equal in ("videos", "compute")]


def _comparisons(selection: Selection, what: str, *texts: str) -> dict[str, Callable[[Values], Judgement]]:
    return {f"{what}: {text}": partial(_compare, text, selection) for text in texts}


PREDICTIONS: Mapping[str, Callable[[Values], Judgement]] = {
    **_comparisons(
        _VIDEOS, "videos", "e at 0 > random", "l at 0 > random", "j at 0 > random", "e at 0.04 < e at 0",
        "e at 0.3 not above random", "e at 1 not above random",
    ),
    **_comparisons(_IDENTITY, "identity", "e at 0.3 > e at 0"),
    "identity: e, g, j, l at 0 equal random": partial(
        _compare_all, [f"{row} at 0 equals random" for row in "egjl"], [_IDENTITY] * 4
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
        _compare_all, ["l > e", "l not above e"], _HARD
    ),
    **_comparisons(_VIDEOS, "videos", "l at 0.1 > e", "j at 0.1 > e"),
}  # fmt: skip
"""In the order of their numbers in docs/claim_predictions.md."""


def claim_predictions(settings: ClaimPredictions) -> str:
    """Judge all predictions; return the table. Draws part A if there is a `picture`."""
    found = read(settings.values)
    if settings.picture:
        measured = {each.dataset for each in found}
        strengths = {_A.format(at): at for at in (f"{identity:g}" for identity in Claim.identity)}
        save(picture(found, {name: at for name, at in strengths.items() if name in measured}), settings.picture)
    values = Values(found)
    return table([(text, _judge(judge, values)) for text, judge in PREDICTIONS.items()])


def _judge(judge: Callable[[Values], Judgement], values: Values) -> Judgement:
    try:
        return judge(values)
    except KeyError:
        return "not measured", ""
