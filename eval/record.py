"""Records of evaluation: metrics, and everything that decides them.

All commands write records; all tables, plots and pages read them. A file holds a list of records as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from gdt.common import serialization
from gdt.common.errors import UserError, first_line
from gdt.common.files import write_text
from gdt.eval.metrics import Metric
from gdt.eval.protocols import PROTOCOLS, decisive_names
from gdt.train.settings import Pretrain

T = TypeVar("T")
RANDOM = "random weights"
"""Model and preset in records of untrained networks."""
"""Options in which the rows and seeds of one table may differ; the last is set only for text."""
TrainedOn = Literal["others", "these", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """Result of one protocol for one model on some videos."""

    protocol: str
    """A name of `eval.protocols`."""
    model: str
    """Name of the run's folder or of the file, or RANDOM."""
    weights: str
    """Digest of the weights, the statistics of their inputs, the clip and the crops."""
    checkpoint: Path
    """Checkpoint; for random weights, that of the same network."""
    preset: str
    """Name of the preset, custom factors, kind of weights, or RANDOM."""
    step: int
    """Steps of pretraining."""
    seed: int
    """Seed of pretraining and of random weights."""
    trained_on: TrainedOn
    """Whether any of the query videos were used in pretraining, without labels."""
    pretraining: Pretrain
    dataset: str
    shards: Path
    """Folder of shards."""
    data: str
    """Fingerprint of the shards, without regard to folds."""
    query_split: str
    clips: int
    """Clips per video."""
    queries: int
    """Number of evaluated videos."""
    metrics: dict[str, Metric]
    """By name, which is also the heading of its column in tables."""
    settings: dict[str, Any]
    """Settings of the command as JSON, see `settings_as`; those that do not affect a protocol are at their defaults."""
    provenance: dict[str, Any]
    """As from `train.provenance`."""
    label: str = ""
    """Column of labels; empty for the classes of the data set."""
    labels: str = ""
    """Checksum of gallery, queries and their labels."""
    words: str = ""
    """Checksum of word vectors and captions; empty without text."""
    fold: int = 0
    """Official fold; 0 for the splits of the data set."""
    gallery: int = 0
    """Number of videos that were searched or trained on."""
    short: int = 0
    """Number of queries and gallery videos shorter than a clip, whose last frame is repeated."""
    seen: int = 0
    """Number of queries that were used in pretraining; 0 if that is unknown."""
    classes: int = 0
    """Classes of the gallery; 0 without labels."""
    details: dict[str, str] = field(default_factory=dict)
    """Other details that could change the numbers, as text: clips, precision, recipe."""
    notes: tuple[str, ...] = ()
    """Remarks, a sentence each."""
    equal: str = ""
    """Of an ablation: its `--equal` and what all its rows get, as text."""
    tflop: float = 0.0
    """Of an ablation: 10^12 FLOPs of the networks in pretraining."""

    def settings_as(self, kind: type[T]) -> T:
        """The settings of the command, whose type is `kind`."""
        return serialization.from_dict(kind, self.settings)


def write(path: Path, records: Sequence[Record]) -> None:
    """Write a file of records atomically."""
    write_text(path, serialization.to_json(list(records), indent=1) + "\n")


AGAIN = "remove it, then rerun the command that wrote it"


def read(path: Path, advice: str = AGAIN) -> list[Record]:
    """Read a file of records. Raises UserError with `advice` for any other file."""
    return parse(path.read_text(encoding="utf-8", errors="replace"), str(path), advice)


def read_or_warn(path: Path, advice: str = AGAIN) -> list[Record]:
    """The records in a file; empty if it is missing, or (with a warning) damaged or of another version."""
    if not path.is_file():
        return []
    try:
        return read(path, advice)
    except UserError as error:
        print(f"warning: {error}", file=sys.stderr)
        return []


def parse(text: str, source: str, advice: str = AGAIN) -> list[Record]:
    """Parse the text of a file of records. Raises UserError naming `source` for any other text."""
    try:
        values = json.loads(text)
        if not isinstance(values, list):
            raise ValueError("not a list")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is damaged ({first_line(error)}); {advice}") from error
    try:
        return [serialization.from_dict(Record, row) for row in values]
    except (ValueError, TypeError, UserError) as error:
        raise UserError(f"{source} holds results of another version of this program ({error}); {advice}") from error


def settings_of(settings: Any) -> dict[str, Any]:
    """Settings of a command as stored in `Record.settings`."""
    plain: dict[str, Any] = json.loads(serialization.to_json(settings))
    return plain


_MODEL = ("model", "weights", "preset", "seed", "step", "checkpoint", "trained_on")
_DATA = ("protocol", "dataset", "data", "query_split", "label", "labels", "fold", "words")
_SETTINGS = tuple(dict.fromkeys(name for protocol in PROTOCOLS for name in decisive_names(protocol)))
"""Settings of all protocols, which are columns of `rows`."""


def conditions(record: Record) -> dict[str, Any]:
    """Everything but the model that decides a record's numbers, by column; equal for records that can be compared.

    Settings that do not affect its protocol are None.
    """
    own = decisive_names(record.protocol)
    settings = {name: record.settings[name] if name in own else None for name in dict.fromkeys((*_SETTINGS, *own))}
    settings["evaluation_seed"] = settings.pop("seed")  # `seed` is that of pretraining
    plain = {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in settings.items()}
    return plain | {name: getattr(record, name) for name in _DATA} | {"precision": record.details.get("precision", "")}


def rows(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """One dict per metric, for CSV and data frames: the model, the `conditions`, the metric, and counts of videos."""
    for record in records:
        own = {name: getattr(record, name) for name in _MODEL} | conditions(record)
        own |= {name: value for name, value in vars(record).items() if isinstance(value, str | int | float | Path)}
        for name, metric in record.metrics.items():
            yield own | {
                "metric": name, "value": metric.value, "low": metric.low, "high": metric.high,
                "chance": metric.chance, "spread": metric.spread, "n": metric.answers,
                "details": format_details(record.details), "commit": record.provenance["commit"],
            }  # fmt: skip


def format_details(details: Mapping[str, str]) -> str:
    """Details of a record in one line."""
    return "; ".join(f"{name} {value}" for name, value in details.items())
