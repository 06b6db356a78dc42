"""What evaluations found: typed results, written as JSON, read again, and laid out as tables in text, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from tabulate import tabulate

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.eval.measures import Measure, difference
from gdt.eval.settings.downstream import Downstream, Protocol
from gdt.pipeline.leaves import MODALITIES
from gdt.train.provenance import Provenance
from gdt.train.settings import Pretrain

RANDOM = "random weights"
"""The model of results whose weights are those that the training began with."""


@dataclass(frozen=True)
class Result:
    """What one protocol found of one model on one fold."""

    protocol: Protocol
    model: str
    """Name of the model: of its run's folder, or of its file; RANDOM."""
    weights: str
    """Digest of the weights."""
    checkpoint: Path
    preset: str
    """Row of table 1 and the like, one's own factors, or the kind of weights; RANDOM."""
    step: int
    """Steps it was pretrained for."""
    seed: int
    """Of the pretraining, and of random weights."""
    dataset: str
    data: str
    """Fingerprint of the shards, before a fold is taken."""
    labels: str
    """Digest of who is searched or learned from, who is evaluated, and their labels."""
    fold: int
    """Official fold whose splits count; 0 for the splits as they are."""
    query_split: str
    gallery: int
    """Videos that were searched or learned from."""
    queries: int
    """Videos that were evaluated."""
    held: int
    """Of both, those that are shorter than a clip, and whose last frame is held."""
    classes: int
    """That were learned or searched; 0 without labels."""
    measures: dict[str, Measure]
    """By the column of the table."""
    trained_on: Literal["others", "these", "unknown"]
    """Whether the weights have learned, without labels, from the videos that were evaluated."""
    how: dict[str, str]
    """All else that could change the numbers, in words: clips, precision, the recipe of finetuning."""
    evaluation: Downstream
    pretraining: Pretrain
    provenance: Provenance


def to_json(results: Result | list[Result]) -> str:
    """One result, or several as a list."""
    return serialization.to_json(results, indent=2)


def from_json(text: str, source: str = "this text") -> list[Result]:
    """The results, one or several, that `to_json` wrote. Raises UserError naming `source` where they are others."""
    try:
        values = json.loads(text)
        rows = values if isinstance(values, list) else [values]
        return [serialization.rebuilt(Result, row) for row in rows]
    except (ValueError, UserError) as error:
        raise UserError(
            f"{source} holds results of another version of this program ({error}); evaluate the checkpoint again"
        ) from error


def sentence(how: Mapping[str, str]) -> str:
    """How a result came about, in words."""
    return "; ".join(f"{name} {value}" for name, value in how.items())


def span(numbers: Iterable[int]) -> str:
    """Lowest and highest of some numbers, or the one there is."""
    return "-".join(map(str, sorted({min(numbers := list(numbers)), max(numbers)})))


Groups = Mapping[str, Sequence[Result]]
"""Rows of a table: a name, and the results of its seeds and folds."""


@dataclass(frozen=True)
class Table:
    """Results side by side."""

    groups: Groups
    lines: list[list[str]]
    """As `rows` gives them, the heads first."""
    said: list[str]
    """What a reader needs to trust them, a sentence each."""


def columns(groups: Groups) -> list[str]:
    """The measures that there are, in order."""
    return list(dict.fromkeys(name for results in groups.values() for result in results for name in result.measures))


def measured(results: Sequence[Result], column: str) -> list[Measure]:
    """One measure of several results, of those that have it."""
    return [result.measures[column] for result in results if column in result.measures]


def rows(
    groups: Groups, corner: str = "", reported: Mapping[str, Mapping[str, float]] | None = None
) -> list[list[str]]:
    """A table: one line per group, chance, and what others report. `corner` heads the column of names.

    Where a group has one result, its value stands with the 95 % interval; where it has several, their mean with lowest
    and highest.
    """
    names = columns(groups)
    lines = [[corner, *(_headed(name) for name in names)]]
    for name, results in groups.items():
        lines.append([name, *(cell(measured(results, column)) for column in names)])
    every = [result for results in groups.values() for result in results]
    lines.append(["chance", *(f"{np.mean([m.chance for m in measured(every, column)]):.1f}" for column in names)])
    for name, values in (reported or {}).items():
        if any(column in values for column in names):
            lines.append([name, *(f"{values[column]:.1f}" if column in values else "" for column in names)])
    return lines


def _headed(column: str) -> str:
    """A measure as the head of a column: directions between modalities by their letters."""
    for modality in MODALITIES:
        column = column.replace(modality, modality[0].upper())
    return column.replace(" to ", "→")


def cell(measures: Sequence[Measure]) -> str:
    """The one value with its 95 % interval, or the mean of several with lowest and highest; empty without any."""
    if not measures:
        return ""
    low, high = (
        measures[0].interval if len(measures) == 1 else (min(m.value for m in measures), max(m.value for m in measures))
    )
    return f"{np.mean([m.value for m in measures]):.1f} ({low:.1f}-{high:.1f})"


def layout(lines: Sequence[Sequence[str]], kind: str = "simple") -> str:
    """Lines of cells, the first the heads, as text, or with `latex_booktabs` as LaTeX."""
    alignment = ["left", *["right"] * (len(lines[0]) - 1)]
    return tabulate(lines[1:], lines[0], tablefmt=kind, colalign=alignment, disable_numparse=True)


def to_latex(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells, the first the heads, as LaTeX for the package booktabs."""
    arrows = [[cell.replace("→", " to ") for cell in line] for line in lines]
    return layout(arrows, "latex_booktabs")


def to_csv(results: Sequence[Result]) -> str:
    """One line per measure: what it is of, value, 95 % interval, chance and counts."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["model", "weights", "preset", "seed", "step", "dataset", "fold", "protocol", "measure", "percent", "low",
         "high", "chance", "spread", "queries", "gallery", "held", "commit"]
    )  # fmt: skip
    for r in results:
        for name, measure in r.measures.items():
            low, high = measure.interval
            figures = [f"{x:.4f}" for x in (measure.value, low, high, measure.chance, measure.spread)]
            writer.writerow(
                [r.model, r.weights, r.preset, r.seed, r.step, r.dataset, r.fold, r.protocol, name, *figures, r.queries,
                 r.gallery, r.held, r.provenance.commit]
            )  # fmt: skip
    return text.getvalue()


def compared(groups: Groups) -> list[str]:
    """For every group and the first measure of each protocol, whether it differs from random weights, in words."""
    said = []
    for name, results in groups.items():
        if results[0].preset == RANDOM:
            continue
        network = results[0].pretraining.network
        folds = {result.fold for result in results}
        every = [result for group in groups.values() for result in group if result.preset == RANDOM]
        random = [result for result in every if result.pretraining.network == network and result.fold in folds]
        for column in _principal(results):
            one, other = measured(results, column), measured(random, column)
            if other:
                points, low, high = difference(one, other)
                verdict = f"{abs(points):.1f} points {'above' if points > 0 else 'below'} random weights"
                if low <= 0 <= high:
                    verdict = f"not to be told from random weights ({points:+.1f} points)"
                said.append(f"{column} of {name}: {verdict}; 95 %: {low:+.1f} to {high:+.1f}")
    return said


def _principal(results: Sequence[Result]) -> list[str]:
    """The first measure of every protocol."""
    return list(dict.fromkeys(next(iter(result.measures)) for result in results if result.measures))
