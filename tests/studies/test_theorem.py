"""The theorem on variance: formulas against enumerations, simulation against formulas, counts against a loop."""

from __future__ import annotations

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
from gdt.studies.theorem.contrasts import count_contrasts, mean_contrasts
from gdt.studies.theorem.report import DIRECT, DRAWN, SHARED, STRATIFIED, simulate
from gdt.studies.theorem.settings import Theorem
from gdt.studies.theorem.simulation import LOSSES, Population, first_order, fixed, random_population
from gdt.train.loss import gdt_loss
from tests.conftest import Run


def small_population(strata: int, values: int, temperature: float = 0.3) -> Population:
    return random_population(strata, values, temperature, np.random.default_rng(5))


def random_loss(strata: int, values: int) -> np.ndarray:
    """Not symmetric and without structure, so what holds for it holds for any loss."""
    return np.random.default_rng(6).exponential(size=(strata, values, strata, values))


def estimate_of(loss: np.ndarray, leaves: list[tuple[int, int]], k_v: int, k_i: int) -> float:
    """Estimate of one batch, pair by pair."""
    total = 0.0
    for one, other in permutations(leaves, 2):
        pairs = k_i * (k_i - 1) if one[0] == other[0] else k_i**2
        total += loss[(*one, *other)] / (pairs * k_v**2)
    return total


def every_batch(loss: np.ndarray, k_v: int, k_i: int) -> list[float]:
    strata, values = loss.shape[:2]
    return [
        estimate_of(loss, [(j, a) for j, of in zip(drawn, samples, strict=True) for a in of], k_v, k_i)
        for drawn in combinations(range(strata), k_v)
        for samples in product(combinations(range(values), k_i), repeat=k_v)
    ]


@pytest.mark.parametrize(
    ("strata", "values", "k_v", "k_i"),
    [(2, 3, 2, 2), (2, 5, 2, 3), (3, 3, 2, 2), (3, 4, 3, 2), (4, 4, 2, 2), (4, 4, 3, 2), (4, 3, 4, 2), (5, 4, 2, 3)],
)
def test_mean_and_variance_match_an_enumeration_of_all_batches(strata: int, values: int, k_v: int, k_i: int) -> None:
    population = small_population(strata, values)
    for loss in (random_loss(strata, values), fixed(population, k_v, k_i), first_order(population, k_v, k_i)):
        estimates = every_batch(loss, k_v, k_i)
        assert exact.expectation(exact.strata_of(loss), k_v) == pytest.approx(np.mean(estimates), rel=1e-9)
        assert exact.shared(loss, k_v, k_i) == pytest.approx(np.var(estimates), rel=1e-9)


def test_proof_variances_match_an_enumeration_of_all_pairs() -> None:
    loss, k_i = random_loss(3, 4), 2
    of_stratum = {
        (j, k): [loss[j, a, k, b] for a, b in product(range(4), repeat=2) if (j, a) != (k, b)]
        for j, k in product(range(3), repeat=2)
    }
    strata = exact.strata_of(loss)
    for (j, k), values in of_stratum.items():
        assert (strata.mean[j, k], strata.variance[j, k]) == pytest.approx((np.mean(values), np.var(values)))
    expected = sum(np.var(values) / k_i**2 for values in of_stratum.values()) / 3**4
    assert exact.stratified(strata, 3, k_i) == pytest.approx(expected)
    # a pair of strata, then a pair in it: second moment minus squared mean, over the number of pairs
    mean = np.mean([np.mean(values) for values in of_stratum.values()])
    second = np.mean([np.mean(np.square(values)) for values in of_stratum.values()])
    assert exact.direct(strata, k_i) == pytest.approx((second - mean**2) / (9 * k_i**2))
    assert exact.expectation(strata, 3) == pytest.approx(mean)


def test_statement_and_proof_differ_by_the_documented_factors() -> None:
    """K_V^2 and K_V^2 K_I^2, term by term."""
    even = exact.Strata(np.ones((3, 3)), np.full((3, 3), 2.0))
    assert exact.direct_as_stated(even, 4) == pytest.approx(9 * exact.direct(even, 4))
    uneven = exact.Strata(np.arange(9.0).reshape(3, 3), np.zeros((3, 3)))
    assert exact.direct_as_stated(uneven, 4) == pytest.approx(9 * 16 * exact.direct(uneven, 4))


