"""`gdt study theorem`: simulation against formulas, counts of contrasts; a table, numbers and a plot."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from gdt.common import serialization
from gdt.common.files import write_text
from gdt.eval.drawing import save
from gdt.eval.tables import layout
from gdt.pipeline import presets
from gdt.studies.theorem import exact, simulation
from gdt.studies.theorem.contrasts import Contrasts, mean_contrasts
from gdt.studies.theorem.settings import Theorem
from gdt.studies.theorem.simulation import LOSSES, OWN, Interval, Population, first_order, random_population
from gdt.train.provenance import git_commit

DIRECT, STRATIFIED, SHARED, DRAWN = "direct", "independent pairs", "shared samples", "drawn strata"
SAMPLINGS = {
    DIRECT: "direct sampling",
    STRATIFIED: "GDT as in the proof:\nindependent pairs",
    SHARED: "GDT as the tree draws:\npairs share samples",
    DRAWN: "a real batch: pairs share\nsamples, strata are drawn",
}
"""Ways to sample, and their titles in the plot."""
_COLOURS = {**dict(zip(LOSSES, ("#1f4e79", "#e08a3c"), strict=True)), OWN: "#7a7a7a"}
_ERROR_RATE = 0.05
"""Probability that at least one interval misses its number, if all formulas hold."""


@dataclass(frozen=True)
class Estimate:
    """One estimate of L at one size: simulated, and by formulas."""

    loss: str
    """A name of LOSSES, or OWN for equation 1 itself."""
    sampling: str
    """A name of SAMPLINGS."""
    k_v: int
    k_i: int
    exact: float
    """L, from all pairs of the population."""
    mean: Interval
    variance: Interval
    derived: float
    """Variance by the proof, or by docs/theorem.md where samples are shared; for OWN to first order."""
    paper: float
    """Variance by the statement of the theorem."""
    direct: float | None
    """Variance of as many pairs drawn directly, by the proof; None where strata are drawn, which it does not cover."""

    @property
    def size(self) -> str:
        return f"{self.k_v}×{self.k_i}"

    @property
    def bias(self) -> Interval:
        """Percent of L."""
        return Interval(*(100 * (x - self.exact) / abs(self.exact) for x in self.mean))

    def times(self, variance: float) -> Interval:
        """The simulated variance as a multiple of another."""
        return Interval(*(x / variance for x in self.variance))

    @property
    def equal_pairs(self) -> float:
        """The derived variance as a multiple of direct sampling's with as many pairs."""
        return self.derived / (self.direct or np.nan)

    @property
    def equal_samples(self) -> float:
        """The same with as many embedded samples; direct sampling embeds two per pair."""
        return self.equal_pairs / (2 * self.k_v * self.k_i)


@dataclass(frozen=True)
class Findings:
    """All numbers of a run."""

    settings: Theorem
    command: str
    commit: str
    standard_errors: float
    """Half the width of the intervals, in standard errors."""
    estimates: list[Estimate]
    contrasts: list[Contrasts]


def theorem(settings: Theorem) -> str:
    """Simulate and count; write table, numbers and plot; return the table."""
    settings.out.mkdir(parents=True, exist_ok=True)
    sizes = len(settings.k_v) * len(settings.k_i)
    print(f"{sizes} sizes, {settings.batches} batches each, {len(LOSSES)} losses, {len(SAMPLINGS)} ways to sample")
    findings = simulate(settings)
    text = "\n".join([*_estimate_lines(findings), "", *_contrast_lines(findings)])
    write_text(settings.out / "table.txt", text + "\n")
    write_text(settings.out / "results.json", serialization.to_json(findings, indent=2) + "\n")
    save(plot(findings.estimates), settings.out / "theorem.png")
    return f"\n{text}\n\ntable.txt, results.json and theorem.png are in {settings.out}/"


def simulate(settings: Theorem) -> Findings:
    """All numbers, a function of the settings."""
    sizes = list(product(settings.k_v, settings.k_i))
    comparisons = 2 * len(LOSSES) * len(SAMPLINGS) * len(sizes)  # a bias and a variance each
    z = float(stats.norm.isf(_ERROR_RATE / (2 * comparisons)))
    rng = np.random.default_rng([settings.seed])
    population = random_population(settings.videos, settings.values, settings.temperature, rng)
    estimates = [one for size in sizes for one in _estimates(population, *size, settings, z)]
    contrasts = [
        one
        for name in settings.presets
        for one in mean_contrasts(name, presets.composition(name, settings.batch_size), settings.seed)
    ]
    return Findings(settings, " ".join(sys.orig_argv), git_commit(), z, estimates, contrasts)


