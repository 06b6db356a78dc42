"""What was found of one model: typed, written as JSON, read again, and laid out as tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.eval.factors.measures import Interval
from gdt.eval.factors.promises import Promise, Seen
from gdt.eval.measures import Measure
from gdt.eval.settings.factors import Factors
from gdt.train.provenance import Provenance
from gdt.train.settings import Pretrain

WORDS = {"video": "picture", "audio": "sound"}
"""Modalities by names that nobody takes for a factor's."""


@dataclass(frozen=True)
class Row:
    """One factor, as the network of one modality shows it."""

    factor: str
    network: str
    """Its modality; both of them where the factor is what they differ in."""
    values: tuple[str, ...]
    """Of the factor, in words."""
    videos: int
    clips: int
    """That each network got to see, of all values."""
    promise: Promise
    trunk: Seen | None
    """None where there are two trunks, whose features have nothing in common."""
    embedding: Seen | None
    """None where the weights have no head."""
    kept: bool | None
    """Whether the embedding keeps the promise; None where there is none."""
    against: str
    """What speaks against it, in words."""

    @property
    def of(self) -> str:
        """The network in words."""
        return WORDS.get(self.network, "both")

    @property
    def name(self) -> str:
        return f"{self.factor}, {self.of}"


@dataclass(frozen=True)
class Result:
    """All that was found of one model."""

    model: str
    """Name of the model: of its run's folder, or of its file."""
    weights: str
    """Digest of the weights."""
    checkpoint: Path
    preset: str
    """Row of table 1 and the like, one's own factors, or the kind of weights."""
    composition: str
    """Its factors as text; empty where they are not known."""
    step: int
    seed: int
    """Of the pretraining, and of the random weights."""
    dataset: str
    data: str
    """Fingerprint of the shards."""
    split: str
    trained_on: Literal["others", "these", "unknown"]
    """Whether the weights have learned from these videos."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """What has no row, and why, and what else is to be known, a sentence each."""
    evaluation: Factors
    pretraining: Pretrain
    provenance: Provenance


def to_json(results: Sequence[Result]) -> str:
    return serialization.to_json(list(results), indent=2)


def from_json(text: str, source: str = "this text") -> list[Result]:
    """The results that `to_json` wrote. Raises UserError naming `source` where they are others."""
    try:
        return [serialization.rebuilt(Result, row) for row in json.loads(text)]
    except (ValueError, TypeError, UserError) as error:
        raise UserError(
            f"{source} holds no factors, or those of another version of this program ({error}); make them again with "
            "gdt eval factors"
        ) from error


def over_seeds(results: Sequence[Result]) -> list[Result]:
    """One result per model's name, of the same factors: means over seeds, between the lowest and the highest bound.

    A promise is kept where every seed keeps it. What else is of one seed is of the first.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.model, []).append(result)
    found = []
    for group in groups.values():
        rows: dict[str, list[Row]] = {}
        for row in (row for result in group for row in result.rows):
            rows.setdefault(row.name, []).append(row)
        found.append(replace(group[0], rows=tuple(_mean_row(alike) for alike in rows.values())))
    return found


def _mean_row(rows: Sequence[Row]) -> Row:
    kept = None if rows[0].kept is None else all(row.kept for row in rows)
    trunk, embedding = (
        _mean_seen([seen for row in rows if (seen := getattr(row, place)) is not None])
        for place in ("trunk", "embedding")
    )
    return replace(rows[0], trunk=trunk, embedding=embedding, kept=kept)


def _mean_seen(seen: Sequence[Seen]) -> Seen | None:
    if not seen:
        return None
    moved, moved_random, moved_more = (
        _mean_interval([each for one in seen if (each := getattr(one, name)) is not None])
        for name in ("moved", "moved_random", "moved_more")
    )
    told, told_random = (_mean_measure([getattr(one, name) for one in seen]) for name in ("told", "told_random"))
    return Seen(moved, moved_random, moved_more, told, told_random)


def _mean_interval(intervals: Sequence[Interval]) -> Interval | None:
    if not intervals:
        return None
    values, lows, highs = zip(*intervals, strict=True)
    return Interval(float(np.mean(values)), min(lows), max(highs))


def _mean_measure(measures: Sequence[Measure]) -> Measure:
    return Measure(float(np.mean([m.value for m in measures])), measures[0].chance, measures[0].answers)


def embedding_lines(result: Result) -> list[list[str]]:
    """The table of embeddings, beside what is promised of them; the heads first. Only heads where there are none."""
    lines = [["factor", "of", "promised", "moves", "random", "told %", "random", "chance"]]
    for row in result.rows:
        if row.embedding is not None:
            promise = {"not varied": "·", "not known": "?"}.get(row.promise, str(row.promise))
            promise += " !" if row.kept is False else ""
            lines.append([row.factor, row.of, promise, *_cells(row.embedding)])
    return lines


def trunk_lines(result: Result) -> list[list[str]]:
    """The table of the trunks' features, of which nothing is promised; the heads first."""
    lines = [["factor", "of", "moves", "random", "told %", "random", "chance"]]
    for row in result.rows:
        cells = _cells(row.trunk) if row.trunk is not None else ["—"] * 5
        lines.append([row.factor, row.of, *cells])
    return lines


def _cells(seen: Seen) -> list[str]:
    moved = [_moved(seen.moved), _moved(seen.moved_random)]
    return [*moved, _told(seen.told), _told(seen.told_random), f"{seen.told.chance:.1f}"]


def _moved(interval: Interval | None) -> str:
    return "—" if interval is None else f"{interval.value:.2f} ({interval.low:.2f}-{interval.high:.2f})"


def _told(measure: Measure) -> str:
    low, high = measure.interval
    return f"{measure.value:.1f} ({low:.1f}-{high:.1f})"