@pytest.mark.parametrize(("n", "k"), [(3, 2), (4, 2), (4, 3), (5, 4), (6, 3), (4, 4)])
def test_u_statistic_matches_an_enumeration(n: int, k: int) -> None:
    kernel = np.random.default_rng(1).normal(size=(n, n))
    kernel += kernel.T
    means = [np.mean([kernel[pair] for pair in combinations(some, 2)]) for some in combinations(range(n), k)]
    assert exact.u_statistic(kernel, k) == pytest.approx(np.var(means), abs=1e-12)


def test_denominator_is_the_mean_over_batches_with_the_sample() -> None:
    population, k_v, k_i = small_population(3, 4), 2, 3
    loss = fixed(population, k_v, k_i)
    e = np.exp(population.similarity / population.temperature)
    sums = [
        sum(e[0, 1, 0, a] for a in mine if a != 1) + sum(e[0, 1, other, a] for a in theirs)
        for other in (1, 2)
        for mine in combinations(range(4), k_i) if 1 in mine
        for theirs in combinations(range(4), k_i)
    ]  # fmt: skip
    expected = np.log(np.mean(sums)) - population.similarity[0, 1, 0, 2] / population.temperature
    assert loss[0, 1, 0, 2] == pytest.approx(expected)
    assert not loss[0, :, 1].any()  # c = 0
    for strata in (2, 3):  # the first order has the same mean
        means = [exact.expectation(exact.strata_of(of(population.first(strata), 2, k_i)), 2) for of in LOSSES.values()]
        assert means[0] == pytest.approx(means[1])