def _estimates(population: Population, k_v: int, k_i: int, settings: Theorem, z: float) -> Iterator[Estimate]:
    """Estimates of one size: every loss sampled in every way, and equation 1 itself."""
    n = settings.batches

    def generator(number: int) -> np.random.Generator:
        return np.random.default_rng([settings.seed, number, k_v, k_i])  # a size does not depend on the others

    def intervals(estimates: np.ndarray) -> tuple[Interval, Interval]:
        return simulation.mean(estimates, z), simulation.variance(estimates, z)

    def estimate_drawn(name: str, loss: np.ndarray, estimates: np.ndarray) -> Estimate:
        strata = exact.strata_of(loss)
        mean, paper = exact.expectation(strata, k_v), exact.stratified(strata, k_v, k_i)
        return Estimate(
            name, DRAWN, k_v, k_i, mean, *intervals(estimates), exact.shared(loss, k_v, k_i), paper, None
        )  # fmt: skip

    for number, (name, loss_of) in enumerate(LOSSES.items()):
        loss = loss_of(population.first(k_v), k_v, k_i)  # the theorem takes the batch's strata to be all there are
        strata = exact.strata_of(loss)
        direct, gdt = exact.direct(strata, k_i), exact.stratified(strata, k_v, k_i)
        stated, of_batch = exact.direct_as_stated(strata, k_i), exact.shared(loss, k_v, k_i)
        size = (k_v, k_i, exact.expectation(strata, k_v))
        found = intervals(simulation.direct(loss, k_i, n, generator(10 * number)))
        yield Estimate(name, DIRECT, *size, *found, direct, stated, direct)
        found = intervals(simulation.stratified(loss, k_i, n, generator(10 * number + 1)))
        yield Estimate(name, STRATIFIED, *size, *found, gdt, gdt, direct)
        found = intervals(simulation.shared(loss, k_v, k_i, n, generator(10 * number + 2)))
        yield Estimate(name, SHARED, *size, *found, of_batch, gdt, direct)
        loss = loss_of(population, k_v, k_i)
        yield estimate_drawn(name, loss, simulation.shared(loss, k_v, k_i, n, generator(10 * number + 3)))
    own = simulation.equation_1(population, k_v, k_i, n, generator(99))
    yield estimate_drawn(OWN, first_order(population, k_v, k_i), own)


def _estimate_lines(findings: Findings) -> list[str]:
    """Tables of all estimates, and what holds."""
    own = [one for one in findings.estimates if one.loss == OWN]
    pairwise = [one for name in LOSSES for one in findings.estimates if one.loss == name]
    direct, gdt, shared, drawn = ([one for one in pairwise if one.sampling == name] for name in SAMPLINGS)
    gains = [one.derived / other.derived for one, other in zip(direct, gdt, strict=True)]
    return [
        "Direct sampling, independent pairs as in the proof:", "", _table(direct), "",
        "GDT, independent pairs as in the proof:", "", _table(gdt), "",
        _agreement([*direct, *gdt], "the proof's"),
        f"the statement's variance of direct sampling: {_within(direct)} within",
        f"direct sampling has {_range(gains)} times the variance of GDT", "",
        "GDT as the tree draws, pairs share samples; all strata are in every batch:", "", _table(shared), "",
        "A real batch, which also draws its strata:", "", _table(drawn), "",
        _agreement([*shared, *drawn], "the derived"),
        f"the paper's variance: {_within([*shared, *drawn])} within; the simulated one is "
        f"{_range([one.times(one.paper).value for one in (*shared, *drawn)])} times it",
        "with all strata in every batch, the variance relative to direct sampling is",
        f"{_range([one.equal_pairs for one in shared])} with as many pairs, "
        f"{_range([one.equal_samples for one in shared])} with as many samples embedded", "",
        "Equation 1 with each batch's own denominator, drawn strata; `derived` is its first order:", "",
        _table(own), "",
        f"bias: % of L; intervals: 95 % for all {2 * len(pairwise)} comparisons together "
        f"({findings.standard_errors:.2f} standard errors);",
        "!: outside; derived: by the proof or, where samples are shared, docs/theorem.md; paper's: as stated;",
        "pairs, samples: derived / the variance of direct sampling with as many pairs or samples",
    ]  # fmt: skip


