"""What evaluations found: typed rows, written as JSON and read again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from eval.retrieval import Accuracy
from pipeline import serialization
from pipeline.errors import UserError

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


def to_json(results: Result | list[Result]) -> str:
    """One row, or several as a list."""
    return serialization.to_json(results, indent=2)


def from_json(text: str, source: str = "this text") -> list[Result]:
    """The rows, one or several, that `to_json` wrote. Raises UserError that names `source` where they are others."""
    try:
        values = json.loads(text)
        return [serialization.rebuilt(Result, row) for row in (values if isinstance(values, list) else [values])]
    except ValueError as error:
        raise UserError(
            f"{source} holds results of another version of this program ({error}); evaluate the checkpoint again"
        ) from error