def test_equation_1_equals_the_training_loss() -> None:
    population, k_v, k_i = small_population(4, 5), 3, 3
    (estimate,) = simulation.equation_1(population, k_v, k_i, 1, np.random.default_rng(8))
    leaves = simulation.leaf_numbers(4, 5, k_v, k_i, 1, np.random.default_rng(8))[0]
    gram = population.similarity.reshape(20, 20)[np.ix_(leaves, leaves)]
    values, vectors = np.linalg.eigh(gram)
    embeddings = torch.from_numpy(vectors * np.sqrt(values.clip(0)))  # embeddings with this Gram matrix
    composition = parse(f"video:d time_shift:i:{k_i} augmentation:i:1", k_v)
    table = {name: np.arange(9) for name in ("leaf", "augmentation")}
    table |= {"video": leaves // 5, "time_shift": leaves % 5}
    columns = {name: torch.from_numpy(values) for name, values in table.items()}
    expected = gdt_loss(embeddings, columns, composition.factors, population.temperature)
    assert estimate * k_v == pytest.approx(float(expected), rel=1e-6)


def test_batches_of_the_tree_have_the_derived_variance() -> None:
    """K_V videos with K_I time shifts each, drawn as in training, pairs chosen by the composition's c and w."""
    strata, values, k_v, k_i, n = 6, 5, 3, 2, 4000
    loss = random_loss(strata, values)
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
    # and so do the vectorised batches
    assert simulation.variance(simulation.shared(loss, k_v, k_i, n, np.random.default_rng(0)), 3).holds(derived)


def test_simulation_agrees_with_the_derived_variance_and_not_with_the_papers() -> None:
    found = simulate(Theorem(k_v=(2, 5), k_i=(2, 4), videos=8, values=7, batches=2000, presets=("e",), seed=1))
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
    assert all(direct[size].derived >= gdt[size].derived for size in gdt)  # the theorem
    for one in found.estimates:
        if one.loss not in LOSSES:  # own denominator
            assert one.mean.high < one.exact


def test_variance_interval_covers_for_skewed_estimates() -> None:
    rng = np.random.default_rng(0)
    misses = sum(not simulation.variance(rng.exponential(size=2000), 1.96).holds(1) for _ in range(300))
    assert 3 <= misses <= 35  # of 300; a chi-square interval would miss about 120


@pytest.mark.parametrize("preset", ["a", "d", "e", "g", "l", "m", "three"])
def test_contrasts_match_a_loop_over_all_pairs(preset: str) -> None:
    composition = presets.composition(preset, 5)
    draw = Draw(3, 0, 0)
    columns = sample(composition.factors, toy(composition).source, draw.generator(), draw)
    if "time_shift" in columns:
        columns["time_shift"] %= 3  # many coincidences
    names = [factor.name for factor in composition.factors]
    w = weight(composition.factors, columns, columns)
    required_names = {factor.name for factor in composition.factors if factor.weight.value == "differs"}
    expected = {factor.name: [0] * 5 for factor in composition.factors if factor.k > 1}
    for i, j in permutations(range(len(columns["leaf"])), 2):
        differ = {name for name in names if columns[name][i] != columns[name][j]}
        for name, count in expected.items():
            nearly = differ - ({"augmentation"} - {name}) == {name}
            with_required = differ - ({"augmentation"} - {name}) == {name} | required_names
            for k, true in enumerate((name in differ, differ == {name}, nearly, nearly and w[i, j], with_required)):
                count[k] += bool(true)
            assert w[i, j] or not with_required
    assert count_contrasts(composition, columns) == expected


def test_factors_drawn_anew_in_every_branch_are_rarely_contrasted_alone() -> None:
    found = {one.factor.split(":")[0]: one for one in mean_contrasts("l", presets.composition("l", 64), 0)}
    leaves = 64 * 8
    # videos: only where two start frames agree by chance; factors sampled exhaustively below: one pair per leaf
    assert found["video"].nearly < 0.01 * found["video"].differ
    assert found["time_shift"].nearly == found["modality"].nearly == found["time_reversal"].nearly == leaves
    assert found["modality"].weighted == leaves and found["time_shift"].weighted == 0  # w requires two modalities
    assert all(one.only == 0 for one in found.values())  # every leaf is augmented on its own


def test_command_writes_table_numbers_and_plot(command: Run, tmp_path) -> None:
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
    assert len(found["estimates"]) == 2 * 9
    assert {one["preset"] for one in found["contrasts"]} == {"d", "e"}
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert Image.open(out / "theorem.png").width > 1000


def test_seed_and_size_alone_determine_an_estimate() -> None:
    few = Theorem(k_v=(2,), k_i=(2,), videos=3, values=3, batches=100, presets=("e",), batch_size=8)
    one, same, other = (simulate(settings) for settings in (few, few, replace(few, seed=1)))
    assert (one.estimates, one.contrasts) == (same.estimates, same.contrasts)
    assert one.estimates != other.estimates and one.contrasts != other.contrasts
    more = simulate(replace(few, k_i=(2, 3), values=4))
    alone = simulate(replace(few, values=4))
    assert [x.mean.value for x in more.estimates[:9]] == [x.mean.value for x in alone.estimates]  # for any other sizes


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--k-v 0", "--k-v contains 0; it must be 2 or more; otherwise there is no negative pair"),
        ("--k-i 1", "--k-i contains 1; it must be 2 or more; otherwise there is no positive pair"),
        ("--k-v 4 4", "--k-v is 4 4; it must be one or more different numbers"),
        ("--videos 8", "the population is too small: --videos is 8 and --k-v contains 8; set --videos to 9 or more"),
        ("--values 5", "the population is too small: --values is 5 and --k-i contains 8; set --values to 9 or more"),
        ("--videos 1000 --values 10", "is a population of 10000 samples, above the limit of 4096; lower them"),
        ("--temperature 0", "--temperature is 0.0; it must be 0.01 or more"),
        ("--temperature nan", "--temperature is nan"),
        ("--batches 5", "--batches is 5; it must be 100 or more"),
        ("--presets z", "unknown preset 'z'; 'gdt pretrain --preset help' lists them"),
        ("--batch-size 1", "--batch-size is 1; it must be 2 or more"),
        ("--seed -1", "--seed is -1; it must be 0 or more"),
    ],
)
def test_invalid_settings_are_one_sentence(typed: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        settings_of(["theorem", *typed.split()], COMMANDS)
    assert "\n" not in str(error.value)


def test_settings_are_options() -> None:
    assert settings_of(["theorem", "--k-v", "3"], COMMANDS) == Theorem(k_v=(3,))