def _table(estimates: Sequence[Estimate]) -> str:
    heads = ["loss", "K_V×K_I", "bias", "V/derived", "V/paper's", "pairs", "samples"]
    cells = []
    for one in estimates:
        bias, ratio, paper = one.bias, one.times(one.derived), one.times(one.paper).value
        cells.append([
            one.loss, one.size, f"{bias.value:+.2f} ± {(bias.high - bias.low) / 2:.2f}{'' if bias.holds(0) else ' !'}",
            f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f}){'' if ratio.holds(1) else ' !'}", f"{paper:.3g}",
            *(f"{x:.3g}" if one.direct else "" for x in (one.equal_pairs, one.equal_samples)),
        ])  # fmt: skip
    return layout([heads, *cells])


def _agreement(estimates: Sequence[Estimate], whose: str) -> str:
    unbiased = sum(one.mean.holds(one.exact) for one in estimates)
    explained = sum(one.variance.holds(one.derived) for one in estimates)
    n = len(estimates)
    return f"L: {unbiased} of {n} within the intervals; {whose} variance: {explained} of {n} within"


def _within(estimates: Sequence[Estimate]) -> str:
    return f"{sum(one.variance.holds(one.paper) for one in estimates)} of {len(estimates)}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2g} to {max(values):.2g}"


def _contrast_lines(findings: Findings) -> list[str]:
    """The table of section A.1.3."""
    heads = ["preset", "factor", "differ", "only", "only*", "w = 1", "required"]
    cells = []
    for one in findings.contrasts:
        counts = (one.differ, one.only, one.nearly, one.weighted, one.required)
        cells.append([one.preset, one.factor, *(f"{x:,.0f}" if x == int(x) else f"{x:,.1f}" for x in counts)])
    return [
        "Single-factor contrasts (section A.1.3): ordered pairs, means over batches of "
        f"{findings.settings.batch_size} videos", "", layout([heads, *cells]), "",
        "differ: pairs that differ in the factor; only: pairs that differ in no other factor",
        "only*: as only, but ignoring factors in which all leaves differ, such as augmentation",
        "w = 1: pairs of only* that the loss uses",
        "required: pairs with w = 1 that differ only in the factor and in those with :differs (as only*)",
    ]  # fmt: skip


def plot(estimates: Sequence[Estimate]) -> Figure:
    """Variances as multiples of the theorem's for GDT, and biases; a column of panels per way to sample."""
    gdt_variance = {(one.loss, one.size): one.paper for one in estimates if one.sampling == STRATIFIED}
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    panels = figure.subplots(2, len(SAMPLINGS), sharex="col")
    for above, below in panels.T[2:]:
        above.sharey(panels[0, 1])  # not with direct sampling
        below.sharey(panels[1, 1])
    for (above, below), (sampling, title) in zip(panels.T, SAMPLINGS.items(), strict=True):
        shown = [one for one in estimates if one.sampling == sampling]
        sizes = list(dict.fromkeys(one.size for one in shown))
        above.set_title(title, fontsize=9)
        above.axhline(1, color="black", linewidth=0.8)
        below.axhline(0, color="black", linewidth=0.8)
        below.set_xticks(range(len(sizes)), sizes, fontsize=7)
        below.set_xlabel("K_V × K_I", fontsize=8)
        for k, (loss, colour) in enumerate(_COLOURS.items()):
            if own := [one for one in shown if one.loss == loss]:
                x = np.arange(len(own)) + 0.2 * (k - 1)
                unit = [gdt_variance[loss, one.size] if sampling == DIRECT else one.paper for one in own]
                times = [one.times(variance) for one, variance in zip(own, unit, strict=True)]
                for axes, values in ((above, times), (below, [one.bias for one in own])):
                    middle, low, high = np.array(values).T
                    errors = (middle - low, high - middle)
                    axes.errorbar(x, middle, errors, fmt="o", markersize=3.5, color=colour, label=loss)
                derived = [one.derived / variance for one, variance in zip(own, unit, strict=True)]
                above.plot(x, derived, "_", color="black", markersize=9, zorder=3)
    panels[0, 0].set(ylim=(0, None), ylabel="variance / the theorem's for GDT")
    panels[0, 1].set_ylim(bottom=0)
    panels[1, 0].set_ylabel("bias, % of L")
    for axes in panels[1]:
        axes.set_yscale("symlog", linthresh=1)
        axes.margins(y=0.1)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0, -1].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("dots: simulated, with intervals; line: the theorem's variance of GDT; dashes: the proof's "
                    "variance (two columns on the left), the derived one (right)", fontsize=9)  # fmt: skip
    return figure
