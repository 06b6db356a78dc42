"""Lines of `results.jsonl`: what a protocol measured of a model, and all that decides it. Tables are views of them.

The answers behind a line are a file beside it, by which models are compared query by query.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gdt.common import serialization
from gdt.common.errors import UserError, first_line
from gdt.common.files import DAMAGE, lock, require_readable, writing
from gdt.eval.metrics import Measured, Metric
from gdt.eval.protocols import PROTOCOLS

RESULTS = "results.jsonl"
RANDOM = "random weights"
"""Model and preset of untrained networks."""
_SUBJECT = ("model", "weights")
_FOLD = ("fold", "fold_videos")
_SETTINGS = ("protocol", "version", "label", "data", "query_split", "words", "device", "settings")
ANSWERS = "answers"
"""Folder of answers beside RESULTS."""
_QUERIES = "queries"
_NEIGHBOURS = "neighbours"


def key_of(decisive: Mapping[str, Any]) -> str:
    """The key of whatever these values decide."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one protocol measured of one model, on one fold and with the labels of one column."""

    model: str
    """Name of the run's folder or of the file, or RANDOM."""
    weights: str
    """Digest of the weights, the statistics of their inputs, the clip and the crops."""
    fold: int
    """Official fold; 0 for the splits of the data set."""
    fold_videos: str
    """Hash of the ids and labels of gallery and queries."""
    protocol: str
    """A name of `eval.protocols`."""
    version: int
    """Of the protocol."""
    label: str
    """Column of labels; empty for the classes of the data set."""
    data: str
    """Fingerprint of the shards, without regard to folds."""
    query_split: str
    words: str
    """Checksum of the word vectors; empty without text."""
    device: str
    """cpu or cuda."""
    settings: dict[str, Any]
    """Those that decide the protocol's numbers. What follows does not decide them."""
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
    gallery: int
    """Videos that were searched or trained on."""
    queries: int
    """Videos that were evaluated."""
    classes: int
    """Classes of the gallery; 0 without labels."""
    metrics: dict[str, Metric] = field(default_factory=dict)
    """By name, which is also the heading of its column in tables."""
    details: dict[str, str] = field(default_factory=dict)
    """Clip, precision, pooling or recipe, as text."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """What `train.provenance` returns."""

    @property
    def key(self) -> str:
        """A result with the same is not computed again."""
        return self._key(*_SUBJECT, *_FOLD, *_SETTINGS)

    @property
    def shared(self) -> str:
        """The key without the model: rows with the same can be compared."""
        return self._key(*_FOLD, *_SETTINGS)

    @property
    def group(self) -> str:
        """The key without model and fold: a row of a table is a mean over results with the same."""
        return self._key(*_SETTINGS)

    def _key(self, *names: str) -> str:
        return key_of({name: getattr(self, name) for name in names})


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
            result = serialization.from_json(Result, line)
            if result.protocol not in PROTOCOLS:
                raise ValueError(f"unknown protocol {result.protocol}")
            results.append(result)
        except (ValueError, UserError) as error:
            reason = f"is damaged or of another version ({first_line(error)})"
            print(f"warning: line {number} of {path} {reason}; it is left out", file=sys.stderr)
    return results


def current(rows: Sequence[Result]) -> list[Result]:
    """Those that can stand beside the last one of their protocol, data set, labels and modalities.

    Others have other settings, videos, labels or code, or another kind of device.
    """

    def kind(row: Result) -> tuple[str, ...]:
        return row.protocol, row.dataset, row.label, row.words, str(row.settings.get("modalities"))

    group = {kind(row): row.group for row in rows}
    same = [row for row in rows if row.group == group[kind(row)]]
    of_fold = {(kind(row), row.fold): row.fold_videos for row in same}
    return [row for row in same if row.fold_videos == of_fold[kind(row), row.fold]]


def rows(results: Iterable[Result]) -> Iterator[dict[str, Any]]:
    """A dict per metric, for CSV files and data frames."""
    for result in results:
        plain = {name: value for name, value in vars(result).items() if isinstance(value, str | int | float)}
        for name, metric in result.metrics.items():
            row = {"key": result.key} | plain | {"metric": name, "value": metric.value}
            row |= {"low": metric.low, "high": metric.high}
            row |= {"chance": metric.chance, "spread": metric.spread, "n": metric.answers}
            row |= {"settings": _text(result.settings), "details": _text(result.details)}
            yield row | {"commit": result.provenance.get("commit", "")}


def _text(values: dict[str, Any]) -> str:
    parts = []
    for name, value in values.items():
        text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
        parts.append(f"{name} {text}")
    return "; ".join(parts)


@dataclass(frozen=True)
class Answers:
    """What a protocol found for each query."""

    queries: np.ndarray
    """Rows of the index, int32 [n]."""
    values: dict[str, np.ndarray]
    """By metric, the numbers of which it is the mean: right or wrong, bool [n], or a share, float32 [n]; of mAP, one
    per label.
    """
    neighbours: np.ndarray | None = None
    """The nearest of the gallery, of retrieval: rows of the index, int32 [n, k]."""


def write_answers(
    out: Path, key: str, queries: np.ndarray, metrics: Mapping[str, Measured], neighbours: np.ndarray | None
) -> None:
    """Write the answers of a result, in small types, in the folder of its evaluation."""
    arrays: dict[str, Any] = {_QUERIES: queries.astype(np.int32)}
    for name, measured in metrics.items():
        is_bool = measured.answers.dtype == bool
        arrays[name] = measured.answers if is_bool else measured.answers.astype(np.float32)
    if neighbours is not None:
        arrays[_NEIGHBOURS] = neighbours.astype(np.int32)
    path = _answers_file(out, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        np.savez_compressed(file, **arrays)


def answers(out: Path, key: str) -> Answers | None:
    """The answers of a result in the folder of its evaluation; None if they are missing or damaged."""
    path = _answers_file(out, key)
    try:
        with np.load(path) as file:
            values = {name: file[name] for name in file.files}
            return Answers(values.pop(_QUERIES), neighbours=values.pop(_NEIGHBOURS, None), values=values)
    except (OSError, *DAMAGE) as error:
        require_readable(path, error)
        return None


def all_answers(out: Path, results: Iterable[Result]) -> dict[str, Answers]:
    """The answers of those results in the folder of an evaluation that have some, by key."""
    by_key = {result.key: answers(out, result.key) for result in results}
    return {key: found for key, found in by_key.items() if found is not None}


def _answers_file(out: Path, key: str) -> Path:
    return out / ANSWERS / f"{key}.npz"
