"""A trained model with what it takes to use it, wherever it was read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gdt.pipeline.shards.index import Index, Statistics
from gdt.train.models.gdt import GDT
from gdt.train.settings import Pretrain


@dataclass(frozen=True)
class Foreign:
    """Where weights are from that are no run's."""

    kind: str
    """What the file is, in words."""
    loaded: tuple[str, ...]
    """Parts of the model that the file has."""
    dropped: tuple[str, ...]
    """Parts of the file that this model has no place for."""
    fresh: tuple[str, ...]
    """Parts of the model that the file does not have, with random weights."""
    learned: tuple[str, int] | None = None
    """Of finetuned weights, the fingerprint of the shards and the fold whose labels they learned; None if not known."""

    @staticmethod
    def of(
        model: GDT, kind: str, dropped: Sequence[str], fresh: Sequence[str], learned: tuple[str, int] | None = None
    ) -> Foreign:
        """Of a model with such weights."""
        loaded = tuple(name for name, _ in model.named_children() if name not in fresh)
        return Foreign(kind, loaded, tuple(dropped), tuple(fresh), learned)

    def __str__(self) -> str:
        parts = [f"{self.kind}: loaded {', '.join(self.loaded)}"]
        parts += [f"dropped {', '.join(self.dropped)}"] if self.dropped else []
        parts += [f"random {', '.join(self.fresh)}"] if self.fresh else []
        return "; ".join(parts)


@dataclass(frozen=True)
class Trained:
    """A model on the CPU and in evaluation mode, with the settings of the run that it is of."""

    model: GDT
    settings: Pretrain
    """The paper's, where the weights are from elsewhere and bring none."""
    step: int
    """Steps it was trained for; 0 where that is not known."""
    statistics: Statistics
    """With which its inputs are normalised."""
    foreign: Foreign | None = None
    """Where the weights are from, where not from a checkpoint of this program."""
    data: str = ""
    """Fingerprint of the shards that it was trained on; empty where that is not known."""

    @property
    def name(self) -> str:
        """Of the composition, or of the kind of weights."""
        return self.foreign.kind if self.foreign else self.settings.factors or self.settings.preset

    def untrained(self) -> Trained:
        """A model of the same sizes and modalities, with the weights that its run began with."""
        torch.manual_seed(0 if self.foreign else self.settings.seed)
        model = GDT(self.model.network, self.model.modalities).eval()
        return replace(self, model=model, step=0, data="")

    def normalised(self, index: Index) -> Index:
        """An index whose inputs are normalised as the model has learned it."""
        return replace(index, statistics=self.statistics)
