"""The record of a run: all that decided its numbers, as its checkpoints and the files of its weights hold it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from gdt.common import serialization
from gdt.common.errors import UserError, first_line, require_range
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.shards.statistics import Statistics
from gdt.train.models.network import PAPER_NETWORKS
from gdt.train.settings import NOT_COMPARED, Pretrain, RunSettings

LENGTH = ("epochs", "steps")
"""The length of a run, which affects results only through the learning rate."""
T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """Origin of weights that are not from a run."""

    kind: str
    dropped: tuple[str, ...]
    """Parts of the file that the model does not have."""
    fresh: tuple[str, ...]
    """Parts of the model that the file does not have; their weights are random."""
    finetuned_on: tuple[str, ...] = ()
    """Names of the videos whose labels the weights learned, as `eval` makes them; empty if unknown."""

    @property
    def finetuned(self) -> bool:
        return "finetuned" in self.kind

    def __str__(self) -> str:
        text = self.kind
        for name, parts in {"dropped": self.dropped, "random": self.fresh}.items():
            if parts:
                text += f"; {name} {', '.join(parts)}"
        return text


@dataclass(frozen=True)
class Record:
    """What a run was asked for, resolved, and what it was trained on and to."""

    settings: RunSettings
    """For external weights, those of the paper."""
    statistics: Statistics
    """Normalisation of the inputs, that of the shards or of --init."""
    fps: int = 30
    """Frames per second of the training shards."""
    fingerprint: str = ""
    """Of the training shards; empty if unknown."""
    words: str = ""
    """Checksum of the word vectors; empty if unknown or without text."""
    factors: str = ""
    """Checksum of the Python file with custom transformations; empty without."""
    start: str = ""
    """Digest of the weights of --init; empty without."""
    step: int = 0
    """Steps that are done; 0 if unknown."""
    steps: int = 0
    """Steps of the whole run; 0 if unknown."""
    flops: float = 0.0
    """FLOPs of a step over all ranks; 0 if unknown."""
    origin: Origin | None = None
    """Origin of weights that are not from a checkpoint of this program."""

    def __post_init__(self) -> None:
        require_range(self, "fps")
        require_range(self, "step", "steps", least=0)

    @property
    def inputs(self) -> Inputs:
        return Inputs(self.settings.clip, self.settings.augmentation, self.statistics, self.fps)

    def decisive(self) -> dict[str, Any]:
        """All that affects the results of its steps, by a name for messages."""
        return decisive(self.settings) | {
            "set of shards": self.fingerprint,
            "word vectors": self.words,
            "file of --factors-from": self.factors,
            "weights of --init": self.start,
        }


def header(kind: str, record: Record) -> dict[str, str]:
    """What a file of this kind and version holds beside its weights."""
    return {"format": kind, "record": serialization.to_json(record)}


def record_in(content: Mapping[str, Any], source: str) -> Record:
    """The record in the content of a file with a `header`, without the Python files that it names.

    What a file names is never run. Raises UserError with `source` and what is missing, unknown or out of range.
    """
    record = parsed(Record, content.get("record"), source)
    return replace(record, settings=replace(record.settings, factors_from=None, own_networks=PAPER_NETWORKS))


def from_file(path: Path) -> RunSettings:
    """The settings in the file SETTINGS_FILE of a run. Raises UserError if it is missing or of another version."""
    try:
        return parsed(RunSettings, path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read settings from {path} ({first_line(error)})") from error


def parsed(kind: type[T], text: Any, source: str) -> T:
    """A record or its settings, from JSON. Raises UserError with `source` and what is wrong."""
    try:
        return serialization.from_json(kind, text)
    except (ValueError, UserError) as error:
        raise UserError(
            f"{source} holds no settings of this version ({error}); use the version that wrote it"
        ) from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any], ignored: Collection[str] = ()) -> list[str]:
    """Descriptions of the differences between two results of `decisive`."""
    changed = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return [
        f"the {name}" if " " in name else f"{name} was {old.get(name)}, now {new.get(name)}"  # checksums say nothing
        for name in changed
        if name not in ignored
    ]


def decisive(settings: Pretrain) -> dict[str, Any]:
    """Settings that affect results, by dotted name."""
    values: dict[str, Any] = {}
    composition = {"composition": settings.factors or settings.preset}
    for name, value in (asdict(settings) | composition).items():
        parts = value if isinstance(value, dict) else {"": value}
        values |= {f"{name}.{part}".strip("."): setting for part, setting in parts.items()}
    kinds = get_type_hints(Pretrain, include_extras=True)
    not_compared = {name for name, kind in kinds.items() if NOT_COMPARED in getattr(kind, "__metadata__", ())}
    return {name: value for name, value in values.items() if name.partition(".")[0] not in not_compared}
