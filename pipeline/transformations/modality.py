"""m: picture, sound or words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gdt.common.errors import UserError
from gdt.pipeline.leaves import MODALITIES, Leaves
from gdt.pipeline.transformations.base import Choice


@dataclass(frozen=True)
class Modality(Choice):
    """The modality of the leaf, one of those named; the first of them where it is not varied."""

    name = "modality"
    of: tuple[str, ...] = ("video", "audio")
    """Which there are to choose from."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.of if name not in MODALITIES]:
            raise UserError(f"there is no modality '{unknown[0]}'; there are {', '.join(MODALITIES)}")
        if not self.of or len(set(self.of)) < len(self.of):
            raise UserError(f"the modalities are {', '.join(self.of) or 'none'}; they must be different ones")

    @property
    def values(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.of

    def refuses(self, k: int) -> str:
        if why := super().refuses(k):
            return why
        if not self.takes_all(k):  # encoders and buffers count on as many leaves of each in every batch
            return f"it has {len(self.of)} values, of which a batch holds 1 or all; set it to {len(self.of)}"
        return ""

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.modality = np.asarray([MODALITIES.index(name) for name in self.of])[values]

    def modalities(self, k: int) -> tuple[str, ...]:
        return self.of[:k]
