"""`gdt study theorem`: simulate, compare with the formulas, count contrasts; tables, numbers and a plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from matplotlib.axes import Axes
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
        for one in counted(name, presets.composition(name, settings.videos_per_batch), settings.seed)
    ]
    return Findings(settings, command_line(), git_commit(), z, estimates, contrasts)


def _estimates(population: Population, k_v: int, k_i: int, settings: Theorem, z: float) -> Iterator[Estimate]:
    """Of one size, every loss sampled in every way, and equation 1 itself."""
    n = settings.batches

    def generator(number: int) -> np.random.Generator:
        return np.random.default_rng([settings.seed, number, k_v, k_i])  # so that a size does not depend on others

    def simulated(estimates: np.ndarray) -> tuple[Interval, Interval]:
        return simulation.mean(estimates, z), simulation.variance(estimates, z)

    for number, (name, of) in enumerate(LOSSES.items()):
        loss = of(population.first(k_v), k_v, k_i)  # the theorem takes the batch's strata for all there are
        strata = exact.strata_of(loss)
        mean, gdt = exact.expectation(strata, k_v), exact.stratified(strata, k_v, k_i)
        direct = exact.direct(strata, k_i)
        size = (k_v, k_i, mean)
        made = simulated(simulation.direct(loss, k_i, n, generator(10 * number)))
        yield Estimate(name, DIRECT, *size, *made, direct, exact.direct_as_stated(strata, k_i), direct)
        made = simulated(simulation.stratified(loss, k_i, n, generator(10 * number + 1)))
        yield Estimate(name, STRATIFIED, *size, *made, gdt, gdt, direct)
        made = simulated(simulation.shared(loss, k_v, k_i, n, generator(10 * number + 2)))
        yield Estimate(name, SHARED, *size, *made, exact.shared(loss, k_v, k_i), gdt, direct)
        loss = of(population, k_v, k_i)
        made = simulated(simulation.shared(loss, k_v, k_i, n, generator(10 * number + 3)))
        yield _of_drawn(name, loss, k_v, k_i, made)
    made = simulated(simulation.equation_1(population, k_v, k_i, n, generator(99)))
    yield _of_drawn(OWN, first_order(population, k_v, k_i), k_v, k_i, made)


def _of_drawn(name: str, loss: np.ndarray, k_v: int, k_i: int, made: tuple[Interval, Interval]) -> Estimate:
    """Of batches that draw K_V of the population's strata, with what a loss of pairs gives for them."""
    strata = exact.strata_of(loss)
    mean, derived = exact.expectation(strata, k_v), exact.shared(loss, k_v, k_i)
    return Estimate(name, DRAWN, k_v, k_i, mean, *made, derived, exact.stratified(strata, k_v, k_i), None)


def told(found: Findings) -> list[str]:
    """The tables and what is to be said of them, line by line."""
    held = [one for one in found.estimates if one.loss != OWN]
    proof = [one for one in held if one.sampling in (DIRECT, STRATIFIED)]
    direct, shared, drawn = ([one for one in held if one.sampling == name] for name in (DIRECT, SHARED, DRAWN))
    gdt = {_key(one): one for one in proof if one.sampling == STRATIFIED}
    own = [one for one in found.estimates if one.loss == OWN]
    return [
        "In the proof's regime: pairs are drawn on their own.", "", layout(proof_table(proof)), "",
        *_agreement(proof, "the proof's"),
        f"the statement's variance of direct sampling: {_within(direct)} within; direct sampling has "
        f"{_range([one.derived / gdt[_key(one)].derived for one in direct])} times the variance of GDT",
        "", "In batches as the tree draws them, pairs share samples. All strata are in every batch:", "",
        layout(batch_table(shared)), "",
        "A real batch, which draws its strata, too:", "", layout(batch_table(drawn)), "",
        *_agreement([*shared, *drawn], "the derived"),
        f"the paper's variance: {_within([*shared, *drawn])} within; simulated is "
        f"{_range([one.times(one.paper).value for one in (*shared, *drawn)])} times it",
        f"with all strata in every batch it is {_range([*map(_equal_pairs, shared)])} times that of direct sampling "
        f"with as many pairs, and {_range([*map(_equal_samples, shared)])} times with as many samples embedded",
        "", "Equation 1 with each batch's own denominator, strata drawn: the derived variance is its first order.",
        "", layout(own_table(own)), "",
        f"bias is percent of L; intervals are 95 % for all {2 * len(held)} comparisons together "
        f"({found.errors_wide:.2f} standard errors each); ! marks what lies outside",
        "", *contrast_lines(found),
    ]  # fmt: skip


def _agreement(estimates: Sequence[Estimate], whose: str) -> list[str]:
    unbiased = sum(one.mean.holds(one.exact) for one in estimates)
    explained = sum(one.variance.holds(one.derived) for one in estimates)
    n = len(estimates)
    return [f"L: {unbiased} of {n} within the intervals; {whose} variance: {explained} of {n} within"]


def _within(estimates: Sequence[Estimate]) -> str:
    return f"{sum(one.variance.holds(one.paper) for one in estimates)} of {len(estimates)}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2g} to {max(values):.2g}"


Of = Callable[[str], Estimate]


def proof_table(estimates: Sequence[Estimate]) -> list[list[str]]:
    """Direct sampling and the proof's GDT, one line per loss and size."""
    heads = ["loss", "K_V", "K_I", "direct: bias %", "V / proof's", "V / statement's", "GDT: bias %", "V / theorem's"]

    def cells(of: Of) -> list[str]:
        direct, gdt = of(DIRECT), of(STRATIFIED)
        return [_bias(direct), _ratio(direct, direct.derived), f"{direct.times(direct.paper).value:.2g}",
                _bias(gdt), _ratio(gdt, gdt.derived)]  # fmt: skip

    return _table(heads, estimates, cells)


