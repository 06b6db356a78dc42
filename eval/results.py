"""What evaluations found: typed rows, written as JSON, read again, and laid out as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.retrieval import Accuracy
from pipeline import serialization
from pipeline.errors import UserError
from train.provenance import Provenance
from train.settings import BEFORE, Pretrain

RANDOM = "random weights"


@dataclass(frozen=True)
class Result:
    """Retrieval and few-shot accuracy of the frozen features of one checkpoint, in percent."""

    checkpoint: Path
    dataset: str
    """Name of the data set that was evaluated on."""
    preset: str
    """Name of the composition, or the factors of one without a name; RANDOM where the weights are random."""
    step: int
    """Steps that the model was trained for."""
    seed: int
    """Seed of the training, and of random weights."""
    gallery: int
    """Videos that were searched, and from which shots were drawn."""
    queries: int
    """Videos that were classified."""
    too_short: int
    """Videos of both splits that were left out since they are shorter than a clip."""
    query_split: str
    fold: int
    """Official fold whose splits count; 0 for the splits as they are."""
    classes: int
    clips: int
    """Clips per video."""
    recall: dict[int, float]
    """R@k by k."""
    chance: dict[int, float]
    """R@k of a random order of the gallery, by k."""
    few_shot: dict[int, Accuracy]
    """By shots per class."""
    random_weights: bool
    """Whether the weights were those that the training began with."""
    gallery_split: str
    gallery_per_class: int
    """How many videos of each class were searched at most; 0 for all."""
    shots_seed: int
    """Decides which videos are the shots."""
    pretraining: Pretrain
    """Settings of the training that the checkpoint is of."""
    data: str
    """Fingerprint of the data set that was evaluated on, before a fold is taken, as `fingerprint` gives it."""
    provenance: Provenance
    """Of the evaluation."""


_MISSING = {f"pretraining.{name}": value for name, value in BEFORE.items()}


def to_json(results: Result | list[Result]) -> str:
    """One row, or several as a list."""
    return serialization.to_json(results, indent=2)


def from_json(text: str, source: str = "this text") -> list[Result]:
    """The rows, one or several, that `to_json` wrote. Raises UserError that names `source` where they are others."""
    try:
        values = json.loads(text)
        rows = values if isinstance(values, list) else [values]
        return [serialization.rebuilt(Result, _with_provenance(row), _MISSING) for row in rows]
    except (ValueError, UserError) as error:
        raise UserError(
            f"{source} holds results of another version of this program ({error}); evaluate the checkpoint again"
        ) from error


def _with_provenance(row: Any) -> Any:
    """The row; one from before there was a provenance has all of it that is known."""
    if not isinstance(row, dict) or "provenance" in row or not row.keys() >= {"commit", "device"}:
        return row
    others = {name: value for name, value in row.items() if name not in ("commit", "device")}
    known = {"command": "", "commit": row["commit"], "versions": {}, "device": row["device"], "started": ""}
    return others | {"provenance": known}


def table(rows: Mapping[str, Sequence[Result]], corner: str = "") -> str:
    """One line per name: the mean over its results, with lowest and highest where there are several; chance last.

    All results are of the same videos. `corner` heads the column of names.
    """
    first = next(iter(rows.values()))[0]
    ks, shots = list(first.recall), list(first.few_shot)
    lines = [[corner, *(f"R@{k}" for k in ks), *(f"{n}-shot" for n in shots)]]
    for name, results in rows.items():
        recalls = [_cell([result.recall[k] for result in results]) for k in ks]
        accuracies = [_cell([result.few_shot[n].mean for result in results]) for n in shots]
        lines.append([name, *recalls, *accuracies])
    lines.append(["chance", *(_cell([first.chance[k]]) for k in ks), *(_cell([100 / first.classes]) for _ in shots)])
    return layout(lines)


def _cell(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.1f}"
    return f"{mean} ({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else mean


def layout(rows: list[list[str]]) -> str:
    """Cells as a text table with a rule under the first row."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
