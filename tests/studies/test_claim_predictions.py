"""Judging the predictions of docs/claim_predictions.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.eval.ablation.compare import LINEAR
from gdt.eval.factors.promises import DISTANCE
from gdt.eval.record import RANDOM
from gdt.eval.tables import csv_text
from gdt.studies.claim_predictions import PREDICTIONS, claim_predictions
from gdt.studies.claim_values import Value, Values, read, values_of
from gdt.studies.settings import ClaimPredictions
from tests.conftest import ROOT
from tests.eval.test_record import ROW

SETS = [f"moments-{at}-actions3-seed1" for at in ("0", "0.04", "0.1", "0.3", "1")]
SETS += ["moments-0.3-actions1-seed1", "hard-seed1"]
NO_DIFFERENCE = {5, 6, 8, 13, 16, 20, 21, 22, 27}
"""Numbers of the predictions that hold where nothing differs."""


def flat(**changed: float) -> list[Value]:
    """Values of a study in which nothing differs; `changed`: values by row, at every strength."""
    values = []
    for dataset in SETS:
        for equal in ("videos", "compute"):
            for row in ("e", "g", "j", "l", RANDOM):
                for label, metric in (("", "R@1"), ("", LINEAR), ("identity", "R@1"), ("identity", LINEAR)):
                    for seed, more in ((10, -0.5), (11, 0.0), (12, 0.5)):
                        value = changed.get(row, 50.0) + more
                        values.append(Value(dataset, equal, row, seed, label, metric, value, value - 7, value + 7))
            values += [Value(dataset, equal, row, 10, "time shift", DISTANCE, 0.1, 0.09, 0.11) for row in "egjl"]
    return values


def verdicts(values: list[Value]) -> dict[int, str]:
    return {k: judge(Values(values))[0] for k, judge in enumerate(PREDICTIONS.values(), 1)}


def test_only_predictions_of_no_difference_hold_where_nothing_differs() -> None:
    found = verdicts(flat())
    assert {k for k, verdict in found.items() if verdict == "held"} == NO_DIFFERENCE
    assert set(found.values()) == {"held", "undecided"} and list(found) == list(range(1, 31))
    written = (ROOT / "docs" / "claim_predictions.md").read_text()
    assert all(re.search(rf"(?<![\d.]){k}\. ", written) for k in found) and "31. " not in written


def test_a_better_row_changes_the_verdicts() -> None:
    found = verdicts(flat(l=60.0))
    assert {k for k, verdict in found.items() if verdict == "held"} >= {2, 10, 11, 12, 17, 18, 29}
    assert {k for k, verdict in found.items() if verdict == "failed"} == {8, 13, 16, 20, 22, 28}
    assert verdicts(flat(l=40.0))[18] == "failed" and verdicts(flat(e=60.0))[1] == "held"
    assert verdicts(flat(e=57.0))[5] == "failed" and verdicts(flat(e=40.0))[5] == "held"  # "not above"
    farther = [each._replace(low=0.13, high=0.15) if each.row == "l" and each.metric == DISTANCE else each
               for each in flat()]  # fmt: skip
    assert verdicts(farther)[24] == "held"
    hidden = [each._replace(value=each.value + 9) if (each.row, each.metric) == ("l", LINEAR) else each
              for each in flat()]  # fmt: skip
    assert verdicts(hidden)[23] == "held"


def test_a_table_lists_what_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "values.csv"
    path.write_text(csv_text([Value._fields, *(each for each in flat(e=20.0) if each.dataset == SETS[3])]))
    lines = claim_predictions(ClaimPredictions((path,))).splitlines()
    judged = [int(line.split()[0]) for line in lines if re.match(r"\d+ .*(held|failed|undecided)$", line)]
    assert judged == [5, 11, 12, 18, 19, 20, 21, 23, 24]
    assert "+30.0" in next(line for line in lines if line.startswith("18 "))
    assert lines[-1].endswith("21 not measured, of 30")
    path.write_text("nothing,like,it\n1,2,3\n")
    with pytest.raises(UserError, match="values.csv of 'gdt study claim'"):
        read([path])


def test_values_are_those_of_the_records() -> None:
    (value,) = values_of("set", "videos", [ROW], [])
    metric = ROW.metrics["R@1"]
    assert value == Value(
        "set", "videos", ROW.preset, ROW.seed, ROW.label, "R@1", metric.value, metric.low, metric.high
    )


def cell(values: list[float]) -> str:
    """Values of several seeds in a table: mean (lowest–highest)."""
    spread = f" ({min(values):.1f}–{max(values):.1f})" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.1f}{spread}"


def test_the_page_says_what_the_published_values_say() -> None:
    lines = claim_predictions(ClaimPredictions((ROOT / "docs" / "claim.csv",))).splitlines()
    judged = {line.split()[0]: line.split()[-1] for line in lines if re.match(r"\d+ .*(held|failed|undecided)$", line)}
    written = (ROOT / "docs" / "claim_predictions.md").read_text()
    page = re.findall(r"^\| (\d+): .* \| \**(held|failed|undecided)\** \|$", written, re.M)
    assert dict(page) == judged and len(judged) > 5
    points = {line.split()[0]: found[0] for line in lines if (found := re.findall(r"[-+]\d+\.\d(?= \()", line))}
    assert all(
        re.search(rf"^\| {number}: .*\| {re.escape(value)} \(", written, re.M) for number, value in points.items()
    )
    runs: dict[tuple[str, ...], list[float]] = {}
    for each in read([ROOT / "docs" / "claim.csv"]):
        if (each.label, each.metric) in (("", LINEAR), ("", "R@1"), ("identity", "R@1")):
            same = each.equal if each.row in "aegj" else ""  # random weights and row l are the same at equal compute
            runs.setdefault((each.dataset, same, each.row, each.label, each.metric), []).append(each.value)
    cells = list(map(cell, runs.values()))
    written = (ROOT / "docs" / "claim.md").read_text()
    assert len(cells) > 90 and [cell for cell in cells if cell not in written] == []


def test_the_page_says_what_the_runs_with_more_compute_say() -> None:
    written, values = (ROOT / "docs" / "claim.md").read_text(), read([ROOT / "docs" / "claim_budgets.csv"])
    runs: dict[tuple[str, ...], list[float]] = {}
    for each in values:
        if (each.label, each.metric) in (("", LINEAR), ("", "R@1"), ("identity", "R@1")):
            runs.setdefault((each.row, each.dataset, each.label or "action", each.metric), []).append(each.value)
    lines = re.findall(r"^\| ([ejl]) \| [\d,]+ \| ([\d.]+) \| (\d+) \| (.*) \| (.*) \| (.*) \|$", written, re.M)
    assert len(lines) * 3 == len(runs)
    for row, compute, seeds, *cells in lines:
        for found, (label, metric) in zip(
            cells, (("action", LINEAR), ("action", "R@1"), ("identity", "R@1")), strict=True
        ):
            of = runs[row, compute, label, metric]
            assert (found, int(seeds)) == (cell(of), len(of)), (row, compute, label, metric)


def test_the_page_says_what_the_runs_on_the_second_set_say() -> None:
    written, values = (ROOT / "docs" / "claim.md").read_text(), read([ROOT / "docs" / "claim_second_set.csv"])
    for row in "ej":
        cells = [f"{row}, second set", "15.0", "10"]
        for label, metric in (("", LINEAR), ("", "R@1"), ("identity", "R@1")):
            of = [each.value for each in values if (each.row, each.label, each.metric) == (row, label, metric)]
            assert len(of) == 10
            cells.append(cell(of))
        assert f"| {' | '.join(cells)} |" in written


def test_the_page_says_what_the_runs_with_hue_jitter_say() -> None:
    written = (ROOT / "docs" / "claim_variations.md").read_text()
    runs: dict[tuple[str, ...], list[float]] = {}
    for each in read([ROOT / "docs" / "claim_hue.csv"]):
        if (each.label, each.metric) in (("", LINEAR), ("", "R@1"), ("identity", "R@1")):
            runs.setdefault((each.equal, each.row, each.label, each.metric), []).append(each.value)
    assert len(runs) == 12 and {len(of) for of in runs.values()} == {10}
    assert all(cell(of) in written for of in runs.values())
