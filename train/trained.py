"""A trained model with all that is needed to use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import torch

from gdt.pipeline.shards.statistics import Statistics
from gdt.train.models.foreign import Builders
from gdt.train.models.gdt import GDT, head_name
from gdt.train.settings import Pretrain


@dataclass(frozen=True)
class Origin:
    """Origin of weights that are not from a run."""

    kind: str
    dropped: tuple[str, ...]
    """Parts of the file that the model does not have."""
    fresh: tuple[str, ...]
    """Parts of the model that the file does not have; their weights are random."""
    finetuned_on: tuple[str, int] | None = None
    """Fingerprint of the shards and fold that the weights were finetuned on; None if unknown."""

    def __str__(self) -> str:
        text = self.kind
        for name, parts in {"dropped": self.dropped, "random": self.fresh}.items():
            if parts:
                text += f"; {name} {', '.join(parts)}"
        return text


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode, with the settings of its run; who uses it on a GPU moves it there in place."""

    model: GDT
    settings: Pretrain
    """For external weights without settings, those of the paper."""
    step: int
    """Training steps; 0 if unknown."""
    statistics: Statistics
    origin: Origin | None = None
    """Origin of weights that are not from a checkpoint of this program."""
    fingerprint: str = ""
    """Fingerprint of the training shards; empty if unknown."""
    steps: int = 0
    """Steps of the whole run; 0 if unknown."""
    words_checksum: str = ""
    """Checksum of the word vectors that it was trained with; empty if unknown or without text."""
    factors_checksum: str = ""
    """Checksum of the Python file with its custom transformations; empty without."""
    outputs: Mapping[str, list[list[float]]] = field(default_factory=dict)
    """What its networks of the user's own compute, by modality: `models.foreign.outputs_of`."""
    builders: Builders = field(default_factory=dict)
    """Make these networks anew."""
    per_step: tuple[int, float] | None = None
    """Videos and FLOPs of a step, which do not need the user's own factors; None if its version did not record them."""

    @property
    def name(self) -> str:
        """Composition, or kind of external weights."""
        if self.origin:
            return self.origin.kind
        return self.settings.factors or self.settings.preset

    @property
    def without_head(self) -> tuple[str, ...]:
        """Modalities whose heads are random, since the external weights have none."""
        fresh = self.origin.fresh if self.origin else ()
        return tuple(name for name in self.model.modalities if head_name(name) in fresh)

    def digest(self) -> str:
        """SHA-256 of the weights, of all settings of the inputs, and of networks of the user's own."""
        value = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            value.update(name.encode())
            value.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
        inputs = [self.statistics.to_numbers(), asdict(self.settings.clip), asdict(self.settings.augmentation)]
        inputs += [asdict(network) for network in self.model.network.own.values()]
        value.update(json.dumps(inputs).encode())
        return value.hexdigest()

    def untrained(self) -> Trained:
        """The same model with the initial weights of its run."""
        with torch.random.fork_rng([]):  # the caller's random numbers stay
            torch.default_generator.manual_seed(0 if self.origin else self.settings.seed)
            model = GDT(self.model.network, self.model.modalities, self.builders).eval()
        return replace(self, model=model, step=0, fingerprint="", steps=0)
