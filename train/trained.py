"""A trained model with all that is needed to use it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from gdt.common.errors import UserError
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.word2vec import WordVectors
from gdt.train import tensors
from gdt.train.models.gdt import GDT, head_name
from gdt.train.record import Origin, Record, header
from gdt.train.settings import RunSettings

MODEL = "gdt-model-3"
"""Kind and version of the files of `Trained.write`."""


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode, with the settings of its run; who uses it on a GPU moves it there in place."""

    model: GDT
    record: Record

    @property
    def settings(self) -> RunSettings:
        return self.record.settings

    @property
    def inputs(self) -> Inputs:
        return self.record.inputs

    @property
    def step(self) -> int:
        """Training steps; 0 if unknown."""
        return self.record.step

    @property
    def origin(self) -> Origin | None:
        """Origin of weights that are not from a checkpoint of this program."""
        return self.record.origin

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
        inputs = [asdict(self.inputs), *(asdict(network) for network in self.model.network.own.values())]
        value.update(json.dumps(inputs).encode())
        return value.hexdigest()

    def require_same_words(self, words: WordVectors, model: str, path: str | Path) -> None:
        """Raise UserError if it has a text network that was trained with other word vectors than those of a file."""
        if "text" not in self.model.modalities:
            return
        same = self.record.words in ("", words.checksum)
        if not same or self.model.network.word_dimensions != words.dimensions:
            raise UserError(
                f"{model} was trained with other word vectors than those of {path}; set --word2vec to the file of its "
                "training"
            )

    def write(self, path: Path) -> None:
        """Write a safetensors file with the record as metadata, atomically. Raises OSError."""
        tensors.write(path, self.model.state_dict(), header(MODEL, self.record))

    def untrained(self) -> Trained:
        """The same model with the initial weights of its run."""
        with torch.random.fork_rng([]):  # the caller's random numbers stay
            torch.default_generator.manual_seed(0 if self.origin else self.settings.seed)
            model = GDT(self.model.network, self.model.modalities, self.model.makers).eval()
        record = replace(self.record, fingerprint="", step=0, steps=0)
        return replace(self, model=model, record=record)
