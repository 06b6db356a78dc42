"""`gdt study theorem`: simulate, compare with the formulas, count contrasts; tables, numbers and a plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
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
from gdt.studies.theorem.contrasts import Contrasts, counted
from gdt.studies.theorem.population import LOSSES, OWN, Population, first_order, made_up
from gdt.studies.theorem.settings import Theorem
from gdt.studies.theorem.simulation import Interval
from gdt.train.provenance import command_line, git_commit

DIRECT, STRATIFIED, SHARED, DRAWN = "direct", "independent pairs", "shared samples", "drawn strata"
SAMPLINGS = {
    DIRECT: "direct sampling",
    STRATIFIED: "GDT as the proof has it:\npairs drawn on their own",
    SHARED: "GDT as the tree draws:\npairs share samples",
    DRAWN: "a real batch: pairs share\nsamples, strata are drawn",
}
"""Ways to sample, and what they are in plots."""
_COLOURS = {**dict(zip(LOSSES, ("#1f4e79", "#e08a3c"), strict=True)), OWN: "#7a7a7a"}
_MISTAKEN = 0.05
"""How probable it is that one of all the intervals misses, where all the formulas hold."""


@dataclass(frozen=True)
class Estimate:
    """One estimate of L, at one size: simulated, and by formulas."""

    loss: str
    """Of pairs: a name of LOSSES, or OWN for equation 1 itself."""
    sampling: str
    """A name of SAMPLINGS."""
    k_v: int
    k_i: int
    exact: float
    """L, from all pairs of the population."""
    mean: Interval
    variance: Interval
    derived: float
    """The variance by the formula that holds: the proof's, or that of docs/theorem.md. For OWN, to first order."""
    paper: float
    """The variance that the statement of the theorem prints."""
    direct: float | None
    """That of as many pairs drawn directly, by the proof; None where the strata are drawn, of which it says nothing."""

    @property
    def bias(self) -> Interval:
        """Percent of L."""
        return Interval(*(100 * (x - self.exact) / abs(self.exact) for x in self.mean))

    def times(self, variance: float) -> Interval:
        """The simulated variance as a multiple of another."""
        return Interval(*(x / variance for x in self.variance))

    @property
    def as_stated(self) -> float:
        """The simulated variance as a multiple of the statement's."""
        return self.times(self.paper).value

    @property
    def equal_pairs(self) -> float:
        """The derived variance as a multiple of that of as many pairs drawn directly."""
        return self.derived / (self.direct or np.nan)

    @property
    def equal_samples(self) -> float:
        """The same where direct sampling, which embeds two samples for each pair, takes so few pairs as that makes."""
        return self.equal_pairs / (2 * self.k_v * self.k_i)


@dataclass(frozen=True)
class Findings:
    """All that one call found."""

    settings: Theorem
    command: str
    commit: str
    errors_wide: float
    """Standard errors from a simulated number to the ends of its interval."""
    estimates: list[Estimate]
    contrasts: list[Contrasts]


def theorem(settings: Theorem) -> str:
    """Do it; returns the tables, and writes them with the numbers and the plot."""
    settings.out.mkdir(parents=True, exist_ok=True)
    sizes = len(settings.k_v) * len(settings.k_i)
    print(f"{sizes} sizes, {settings.batches} batches each, {len(LOSSES)} losses, {len(SAMPLINGS)} ways to sample")
    found = findings(settings)
    text = "\n".join(told(found))
    write_text(settings.out / "table.txt", text + "\n")
    write_text(settings.out / "results.json", serialization.to_json(found, indent=2) + "\n")
    write_text(settings.out / "results.csv", to_csv(found.estimates))
    write_text(settings.out / "contrasts.csv", to_csv(found.contrasts))
    save(plot(found.estimates), settings.out / "theorem.png")
    return f"\n{text}\n\ntable (txt, csv), plot and numbers: {settings.out}/"


def findings(settings: Theorem) -> Findings:
    """All numbers; the same for the same settings."""
    sizes = list(product(settings.k_v, settings.k_i))
    compared = 2 * len(LOSSES) * len(SAMPLINGS) * len(sizes)  # a bias and a variance each
    z = float(stats.norm.isf(_MISTAKEN / (2 * compared)))
    population = made_up(settings.videos, settings.values, settings.temperature, np.random.default_rng([settings.seed]))
    estimates = [one for size in sizes for one in _estimates(population, *size, settings, z)]
    contrasts = [
        one
        for name in settings.presets
        for one in counted(name, presets.composition(name, settings.batch_size), settings.seed)
    ]
    return Findings(settings, command_line(), git_commit(), z, estimates, contrasts)


