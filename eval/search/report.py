"""What a search has found: the table of the best, the importance of each choice, and, once, the figure on test."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from matplotlib.figure import Figure
from optuna.distributions import BaseDistribution
from optuna.importance import FanovaImportanceEvaluator, get_param_importances

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.eval.ablation.settings import Ablation
from gdt.eval.drawing import save
from gdt.eval.metrics import Metric, difference
from gdt.eval.processes import to_arguments
from gdt.eval.record import RANDOM
from gdt.eval.search.settings import Search
from gdt.eval.search.space import PLACE
from gdt.eval.search.trial import Trainer
from gdt.eval.tables import csv_text, layout
from gdt.train.models.gdt import any_device
from gdt.train.provenance import Provenance

TEST = "test.json"
DONE, STOPPED, DIVERGED = "done", "stopped early", "diverged"
_NUMBERS = ["trial", "composition", "state", "steps", "percent", "low", "high", "chance", "queries", "run"]


@dataclass(frozen=True)
class Tried:
    """A trial that is over."""

    number: int
    """Of the drawing."""
    composition: str
    """As FACTORS= takes it."""
    shown: str
    """Without what is not varied."""
    state: str
    """DONE, STOPPED or DIVERGED."""
    steps: int
    """After which it was measured last."""
    metric: Metric | None
    """What it then was; None where it diverged before."""
    run: Path
    """Its folder."""
    parameters: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.shown}: {self.value or 'no metric'} after {self.steps} steps, {self.state}"

    @property
    def value(self) -> str:
        """With its 95 % interval, percent; empty where it was not measured."""
        return _with_interval(self.metric) if self.metric else ""

    @property
    def row(self) -> list[object]:
        """In the table of numbers."""
        m = self.metric
        numbers = [m.value, m.low, m.high, m.chance, m.answers] if m else [""] * 5
        return [self.number, self.composition, self.state, self.steps, *numbers, self.run]


class Found(NamedTuple):
    """All that a search has tried."""

    tried: list[Tried]
    baseline: Tried
    refused: list[str]
    """Of every drawing that cannot be trained, why."""
    known: int
    """Drawings of compositions that had been tried."""
    parameters: Mapping[str, BaseDistribution]


def finish(settings: Search, found: Found, trainer: Trainer) -> str:
    """Write tables and plot, test the best and the baseline unless that was done, and say it all."""
    out, baseline = settings.folder, found.baseline
    if baseline.state != DONE:
        raise UserError(f"the training of the baseline {settings.baseline} has diverged; see {baseline.run}")
    # those that came to their end before the others, whatever these had come to
    ranked = sorted(found.tried, key=lambda one: (-one.steps, -(one.metric.value if one.metric else -1), one.number))
    what = f"R@{settings.k} {f'of {settings.label}' if settings.label else 'across modalities'}, %"
    lines = [["", "composition, what is not varied left out", f"{what} on {settings.query_split}", "steps", ""]]
    for place, one in enumerate(ranked, 1):
        name = f"{one.shown}  [{settings.baseline}]" if one == baseline else one.shown
        lines.append([str(place), name, one.value, str(one.steps), one.state])
    write_text(out / "trials.json", serialization.to_json(ranked, indent=2) + "\n")
    write_text(out / "trials.csv", csv_text([_NUMBERS, *(one.row for one in ranked)]))
    important = importances(found)
    save(picture(found, important, what), out / "importance.png")
    tested = _tested(settings, ranked[0], baseline, what, trainer)
    below = ["", *_said(settings, found, ranked[0]), _important(important, len(ranked)), "", tested]
    write_text(out / "table.txt", "\n".join([layout(lines), *below]) + "\n")
    text = "\n".join([layout(lines[: settings.best + 1]), *below])
    return f"\n{text}\n\ntable (txt, csv, json), plot (importance.png), figure on test ({TEST}) and runs: {out}/"


def _with_interval(metric: Metric) -> str:
    return f"{metric.value:.1f} ({metric.low:.1f}-{metric.high:.1f})"


def _said(settings: Search, found: Found, best: Tried) -> list[str]:
    """What a reader needs to trust the table."""
    states, base = Counter(one.state for one in found.tried), found.baseline
    assert best.metric and base.metric
    lines = [
        f"{best.metric.answers} queries, chance {best.metric.chance:.1f} %; {settings.clips_per_step} video clips "
        f"per step, seed {settings.seed}; in brackets 95 % intervals, of the choice of queries and not of training",
        "the best of many is flattered by being chosen; what it is worth is the figure on test",
        f"{len(found.tried)} of {settings.trials} compositions: "
        + ", ".join(f"{count} {state}" for state, count in states.items())
        + f"; {len(found.refused)} more drawings cannot be trained, {found.known} were known",
        *(f"  {count} x {why}" for why, count in Counter(found.refused).most_common(3)),
    ]
    if best.metric.interval[0] <= best.metric.chance:
        lines.append("the best is not to be told from chance, so nothing here is to be believed; set --steps to more")
    if len(found.tried) < settings.trials:
        lines.append("there are no more compositions of these factors, or they are too rare to be drawn")
    points, low, high = difference([best.metric], [base.metric])
    lines.append(
        f"the best is {points:+.1f} points from {settings.baseline} on {settings.query_split}; "
        f"95 %: {low:+.1f} to {high:+.1f}"
    )
    lines.append(f'the best: make pretrain DATASET={settings.dataset} FACTORS="{best.composition}"')
    if best.composition != base.composition:
        lines.append(
            "that is from one seed each; compare it over others before you believe it: gdt "
            + shlex.join(over_seeds(settings, best.composition))
        )
    return lines


def over_seeds(settings: Search, composition: str) -> list[str]:
    """Arguments of `gdt` that train and test a composition and the baseline with seeds that nobody has seen."""
    names = ["dataset", "shards", "factors_from", "size", "clips_per_step", "bn_group_size", "steps", "clips"]
    if settings.label:
        names.append("gallery_per_class")
    shared: dict[str, Any] = {name: getattr(settings, name) for name in names}
    compared = Ablation(
        **shared, rows=(settings.baseline, composition), seeds=tuple(settings.seed + more for more in (1, 2, 3)),
        labels=(settings.metric,), factors="no", out=settings.folder / "seeds",
    )  # fmt: skip
    if any("text" in compared.composition(row).modalities for row in compared.rows):
        compared = replace(compared, word2vec=settings.word2vec)
    return ["eval", "ablation", *to_arguments(compared, Ablation())]


def importances(found: Found) -> dict[str, float]:
    """The share of the variance of the last metric that each choice explains (fANOVA), the highest first.

    Empty where there are too few trials to tell.
    """
    study = optuna.create_study(direction="maximize")
    measured = [(one.parameters, one.metric.value) for one in found.tried if one.metric]
    if len(measured) < 4 or len({value for _, value in measured}) < 2:
        return {}
    for parameters, value in measured:
        study.add_trial(optuna.create_trial(params=parameters, distributions=dict(found.parameters), value=value))
    return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))


def _important(important: Mapping[str, float], trials: int) -> str:
    if not important:
        return "too few trials to tell which choice matters"
    shares = ", ".join(f"{name} {share:.0%}" for name, share in list(important.items())[:4])
    return f"what matters most, by fANOVA: {shares}; from {trials} trials this is rough"


def picture(found: Found, important: Mapping[str, float], metric: str) -> Figure:
    """The importance of each choice as a bar, and beside it every trial by what it has chosen of each factor."""
    ways = [(name, str(way)) for name, distribution in found.parameters.items() if not name.startswith(PLACE)
            for way in getattr(distribution, "choices", ())]  # fmt: skip
    figure = Figure(figsize=(11, 1.2 + 0.24 * max(len(ways), len(found.parameters))), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = list(important)[::-1]
    left.barh(names, [important[name] for name in names], color="#8fb8de")
    left.set_xlabel(f"importance (fANOVA, rough: {len(found.tried)} trials)")
    for state, marker in ((DONE, "o"), (STOPPED, "x")):
        points = [(one.metric.value, -row) for one in found.tried if one.state == state and one.metric
                  for row, (name, way) in enumerate(ways) if one.parameters[name] == way]  # fmt: skip
        right.plot([x for x, _ in points], [y for _, y in points], marker, color="#1f4e79", markersize=4, label=state)
    right.set_yticks([-row for row in range(len(ways))], [way for _, way in ways])
    right.set_xlabel(f"{metric}, last metric of every trial")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _tested(settings: Search, best: Tried, base: Tried, what: str, trainer: Trainer) -> str:
    """The best, the baseline and random weights on videos that have decided nothing, or why that cannot be."""
    path = settings.folder / TEST
    if path.is_file():  # a second look would be a second choice
        metrics = {name: Metric(*values) for name, values in json.loads(path.read_text())["metrics"].items()}
    else:
        some = {f"the best: {best.shown}": best.run, f"{settings.baseline}: {base.shown}": base.run}
        try:
            values = trainer.test([*some.values()])
        except UserError as error:
            return f"no figure on test: {error}"
        metrics = dict(zip([*some, RANDOM], values, strict=True))
        made = {"compositions": [best.composition, base.composition], "metrics": metrics,
                "provenance": asdict(Provenance.of(any_device()))}  # fmt: skip
        write_text(path, json.dumps(made, indent=2) + "\n")
    first, other, _ = metrics.values()
    points, low, high = difference([first], [other])
    lines = [["", f"{what} on test, once"]]
    lines += [[name, _with_interval(metric)] for name, metric in metrics.items()]
    lines.append(["chance", f"{first.chance:.1f}"])
    verdict = "not to be told from it" if low <= 0 <= high else "a difference"
    return (
        f"{layout(lines)}\n\non test, {first.answers} queries, the best is {points:+.1f} points from "
        f"{settings.baseline} ({verdict}); 95 %: {low:+.1f} to {high:+.1f}"
    )
