"""The rule of docs/predictions.md."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.eval.metrics import Metric
from gdt.studies.judge import contrast
from gdt.studies.predictions import PREDICTIONS, Runs
from tests.conftest import ROOT

LABELS = ("action", "motion", "direction", "order", "shape", "colour", "tempo", "timbre")
AT_CHANCE = {"timbre": 25.0}


def all_rows(value: float) -> dict[str, np.ndarray]:
    """The same values over seeds in every row."""
    return {row: value + np.array([-0.5, 0.0, 0.5]) for row in "abcdefghijklm"}


@pytest.fixture
def flat() -> Runs:
    """Runs in which nothing differs."""
    probes = {
        factor: {row: [(Metric(chance, chance, 300), Metric(chance, chance, 300))] * 3 for row in "abcdefghijklm"}
        for factor, chance in (("time_reversal", 50.0), ("time_shift", 100 / 3))
    }
    return Runs(
        {label: all_rows(AT_CHANCE.get(label, 55.0)) for label in LABELS},
        {label: Metric(25.0, 25.0, 200) for label in LABELS},
        probes,
    )


def verdicts(runs: Runs) -> dict[int, str]:
    return {number: judge(runs)[0] for number, judge in enumerate(PREDICTIONS.values(), 1)}


def test_only_predictions_of_no_difference_hold_where_nothing_differs(flat: Runs) -> None:
    found = verdicts(flat)
    held = {number for number, verdict in found.items() if verdict == "held"}
    assert held == {4, 8, 13, 14, 15, 30, 31, 32, 36}
    assert set(found.values()) == {"held", "undecided"}
    written = (ROOT / "docs" / "predictions.md").read_text()
    assert list(found) == list(range(1, 37)) and "37" not in written
    assert all(re.search(rf"\b{number}( and \d\d)?[:,]|and {number}:", written) for number in found)


@pytest.mark.parametrize(
    ("label", "row", "value", "number", "verdict"),
    [
        ("direction", "f", 50, 1, "held"), ("direction", "f", 60, 1, "failed"), ("direction", "l", 70, 4, "failed"),
        ("direction", "b", 70, 8, "failed"), ("order", "e", 60, 9, "failed"), ("direction", "e", 60, 9, "held"),
        ("motion", "f", 61, 13, "failed"), ("action", "l", 50, 23, "held"), ("action", "m", 56.5, 24, "held"),
        ("shape", "a", 90, 25, "held"), ("tempo", "g", 54, 28, "undecided"), ("timbre", "k", 40, 31, "failed"),
        ("motion", "l", 40, 32, "held"), ("motion", "l", 61, 32, "failed"),
    ],
)  # fmt: skip
def test_a_changed_row_changes_the_verdict(
    flat: Runs, label: str, row: str, value: float, number: int, verdict: str
) -> None:
    flat.recall[label][row][:] += value - 55 if label != "timbre" else value - 25
    assert verdicts(flat)[number] == verdict


def test_probes_change_the_verdicts(flat: Runs) -> None:
    low, high = Metric(50.0, 50.0, 300), Metric(80.0, 50.0, 300)
    probes = {
        "time_reversal": {row: [((low, high)[row in "acegjikm"], low)] * 3 for row in "abcdefghijklm"},
        "time_shift": {**flat.probes["time_shift"], "l": [(Metric(50.0, 100 / 3, 300), low)] * 3},
    }
    found = verdicts(replace(flat, probes=probes))
    assert [found[number] for number in (33, 34, 35, 36)] == ["held", "held", "held", "failed"]


def test_a_missing_label_is_named(flat: Runs) -> None:
    del flat.recall["timbre"], flat.example["timbre"]
    with pytest.raises(UserError, match="row a has no R@1 of timbre; run 'make ablation"):
        verdicts(flat)


def test_intervals_are_those_of_welch() -> None:
    values = {"x": np.array([60.0, 62.0, 64.0]), "y": np.array([50.0, 50.0, 53.0])}
    found = contrast({"x": 1, "y": -1}, values.__getitem__)
    assert found.points == pytest.approx(11) and (found.high - found.low) / 2 == pytest.approx(4.275, abs=0.01)
    with pytest.raises(UserError, match="row x has 1 seed, and an interval over seeds needs 2 or more"):
        contrast({"x": 1}, lambda _: np.array([1.0]))