def _estimates(population: Population, k_v: int, k_i: int, settings: Theorem, z: float) -> Iterator[Estimate]:
    """Of one size, every loss sampled in every way, and equation 1 itself."""
    n = settings.batches

    def generator(number: int) -> np.random.Generator:
        return np.random.default_rng([settings.seed, number, k_v, k_i])  # so that a size does not depend on others

    def simulated(estimates: np.ndarray) -> tuple[Interval, Interval]:
        return simulation.mean(estimates, z), simulation.variance(estimates, z)

    def of_drawn(name: str, loss: np.ndarray, estimates: np.ndarray) -> Estimate:
        """Of batches that draw K_V of the population's strata, with what a loss of pairs gives for them."""
        strata = exact.strata_of(loss)
        mean, derived = exact.expectation(strata, k_v), exact.shared(loss, k_v, k_i)
        paper = exact.stratified(strata, k_v, k_i)
        return Estimate(name, DRAWN, k_v, k_i, mean, *simulated(estimates), derived, paper, None)

    for number, (name, of) in enumerate(LOSSES.items()):
        loss = of(population.first(k_v), k_v, k_i)  # the theorem takes the batch's strata for all there are
        strata = exact.strata_of(loss)
        size = (k_v, k_i, exact.expectation(strata, k_v))
        direct, gdt = exact.direct(strata, k_i), exact.stratified(strata, k_v, k_i)
        made = simulated(simulation.direct(loss, k_i, n, generator(10 * number)))
        yield Estimate(name, DIRECT, *size, *made, direct, exact.direct_as_stated(strata, k_i), direct)
        made = simulated(simulation.stratified(loss, k_i, n, generator(10 * number + 1)))
        yield Estimate(name, STRATIFIED, *size, *made, gdt, gdt, direct)
        made = simulated(simulation.shared(loss, k_v, k_i, n, generator(10 * number + 2)))
        yield Estimate(name, SHARED, *size, *made, exact.shared(loss, k_v, k_i), gdt, direct)
        loss = of(population, k_v, k_i)
        yield of_drawn(name, loss, simulation.shared(loss, k_v, k_i, n, generator(10 * number + 3)))
    own = simulation.equation_1(population, k_v, k_i, n, generator(99))
    yield of_drawn(OWN, first_order(population, k_v, k_i), own)


def told(found: Findings) -> list[str]:
    """The tables and what is to be said of them, line by line."""
    held = [one for one in found.estimates if one.loss != OWN]
    direct, gdt, shared, drawn = ([one for one in held if one.sampling == name] for name in SAMPLINGS)
    more = [one.derived / other.derived for one, other in zip(direct, gdt, strict=True)]
    return [
        "In the proof's regime: pairs are drawn on their own.", "",
        _table([*direct, *gdt], {
            "direct: bias %": lambda by: _bias(by[DIRECT]), "V / proof's": lambda by: _ratio(by[DIRECT]),
            "V / statement's": lambda by: f"{by[DIRECT].as_stated:.2g}",
            "GDT: bias %": lambda by: _bias(by[STRATIFIED]), "V / theorem's": lambda by: _ratio(by[STRATIFIED]),
        }), "",
        *_agreement([*direct, *gdt], "the proof's"),
        f"the statement's variance of direct sampling: {_within(direct)} within; direct sampling has "
        f"{_range(more)} times the variance of GDT",
        "", "In batches as the tree draws them, pairs share samples. All strata are in every batch:", "",
        _table(shared, _batch(SHARED) | {
            "V / direct, equal pairs": lambda by: f"{by[SHARED].equal_pairs:.2f}",
            "equal samples": lambda by: f"{by[SHARED].equal_samples:.3f}",
        }), "",
        "A real batch, which draws its strata, too:", "", _table(drawn, _batch(DRAWN)), "",
        *_agreement([*shared, *drawn], "the derived"),
        f"the paper's variance: {_within([*shared, *drawn])} within; simulated is "
        f"{_range([one.as_stated for one in (*shared, *drawn)])} times it",
        f"with all strata in every batch it is {_range([one.equal_pairs for one in shared])} times that of direct "
        f"sampling with as many pairs, and {_range([one.equal_samples for one in shared])} times with as many samples "
        "embedded",
        "", "Equation 1 with each batch's own denominator, strata drawn: the derived variance is its first order.", "",
        _table([one for one in found.estimates if one.loss == OWN], _batch(DRAWN, "first order")), "",
        f"bias is percent of L; intervals are 95 % for all {2 * len(held)} comparisons together "
        f"({found.errors_wide:.2f} standard errors each); ! marks what lies outside",
        "", *contrast_lines(found),
    ]  # fmt: skip


Columns = dict[str, Callable[[dict[str, Estimate]], str]]
"""By their heads, what stands in them for the estimates of one loss and size, by the way of sampling."""


def _batch(sampling: str, derived: str = "derived") -> Columns:
    """Columns for batches that the tree draws."""
    return {
        "bias %": lambda by: _bias(by[sampling]), f"V / {derived}": lambda by: _ratio(by[sampling]),
        "V / paper's": lambda by: f"{by[sampling].as_stated:.2f}",
    }  # fmt: skip


