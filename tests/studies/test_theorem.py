"""The theorem on variance: formulas against every batch there is, simulation against them, counts against a loop."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import pytest
import torch
from PIL import Image

from gdt.common.errors import UserError
from gdt.eval.command import settings_of
from gdt.eval.show_tree import toy
from gdt.pipeline import presets
from gdt.pipeline.composition import contrast, weight
from gdt.pipeline.notation import parse
from gdt.pipeline.transformations.base import Draw, Source
from gdt.pipeline.tree import sample
from gdt.studies.command import COMMANDS
from gdt.studies.theorem import exact, simulation
from gdt.studies.theorem.contrasts import contrasts, counted
from gdt.studies.theorem.population import LOSSES, Population, first_order, fixed, made_up
from gdt.studies.theorem.report import DIRECT, DRAWN, SHARED, STRATIFIED, findings
from gdt.studies.theorem.settings import Theorem
from gdt.train.loss import gdt_loss
from tests.conftest import Run


def population(strata: int, values: int, temperature: float = 0.3) -> Population:
    return made_up(strata, values, temperature, np.random.default_rng(5))


def any_loss(strata: int, values: int) -> np.ndarray:
    """Not symmetric, of no structure: what holds for it holds for any."""
    return np.random.default_rng(6).exponential(size=(strata, values, strata, values))


def of_batch(loss: np.ndarray, leaves: list[tuple[int, int]], k_v: int, k_i: int) -> float:
    """The estimate of one batch, pair by pair."""
    total = 0.0
    for one, other in permutations(leaves, 2):
        pairs = k_i * (k_i - 1) if one[0] == other[0] else k_i**2
        total += loss[(*one, *other)] / (pairs * k_v**2)
    return total


def every_batch(loss: np.ndarray, k_v: int, k_i: int) -> list[float]:
    strata, values = loss.shape[:2]
    return [
        of_batch(loss, [(j, a) for j, of in zip(drawn, samples, strict=True) for a in of], k_v, k_i)
        for drawn in combinations(range(strata), k_v)
        for samples in product(combinations(range(values), k_i), repeat=k_v)
    ]


@pytest.mark.parametrize(
    ("strata", "values", "k_v", "k_i"),
    [(2, 3, 2, 2), (2, 5, 2, 3), (3, 3, 2, 2), (3, 4, 3, 2), (4, 4, 2, 2), (4, 4, 3, 2), (4, 3, 4, 2), (5, 4, 2, 3)],
)
def test_mean_and_variance_are_those_of_every_batch_there_is(strata: int, values: int, k_v: int, k_i: int) -> None:
    people = population(strata, values)
    for loss in (any_loss(strata, values), fixed(people, k_v, k_i), first_order(people, k_v, k_i)):
        estimates = every_batch(loss, k_v, k_i)
        assert exact.expectation(exact.strata_of(loss), k_v) == pytest.approx(np.mean(estimates), rel=1e-9)
        assert exact.shared(loss, k_v, k_i) == pytest.approx(np.var(estimates), rel=1e-9)


def test_the_variance_of_the_proof_is_that_of_every_pair_there_is() -> None:
    loss, k_i = any_loss(3, 4), 2
    of_stratum = {
        (j, k): [loss[j, a, k, b] for a, b in product(range(4), repeat=2) if (j, a) != (k, b)]
        for j, k in product(range(3), repeat=2)
    }
    strata = exact.strata_of(loss)
    for (j, k), values in of_stratum.items():
        assert (strata.mean[j, k], strata.variance[j, k]) == pytest.approx((np.mean(values), np.var(values)))
    expected = sum(np.var(values) / k_i**2 for values in of_stratum.values()) / 3**4
    assert exact.stratified(strata, 3, k_i) == pytest.approx(expected)
    # a pair of strata, then a pair in it: the second moment less the square of the mean, over the number of pairs
    mean = np.mean([np.mean(values) for values in of_stratum.values()])
    second = np.mean([np.mean(np.square(values)) for values in of_stratum.values()])
    assert exact.direct(strata, k_i) == pytest.approx((second - mean**2) / (9 * k_i**2))
    assert exact.expectation(strata, 3) == pytest.approx(mean)


def test_the_statement_of_the_theorem_counts_direct_samplings_pairs_too_few() -> None:
    """What the two print differs by K_V^2 and by K_V^2 K_I^2, term by term."""
    even = exact.Strata(np.ones((3, 3)), np.full((3, 3), 2.0))
    assert exact.direct_as_stated(even, 4) == pytest.approx(9 * exact.direct(even, 4))
    uneven = exact.Strata(np.arange(9.0).reshape(3, 3), np.zeros((3, 3)))
    assert exact.direct_as_stated(uneven, 4) == pytest.approx(9 * 16 * exact.direct(uneven, 4))


@pytest.mark.parametrize(("n", "k"), [(3, 2), (4, 2), (4, 3), (5, 4), (6, 3), (4, 4)])
def test_a_u_statistic_of_a_few_things(n: int, k: int) -> None:
    kernel = np.random.default_rng(1).normal(size=(n, n))
    kernel += kernel.T
    means = [np.mean([kernel[pair] for pair in combinations(some, 2)]) for some in combinations(range(n), k)]
    assert exact.u_statistic(kernel, k) == pytest.approx(np.var(means), abs=1e-12)


def test_the_denominator_is_the_mean_over_the_batches_that_hold_a_sample() -> None:
    people, k_v, k_i = population(3, 4), 2, 3
    loss = fixed(people, k_v, k_i)
    e = np.exp(people.similarity / people.temperature)
    sums = [
        sum(e[0, 1, 0, a] for a in mine if a != 1) + sum(e[0, 1, other, a] for a in theirs)
        for other in (1, 2)
        for mine in combinations(range(4), k_i) if 1 in mine
        for theirs in combinations(range(4), k_i)
    ]  # fmt: skip
    expected = np.log(np.mean(sums)) - people.similarity[0, 1, 0, 2] / people.temperature
    assert loss[0, 1, 0, 2] == pytest.approx(expected)
    assert not loss[0, :, 1].any()  # c = 0
    for strata in (2, 3):  # the first order has the same mean
        means = [exact.expectation(exact.strata_of(of(people.first(strata), 2, k_i)), 2) for of in LOSSES.values()]
        assert means[0] == pytest.approx(means[1])


def test_equation_1_is_that_of_training() -> None:
    people, k_v, k_i = population(4, 5), 3, 3
    (estimate,) = simulation.equation_1(people, k_v, k_i, 1, np.random.default_rng(8))
    leaves = simulation.leaf_numbers(4, 5, k_v, k_i, 1, np.random.default_rng(8))[0]
    gram = people.similarity.reshape(20, 20)[np.ix_(leaves, leaves)]
    values, vectors = np.linalg.eigh(gram)
    embeddings = torch.from_numpy(vectors * np.sqrt(values.clip(0)))  # whose products are these
    composition = parse(f"video:d time_shift:i:{k_i} augmentation:i:1", k_v)
    table = {name: np.arange(9) for name in ("leaf", "augmentation")}
    table |= {"video": leaves // 5, "time_shift": leaves % 5}
    columns = {name: torch.from_numpy(values) for name, values in table.items()}
    expected = gdt_loss(embeddings, columns, composition.factors, people.temperature)
    assert estimate * k_v == pytest.approx(float(expected), rel=1e-6)


def test_batches_of_the_real_tree_have_the_derived_variance() -> None:
    """K_V videos and K_I time shifts of each, drawn as in training, pairs chosen by the real c and w."""
    strata, values, k_v, k_i, n = 6, 5, 3, 2, 4000
    loss = any_loss(strata, values)
    factors = parse(f"video:d time_shift:i:{k_i} augmentation:i:1", k_v).factors
    source = Source(np.arange(strata), np.full(strata, values), 30)
    estimates = np.empty(n)
    for epoch in range(n):
        draw = Draw(0, epoch, 0)
        columns = sample(factors, source, draw.generator(), draw)
        c, w = contrast(factors, columns, columns), weight(factors, columns, columns)
        rows = columns["video"] * values + columns["time_shift"]
        losses = loss.reshape(strata * values, -1)[rows[:, None], rows]
        estimates[epoch] = losses[c & w].mean() / k_v + losses[~c].mean() * (1 - 1 / k_v)
    assert simulation.mean(estimates, 3).holds(exact.expectation(exact.strata_of(loss), k_v))
    derived = exact.shared(loss, k_v, k_i)
    assert simulation.variance(estimates, 3).holds(derived)
    # and those simulated all at once have it, too
    assert simulation.variance(simulation.shared(loss, k_v, k_i, n, np.random.default_rng(0)), 3).holds(derived)


def test_simulation_agrees_with_what_holds_and_not_with_the_papers_formula_in_batches() -> None:
    found = findings(Theorem(k_v=(2, 5), k_i=(2, 4), videos=8, values=7, batches=2000, presets=("e",), seed=1))
    held = [one for one in found.estimates if one.loss in LOSSES]
    assert len(held) == 4 * 2 * 4 and len(found.estimates) == len(held) + 4
    for one in held:
        assert one.mean.holds(one.exact) and one.bias.holds(0), one
        assert one.variance.holds(one.derived), one
        assert one.variance.holds(one.paper) == (one.sampling == STRATIFIED), one
        if one.sampling in (SHARED, DRAWN):
            assert one.variance.low > 1.2 * one.paper
        if one.sampling == DIRECT:
            assert one.variance.high < one.paper / 2
    direct, gdt = ({(o.loss, o.k_v, o.k_i): o for o in held if o.sampling == name} for name in (DIRECT, STRATIFIED))
    assert all(direct[size].derived >= gdt[size].derived for size in gdt)  # what the theorem says
    for one in found.estimates:
        if one.loss not in LOSSES:  # the denominator is no matter of pairs
            assert one.mean.high < one.exact


def test_an_interval_knows_that_estimates_are_not_normal() -> None:
    rng = np.random.default_rng(0)
    misses = sum(not simulation.variance(rng.exponential(size=2000), 1.96).holds(1) for _ in range(300))
    assert 3 <= misses <= 35  # of 300; chi-square's would miss about 120


@pytest.mark.parametrize("preset", ["a", "d", "e", "g", "l", "m", "three"])
def test_contrasts_are_those_of_a_loop_over_all_pairs(preset: str) -> None:
    composition = presets.composition(preset, 5)
    draw = Draw(3, 0, 0)
    columns = sample(composition.factors, toy(composition).source, draw.generator(), draw)
    for name in columns.keys() - {"leaf"}:  # many coincidences
        if name == "time_shift":
            columns[name] = columns[name] % 3
    names = [factor.name for factor in composition.factors]
    w = weight(composition.factors, columns, columns)
    asked = {factor.name for factor in composition.factors if factor.weight.value == "differs"}
    expected = {factor.name: [0] * 5 for factor in composition.factors if factor.k > 1}
    for i, j in permutations(range(len(columns["leaf"])), 2):
        differ = {name for name in names if columns[name][i] != columns[name][j]}
        for name, count in expected.items():
            but_for = differ - ({"augmentation"} - {name}) == {name}
            beside = differ - ({"augmentation"} - {name}) == {name} | asked
            for k, true in enumerate((name in differ, differ == {name}, but_for, but_for and w[i, j], beside)):
                count[k] += bool(true)
            assert w[i, j] or not beside
    for one in contrasts(preset, composition, columns):
        assert [one.differ, one.alone, one.but_for, one.weighed, one.beside] == expected.pop(one.factor), one
        assert one.never_agree == ("augmentation",)
    assert not expected


def test_what_is_drawn_anew_in_every_branch_is_hardly_ever_contrasted_alone() -> None:
    found = {one.factor: one for one in counted("l", presets.composition("l", 64), 0)}
    leaves = 64 * 8
    # of videos only where two start frames agree by chance; of what is exhausted below, every leaf has one
    assert found["video"].but_for < 0.01 * found["video"].differ
    assert found["time_shift"].but_for == found["modality"].but_for == found["time_reversal"].but_for == leaves
    assert (
        found["modality"].weighed == leaves and found["time_shift"].weighed == 0
    )  # only pairs of two modalities count
    assert all(one.alone == 0 for one in found.values())  # every leaf is augmented on its own


def test_the_command_writes_what_it_says(command: Run, tmp_path) -> None:
    small = ("--k-v", 2, "--k-i", 2, 3, "--videos", 4, "--values", 5, "--batches", 200, "--presets", "e", "d",
             "--batch-size", 8)  # fmt: skip
    done = command("study", "theorem", *small)
    assert done.returncode == 0, done.stderr
    for words in ("L: 8 of 8 within the intervals; the proof's variance: 8 of 8 within", "Single-factor contrasts",
                  "the paper's variance: 0 of 8 within"):  # fmt: skip
        assert words in done.stdout
    out = tmp_path / "runs" / "theorem"
    assert (out / "table.txt").read_text() in done.stdout
    found = json.loads((out / "results.json").read_text())
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert len(found["estimates"]) == len(rows) == 2 * 9
    assert float(rows[0]["variance_low"]) == found["estimates"][0]["variance"][1]
    assert {row["composition"] for row in csv.DictReader((out / "contrasts.csv").open())} == {"d", "e"}
    assert Image.open(out / "theorem.png").width > 1000


def test_the_seed_decides_everything() -> None:
    few = Theorem(k_v=(2,), k_i=(2,), videos=3, values=3, batches=100, presets=("e",), batch_size=8)
    one, same, other = (findings(settings) for settings in (few, few, replace(few, seed=1)))
    assert (one.estimates, one.contrasts) == (same.estimates, same.contrasts)
    assert one.estimates != other.estimates and one.contrasts != other.contrasts
    more = findings(replace(few, k_i=(2, 3), values=4))
    alone = findings(replace(few, values=4))
    assert [o.mean.value for o in more.estimates[:9]] == [
        o.mean.value for o in alone.estimates
    ]  # whatever else is asked


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--k-v 0", "--k-v has 0; it must be 2 or more, or there is no negative pair"),
        ("--k-i 1", "--k-i has 1; it must be 2 or more, or there is no positive pair"),
        ("--k-v 4 4", "--k-v is 4 4; it must be one or more different numbers"),
        ("--videos 8", "the population is too small: --videos is 8 and --k-v has 8, .* set --videos to 9 or more"),
        ("--values 5", "the population is too small: --values is 5 and --k-i has 8, .* set --values to 9 or more"),
        ("--videos 1000 --values 10", "are 10000 samples, more than the 4096"),
        ("--temperature 0", "--temperature is 0.0; it must be 0.01 or more"),
        ("--temperature nan", "--temperature is nan"),
        ("--batches 5", "--batches is 5; it must be 100 or more"),
        ("--presets z", "there is no preset 'z'; choose one of a, b"),
        ("--batch-size 1", "--batch-size is 1; it must be 2 or more"),
        ("--seed -1", "--seed is -1; it must be 0 or more"),
    ],
)
def test_mistakes_are_one_sentence(typed: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as told:
        settings_of(["theorem", *typed.split()], COMMANDS)
    assert "\n" not in str(told.value)


def test_settings_are_options() -> None:
    assert settings_of(["theorem", "--k-v", "3"], COMMANDS) == Theorem(k_v=(3,))
