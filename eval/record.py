"""The one record of evaluation: what was measured, and everything that decides it. Every command writes such records,
and every table, plot and page is made from them.

A `Record` is what one protocol found of one model on some videos: its numbers by name, each with its 95 % interval,
chance and count. A file holds a list of them as JSON; `write` and `read` are the only way in and out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.eval.metrics import Metric
from gdt.train.provenance import Provenance
from gdt.train.settings import Pretrain

T = TypeVar("T")
RANDOM = "random weights"
"""The model, and the preset, of records whose weights are those that the training began with."""
TrainedOn = Literal["others", "these", "unknown"]
Promise = Literal["distinctive", "invariant", "not varied", "not known"]


@dataclass(frozen=True)
class Factor:
    """What of a model, and which of its transformations, the numbers are of, where they are of one."""

    name: str
    network: str
    """Modality of the network; both of them where the factor is what they differ in."""
    values: tuple[str, ...]
    """Of the factor, in words."""
    promise: Promise
    """Of the composition."""
    kept: bool | None
    """Whether the embedding keeps the promise; None where there is none."""
    against: str
    """What speaks against it, in words."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one protocol found of one model on some videos."""

    protocol: str
    """Of `eval.protocols`; `factors` and `figures` of the commands of these names."""
    model: str
    """Name: of its run's folder, or of its file; RANDOM."""
    weights: str
    """Digest of the weights, of the statistics of their inputs, and of clips and crops."""
    checkpoint: Path
    """Of the network, where the weights are random."""
    preset: str
    """Row of table 1 and the like, one's own factors, or the kind of weights; RANDOM."""
    step: int
    """Steps it was pretrained for."""
    seed: int
    """Of the pretraining, and of random weights."""
    trained_on: TrainedOn
    """Whether the weights have learned, without labels, from the videos that were evaluated."""
    pretraining: Pretrain
    dataset: str
    shards: Path
    """Folder of the shards."""
    data: str
    """Fingerprint of the shards, before a fold is taken."""
    query_split: str
    clips: int
    """Of every video; of a factor, those that each network got to see, of all values."""
    queries: int
    """Videos that were evaluated."""
    metrics: dict[str, Metric]
    """By name; the column of the table."""
    settings: dict[str, Any]
    """Of the command, as JSON holds them; see `settings_as`."""
    provenance: Provenance
    label: str = ""
    """Column of the labels; empty for the classes of the data set."""
    labels: str = ""
    """Digest of who is searched or learned from, who is evaluated, and their labels."""
    fold: int = 0
    """Official fold whose splits count; 0 for the splits as they are."""
    gallery: int = 0
    """Videos that were searched or learned from."""
    held: int = 0
    """Of queries and gallery, those that are shorter than a clip, and whose last frame is held."""
    classes: int = 0
    """That were learned or searched; 0 without labels."""
    how: dict[str, str] = field(default_factory=dict)
    """All else that could change the numbers, in words: clips, precision, the recipe of finetuning."""
    factor: Factor | None = None
    videos: tuple[str, ...] = ()
    """Ids of the videos of `per_video`."""
    per_video: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Numbers of each video, by name."""
    notes: tuple[str, ...] = ()
    """What else is to be known, a sentence each."""

    def settings_as(self, kind: type[T]) -> T:
        """The settings of the command, which are of this type."""
        return serialization.from_dict(kind, self.settings)


def write(path: Path, records: Sequence[Record]) -> None:
    """Write a file of records, whole or not at all."""
    write_text(path, serialization.to_json(list(records), indent=1) + "\n")


def read(path: Path) -> list[Record]:
    """The records in a file. Raises UserError where it holds something else."""
    return parse(path.read_text(encoding="utf-8", errors="replace"), str(path))


def parse(text: str, source: str) -> list[Record]:
    """The records in the text of a file. Raises UserError that names `source` where it holds something else."""
    try:
        values = json.loads(text)
        if not isinstance(values, list):
            raise ValueError("it is no list")
        return [serialization.from_dict(Record, value) for value in values]
    except (ValueError, TypeError, UserError) as error:
        raise UserError(
            f"{source} holds results of another version of this program ({error}); evaluate the checkpoint again"
        ) from error


def settings_of(settings: Any) -> dict[str, Any]:
    """The settings of a command as `Record.settings` holds them."""
    plain: dict[str, Any] = json.loads(serialization.to_json(settings))
    return plain


def rows(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """The records in long form, a row for each of their numbers, with what decides it: for CSV and data frames."""
    for record in records:
        own = {name: value for name, value in vars(record).items() if isinstance(value, str | int | Path)}
        own |= {"factor": record.factor.name, "network": record.factor.network} if record.factor else {}
        for name, metric in record.metrics.items():
            yield own | {
                "metric": name, "value": metric.value, "low": metric.low, "high": metric.high,
                "chance": metric.chance, "spread": metric.spread, "n": metric.answers,
                "how": format_details(record.how), "commit": record.provenance.commit,
            }  # fmt: skip


def format_details(how: Mapping[str, str]) -> str:
    """How a record came about, in words."""
    return "; ".join(f"{name} {value}" for name, value in how.items())