def _table(estimates: Sequence[Estimate], columns: Columns) -> str:
    """A line per loss and size."""
    groups: dict[tuple[str, ...], dict[str, Estimate]] = {}
    for one in sorted(estimates, key=lambda one: [*LOSSES, OWN].index(one.loss)):
        groups.setdefault((one.loss, str(one.k_v), str(one.k_i)), {})[one.sampling] = one
    lines = [[*size, *(cell(by) for cell in columns.values())] for size, by in groups.items()]
    return layout([["loss", "K_V", "K_I", *columns], *lines])


def _agreement(estimates: Sequence[Estimate], whose: str) -> list[str]:
    unbiased = sum(one.mean.holds(one.exact) for one in estimates)
    explained = sum(one.variance.holds(one.derived) for one in estimates)
    n = len(estimates)
    return [f"L: {unbiased} of {n} within the intervals; {whose} variance: {explained} of {n} within"]


def _within(estimates: Sequence[Estimate]) -> str:
    return f"{sum(one.variance.holds(one.paper) for one in estimates)} of {len(estimates)}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2g} to {max(values):.2g}"


def _bias(one: Estimate) -> str:
    bias = one.bias
    return f"{bias.value:+.2f} ± {(bias.high - bias.low) / 2:.2f}{'' if bias.holds(0) else ' !'}"


def _ratio(one: Estimate) -> str:
    ratio = one.times(one.derived)
    return f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f}){'' if ratio.holds(1) else ' !'}"


def contrast_lines(found: Findings) -> list[str]:
    """The table of section A.2, and what its columns are."""
    lines = [["preset", "factor", "", "K", "differ in it", "in it alone", "but for", "with w = 1", "and what w asks"]]
    for one in found.contrasts:
        numbers = (one.differ, one.alone, one.but_for, one.weighed, one.beside)
        counts = [f"{x:,.0f}" if x == int(x) else f"{x:,.1f}" for x in numbers]
        lines.append([one.composition, one.factor, one.contrast, str(one.k), *counts])
    aside = sorted({name for one in found.contrasts for name in one.never_agree})
    return [
        f"Single-factor contrasts (section A.2): ordered pairs of a batch of {found.settings.batch_size} videos, "
        "10 s long.", "", layout(lines), "",
        f"but for: they differ in {', '.join(aside) or 'nothing'}, too, whose values are never the same in two leaves",
        "with w = 1: of the column before, those that the loss looks at",
        "and what w asks: pairs with w = 1 that differ in it and, besides, where w asks for it; likewise but for these",
    ]  # fmt: skip


def to_csv(rows: Sequence[Estimate] | Sequence[Contrasts]) -> str:
    """One line per dataclass; an interval is three columns, nothing is an empty one."""
    lines = []
    for row in rows:
        cells: dict[str, object] = {}
        for name, value in vars(row).items():
            if isinstance(value, Interval):
                cells |= dict(zip((name, f"{name}_low", f"{name}_high"), value, strict=True))
            else:
                cells[name] = " ".join(value) if isinstance(value, tuple) else value
        lines.append(cells)
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def plot(estimates: Sequence[Estimate]) -> Figure:
    """Variances as multiples of the paper's, and biases, one column of panels per way to sample."""
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    panels = figure.subplots(2, len(SAMPLINGS), sharex="col")
    for above, below in panels.T[2:]:
        above.sharey(panels[0, 1])  # the first column, of direct sampling, is far off
        below.sharey(panels[1, 1])
    for (above, below), (sampling, title) in zip(panels.T, SAMPLINGS.items(), strict=True):
        shown = [one for one in estimates if one.sampling == sampling]
        above.set_title(title, fontsize=9)
        above.axhline(1, color="black", linewidth=0.8)
        below.axhline(0, color="black", linewidth=0.8)
        sizes = list(dict.fromkeys(f"{one.k_v}×{one.k_i}" for one in shown))
        below.set_xticks(range(len(sizes)), sizes, fontsize=7)
        below.set_xlabel("K_V × K_I", fontsize=8)
        for k, (loss, colour) in enumerate(_COLOURS.items()):
            if of := [one for one in shown if one.loss == loss]:
                x = np.arange(len(of)) + 0.2 * (k - 1)
                for axes, values in ((above, [one.times(one.paper) for one in of]), (below, [one.bias for one in of])):
                    middle, low, high = np.array(values).T
                    errors = (middle - low, high - middle)
                    axes.errorbar(x, middle, errors, fmt="o", markersize=3.5, color=colour, label=loss)
                above.plot(x, [one.derived / one.paper for one in of], "_", color="black", markersize=9, zorder=3)
    panels[0, 0].set_yscale("log")
    panels[0, 1].set_ylim(bottom=0)
    for axes in panels[1]:
        axes.set_yscale("symlog", linthresh=1)
        axes.margins(y=0.1)
    panels[0, 0].set_ylabel("variance / the theorem's")
    panels[1, 0].set_ylabel("bias, % of L")
    for axes in panels.flat:
        axes.tick_params(axis="y", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0, -1].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(
        "dots: simulated, with intervals; line: the theorem as stated; dashes: the proof's variance (two columns on "
        "the left), the derived one (right)", fontsize=9,
    )  # fmt: skip
    return figure
