"""What a file of a model holds besides weights: how it was trained, and what its inputs are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gdt.common.errors import Damaged
from gdt.common.serialization import from_dict, to_json
from gdt.pipeline.shards.statistics import Statistics
from gdt.train.settings import RunSettings
from gdt.train.settings_text import from_json

STATISTICS = "statistics"
"""Key of the normalisation in files: `Statistics.to_numbers`."""
SETTINGS = "settings"
"""Key of the pretraining settings, with the sizes of networks and clips, as JSON."""
FPS = "fps"
"""Key of `TrainingRecord.fps`."""


@dataclass(frozen=True)
class RunData:
    """What a run was trained on."""

    fingerprint: str = ""
    """Of the training shards; empty if unknown."""
    words_checksum: str = ""
    """Checksum of the word vectors; empty if unknown or without text."""
    factors_checksum: str = ""
    """Checksum of the Python file with custom transformations; empty without."""
    start_digest: str | None = ""
    """Digest of the weights of --init; empty without, None if its version did not record it."""


@dataclass(frozen=True)
class Learned:
    """Videos with labels, as files name them."""

    dataset: str
    shards: str
    """Fingerprint of the shards."""
    videos: tuple[str, ...]
    """Hashes of their ids, which may be paths."""

    @staticmethod
    def of(dataset: str, shards: str, ids: Iterable[str]) -> Learned:
        return Learned(dataset, shards, tuple(sorted(map(_hash, ids))))

    def count(self, dataset: str, shards: str, ids: Iterable[str]) -> int:
        """How many of these videos are among them; 0 if both are neither of one data set nor of the same shards."""
        if dataset != self.dataset and shards != self.shards:
            return 0
        learned = set(self.videos)
        return sum(_hash(id) in learned for id in ids)


def _hash(id: str) -> str:
    return hashlib.blake2b(id.encode(errors="surrogateescape"), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Origin:
    """Origin of weights that are not from a run."""

    kind: str
    dropped: tuple[str, ...]
    """Parts of the file that the model does not have."""
    fresh: tuple[str, ...]
    """Parts of the model that the file does not have; their weights are random."""
    finetuned_on: Learned | None = None
    """Videos whose labels the weights learned; None if unknown, as in earlier versions."""

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
class TrainingRecord:
    settings: RunSettings
    """For external weights without settings, those of the paper."""
    statistics: Statistics
    """Normalisation of the inputs, that of the shards or of --init."""
    data: RunData = RunData()
    step: int = 0
    """Training steps; 0 if unknown."""
    steps: int = 0
    """Steps of the whole run; 0 if unknown."""
    per_step: tuple[int, float] | None = None
    """Videos and FLOPs of a step, which do not need the user's own factors; None if its version did not record them."""
    origin: Origin | None = None
    """Origin of weights that are not from a checkpoint of this program."""
    fps: int = 30
    """Frames per second of the training shards; 0 if unknown, as of runs of earlier versions."""

    def to_plain(self) -> dict[str, Any]:
        """As plain values, by the keys of files."""
        values: dict[str, Any] = {
            SETTINGS: to_json(self.settings),
            STATISTICS: self.statistics.to_numbers(),
            "data": self.data.fingerprint,
            "words": self.data.words_checksum,
            "factors": self.data.factors_checksum,
            "start": self.data.start_digest,
            "step": self.step,
            "steps": self.steps,
            "per_step": self.per_step,
            FPS: self.fps,
        }
        if self.origin is not None:
            values["origin"] = asdict(self.origin)
        return values

    @staticmethod
    def from_plain(values: Mapping[str, Any], source: str) -> TrainingRecord:
        """The inverse of `to_plain`.

        Raises Damaged if a value is missing or invalid, and UserError with `source` if the settings are of another
        version.
        """
        require_keys(values, SETTINGS, STATISTICS, "data", "words", "step", "steps")
        origin = values.get("origin")
        if origin and isinstance(origin.get("finetuned_on"), list):
            origin = origin | {"finetuned_on": None}  # the fold, in earlier versions
        per_step = values.get("per_step")  # earlier versions wrote neither this nor the values with a default
        try:
            statistics = Statistics.from_numbers(values[STATISTICS], source)
            data = RunData(values["data"], values["words"], values.get("factors", ""), values.get("start"))
            return TrainingRecord(
                from_json(values[SETTINGS], source),
                statistics,
                data,
                int(values["step"]),
                int(values["steps"]),
                tuple(per_step) if per_step else None,
                from_dict(Origin, origin) if origin else None,
                int(values.get(FPS, 0)),
            )
        except (ValueError, TypeError) as error:
            raise Damaged(f"its metadata is invalid ({error})") from error


def require_keys(content: Mapping[str, Any], *keys: str) -> None:
    """Raise Damaged if the content of a file lacks some of these keys."""
    missing = {*keys} - content.keys()
    if missing:
        raise Damaged(f"it has no {', '.join(sorted(missing))}")
