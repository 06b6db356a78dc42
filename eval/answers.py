"""The answers behind a line of results, a file each, by which rows are compared query by query."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdt.common.files import DAMAGE, require_readable, writing
from gdt.eval.metrics import Measured
from gdt.eval.results import Key, Result

FOLDER = "answers"
_QUERIES = "queries"


@dataclass(frozen=True)
class Answers:
    """What a protocol found for each query."""

    queries: np.ndarray
    """Rows of the index, int32 [n]."""
    values: dict[str, np.ndarray]
    """By metric, the numbers of which it is the mean: right or wrong, bool [n], or a share, float32 [n]; of mAP, one
    per label.
    """

    @classmethod
    def of(cls, queries: np.ndarray, metrics: Mapping[str, Measured]) -> Answers:
        """The answers of metrics, in small types."""
        values = {}
        for name, measured in metrics.items():
            is_bool = measured.answers.dtype == bool
            values[name] = measured.answers if is_bool else measured.answers.astype(np.float32)
        return cls(queries.astype(np.int32), values)


def write(out: Path, identity: Key, answers: Answers) -> None:
    """Write the answers of a result, by its identity, in the folder of an evaluation."""
    path = _path(out, identity)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {_QUERIES: answers.queries, **answers.values}
    with writing(path) as file:
        np.savez_compressed(file, **arrays)


def read(out: Path, identity: Key) -> Answers | None:
    """The answers of a result; None if they are missing, as of earlier versions, or damaged."""
    path = _path(out, identity)
    try:
        with np.load(path) as file:
            values = {name: file[name] for name in file.files}
            return Answers(values.pop(_QUERIES), values)
    except (OSError, *DAMAGE) as error:
        require_readable(path, error)
        return None


def read_all(out: Path, results: Iterable[Result]) -> dict[Key, Answers]:
    """The answers of those results in the folder of an evaluation that have some, by identity."""
    by_identity = {result.identity: read(out, result.identity) for result in results}
    return {identity: answers for identity, answers in by_identity.items() if answers is not None}


def _path(out: Path, identity: Key) -> Path:
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    return out / FOLDER / f"{digest}.npz"