def batch_table(estimates: Sequence[Estimate]) -> list[list[str]]:
    """Batches that the tree draws, one line per loss and size; beside direct sampling where that can be."""
    (sampling,) = {one.sampling for one in estimates}
    heads = ["loss", "K_V", "K_I", "bias %", "V / derived", "V / paper's"]
    if sampling == SHARED:
        heads += ["V / direct, equal pairs", "equal samples"]

    def cells(of: Of) -> list[str]:
        one = of(sampling)
        beside = [f"{_equal_pairs(one):.2f}", f"{_equal_samples(one):.3f}"] if sampling == SHARED else []
        return [_bias(one), _ratio(one, one.derived), f"{one.times(one.paper).value:.2f}", *beside]

    return _table(heads, estimates, cells)


def _equal_pairs(one: Estimate) -> float:
    """The derived variance as a multiple of that of as many pairs drawn directly."""
    assert one.direct is not None
    return one.derived / one.direct


def _equal_samples(one: Estimate) -> float:
    """The same where direct sampling, which embeds two samples for each pair, takes so few pairs as that makes."""
    return _equal_pairs(one) / (2 * one.k_v * one.k_i)


def own_table(estimates: Sequence[Estimate]) -> list[list[str]]:
    """Equation 1 itself, one line per size."""
    heads = ["loss", "K_V", "K_I", "bias %", "V / first order", "V / paper's"]

    def cells(of: Of) -> list[str]:
        one = of(DRAWN)
        return [_bias(one), _ratio(one, one.derived), f"{one.times(one.paper).value:.2f}"]

    return _table(heads, estimates, cells)


def _table(heads: list[str], estimates: Sequence[Estimate], cells: Callable[[Of], list[str]]) -> list[list[str]]:
    lines = [heads]
    for key in dict.fromkeys(map(_key, sorted(estimates, key=_order))):
        by = {one.sampling: one for one in estimates if _key(one) == key}
        lines.append([*map(str, key), *cells(by.__getitem__)])
    return lines


def _key(one: Estimate) -> tuple[str, int, int]:
    return one.loss, one.k_v, one.k_i


def _order(one: Estimate) -> int:
    return [*LOSSES, OWN].index(one.loss)


def _bias(one: Estimate) -> str:
    bias = one.bias
    return f"{bias.value:+.2f} ± {(bias.high - bias.low) / 2:.2f}{'' if bias.holds(0) else ' !'}"


def _ratio(one: Estimate, variance: float) -> str:
    ratio = one.times(variance)
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
        f"Single-factor contrasts (section A.2): ordered pairs of a batch of {found.settings.videos_per_batch} videos, "
        "10 s long.", "", layout(lines), "",
        f"but for: they differ in {', '.join(aside) or 'nothing'}, too, whose values are never the same in two leaves",
        "with w = 1: of the column before, those that the loss looks at",
        "and what w asks: pairs with w = 1 that differ in it and, besides, where w asks for it; likewise but for these",
    ]  # fmt: skip


def to_csv(rows: Sequence[Estimate] | Sequence[Contrasts]) -> str:
    """One line per dataclass; an interval is three columns, nothing is an empty one."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, row in enumerate(rows):
        cells: dict[str, object] = {}
        for name, value in vars(row).items():
            if isinstance(value, Interval):
                cells |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
            else:
                cells[name] = " ".join(value) if isinstance(value, tuple) else value
        if not number:
            writer.writerow(cells)
        writer.writerow(cells.values())
    return text.getvalue()


def plot(estimates: Sequence[Estimate]) -> Figure:
    """Variances as multiples of the paper's, and biases, one column of panels per way to sample."""
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    panels = figure.subplots(2, len(SAMPLINGS), sharex="col")
    for above, below in panels.T[2:]:
        above.sharey(panels[0, 1])  # the first column, of direct sampling, is far off
        below.sharey(panels[1, 1])
    shift = {loss: 0.2 * (k - 1) for k, loss in enumerate(_COLOURS)}
    for (above, below), (sampling, title) in zip(panels.T, SAMPLINGS.items(), strict=True):
        shown = [one for one in estimates if one.sampling == sampling]
        above.set_title(title, fontsize=9)
        above.axhline(1, color="black", linewidth=0.8)
        below.axhline(0, color="black", linewidth=0.8)
        _sizes(below, shown)
        for loss in dict.fromkeys(one.loss for one in shown):
            of = [one for one in shown if one.loss == loss]
            x = np.arange(len(of)) + shift[loss]
            _points(above, x, [one.times(one.paper) for one in of], loss)
            above.plot(x, [one.derived / one.paper for one in of], "_", color="black", markersize=9, zorder=3)
            _points(below, x, [one.bias for one in of], loss)
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


def _sizes(axes: Axes, estimates: Sequence[Estimate]) -> None:
    names = list(dict.fromkeys(f"{one.k_v}×{one.k_i}" for one in estimates))
    axes.set_xticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("K_V × K_I", fontsize=8)


def _points(axes: Axes, x: np.ndarray, values: Sequence[Interval], loss: str) -> None:
    middle, low, high = np.array(values).T
    axes.errorbar(x, middle, (middle - low, high - middle), fmt="o", markersize=3.5, color=_COLOURS[loss], label=loss)
