"""Lines of `results.jsonl`: what a protocol measured of a model, and all that decides it. Tables are views of them."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdt.common import serialization
from gdt.common.errors import UserError, first_line
from gdt.common.files import lock
from gdt.eval.metrics import Metric
from gdt.eval.protocols import PROTOCOLS

Key = tuple[str, str, str]
"""`Result.identity`."""
RESULTS = "results.jsonl"
RANDOM = "random weights"
"""Model and preset of untrained networks."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one protocol measured of one model, on one fold and with the labels of one column."""

    conditions: str
    """Digest of all that decides the numbers besides the model; rows that can be compared have the same."""
    protocol: str
    """A name of `eval.protocols`."""
    model: str
    """Name of the run's folder or of the file, or RANDOM."""
    weights: str
    """Digest of the weights, the statistics of their inputs, the clip and the crops."""
    checkpoint: str
    """Checkpoint; for random weights, that of the same network."""
    preset: str
    """Name of the preset, custom factors, kind of weights, or RANDOM, also for initial weights of another name."""
    seed: int
    """Seed of pretraining and of random weights."""
    step: int
    steps: int
    videos: int
    """Videos drawn in pretraining: steps x videos per step."""
    tflop: float
    """10^12 FLOPs of the networks in pretraining."""
    seen: int
    """Queries that pretraining used, without labels; -1 if its data is unknown or has changed since."""
    dataset: str
    shards: str
    data: str
    """Fingerprint of the shards, without regard to folds."""
    query_split: str
    label: str
    """Column of labels; empty for the classes of the data set."""
    words: str
    """Checksum of the word vectors; empty without text."""
    fold: int
    """Official fold; 0 for the splits of the data set."""
    gallery: int
    """Videos that were searched or trained on."""
    queries: int
    """Videos that were evaluated."""
    classes: int
    """Classes of the gallery; 0 without labels."""
    metrics: dict[str, Metric] = field(default_factory=dict)
    """By name, which is also the heading of its column in tables."""
    settings: dict[str, Any]
    details: dict[str, str] = field(default_factory=dict)
    """Clip, precision, pooling or recipe, as text."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """What `train.provenance` returns."""

    @property
    def identity(self) -> Key:
        """A result with the same is not computed again."""
        return self.conditions, self.model, self.weights


def append(path: Path, result: Result) -> None:
    """Append a line; several processes may."""
    with path.open("ab+") as file:
        lock(file)
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":  # a line that was cut by a kill or a full disk
                file.write(b"\n")
        file.write(serialization.to_json(result).encode() + b"\n")


def read(path: Path) -> list[Result]:
    """The results of a file; none if it is missing. Lines that cannot be read are left out, with a warning."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    results = []
    for number, line in enumerate(lines, 1):
        try:
            result = serialization.from_dict(Result, json.loads(line))
            if result.protocol not in PROTOCOLS:
                raise ValueError(f"unknown protocol {result.protocol}")
            results.append(result)
        except (ValueError, TypeError, UserError) as error:
            reason = f"is damaged or of another version ({first_line(error)})"
            print(f"warning: line {number} of {path} {reason}; it is left out", file=sys.stderr)
    return results


def latest(rows: Sequence[Result]) -> list[Result]:
    """Those under the conditions that a protocol was evaluated under last, by data set, labels, words and modalities.

    Others have other settings, or other videos, labels, code or kind of device, and a table must not average both. So
    where a fold is evaluated anew under others, folds that are not go, too.
    """

    def kind(row: Result) -> tuple[str, ...]:
        return row.protocol, row.dataset, row.label, row.words, str(row.settings.get("modalities"))

    def settings(row: Result) -> tuple[str, str, str]:
        return row.data, row.query_split, str(row.settings)

    last = {kind(row): settings(row) for row in rows}
    current = [row for row in rows if last[kind(row)] == settings(row)]
    conditions: dict[Any, str] = {}
    changes: Counter[Any] = Counter()
    begins: dict[Any, int] = {}
    newest: dict[Any, tuple[int, int]] = {}  # the most changes of a fold, and the place of the first row after them
    for place, row in enumerate(current):
        fold = kind(row), row.fold
        if conditions.get(fold) != row.conditions:
            changes[fold] += fold in conditions
            begins[fold] = place
            if changes[fold] > newest.get(kind(row), (0, 0))[0]:
                newest[kind(row)] = changes[fold], place
        conditions[fold] = row.conditions

    def is_current(row: Result) -> bool:
        fold = kind(row), row.fold
        return conditions[fold] == row.conditions and begins[fold] >= newest.get(kind(row), (0, 0))[1]

    return [row for row in current if is_current(row)]


def last_of_runs(rows: Iterable[Result]) -> list[Result]:
    """The last result of each run under the same conditions: one that was made anew keeps its name."""
    return [*{(row.conditions, row.model, row.seed, row.step): row for row in rows}.values()]


def rows(results: Iterable[Result]) -> Iterator[dict[str, Any]]:
    """A dict per metric, for CSV files and data frames."""
    for result in results:
        plain = {name: value for name, value in vars(result).items() if isinstance(value, str | int | float)}
        for name, metric in result.metrics.items():
            row = plain | {"metric": name, "value": metric.value, "low": metric.low, "high": metric.high}
            row |= {"chance": metric.chance, "spread": metric.spread, "n": metric.answers}
            row |= {"settings": _text(result.settings), "details": _text(result.details)}
            yield row | {"commit": result.provenance.get("commit", "")}


def _text(values: dict[str, Any]) -> str:
    parts = []
    for name, value in values.items():
        text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
        parts.append(f"{name} {text}")
    return "; ".join(parts)
