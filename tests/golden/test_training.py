"""Plans, equal on every machine, and losses of short runs."""

from pathlib import Path

import pytest

from tests.conftest import few
from tests.golden import subject
from tests.golden.conftest import Golden, alike

CLOSE = alike(2e-3, moved=0.02)
"""SSE4.1, AVX2 and AVX-512 differ by up to 0.04 % and 0.7 %."""
EQUAL = alike(1e-9, losses=2e-7)
"""In float64, processors and ranks differ by rounding only; logged losses have the digits of float32."""


def test_plans(golden: Golden, drawn: tuple[Path, Path]) -> None:
    golden("plans", "hashes", {name: subject.planned(name, drawn[0]) for name in (*subject.NAMES, "more")})


@pytest.mark.parametrize("name", ["a", "e", "l", "three"])
def test_losses_without_dropout(golden: Golden, drawn: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    golden("losses", name, subject.train(subject.settings(name, *drawn, out=tmp_path)), CLOSE)


@pytest.mark.parametrize(
    "name", ["l", *(pytest.param(name, marks=pytest.mark.slow) for name in ("a", "e", "m", "three", "more"))]
)
def test_losses_with_dropout(golden: Golden, drawn: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    short = subject.settings(name, *drawn, dropout=0.3, lr=1e-5, steps=8, out=tmp_path)
    golden("losses-dropout", name, subject.train(short), CLOSE)


@pytest.mark.parametrize("name", ["a", "e", "l", "three"])
def test_losses_in_float64(golden: Golden, drawn: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    golden("float64", name, subject.train(subject.in_float64(name, *drawn, out=tmp_path)), EQUAL)


@pytest.mark.parametrize("world", few([1, 2, 4], 2))
def test_losses_in_float64_in_groups_on_ranks(
    golden: Golden, drawn: tuple[Path, Path], tmp_path: Path, world: int
) -> None:
    groups = {"group_size": 3}
    runs = [subject.in_float64(name, *drawn, out=tmp_path / name, **groups) for name in ("a", "e", "l")]
    for run, found in zip(runs, subject.train_on_ranks(runs, tmp_path, world), strict=True):
        golden("float64-groups", run.preset, found, EQUAL, exactly=world == 1)
