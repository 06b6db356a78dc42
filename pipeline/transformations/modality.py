"""m: video, audio or text."""

from dataclasses import dataclass

import numpy as np

from gdt.common.errors import UserError, unknown
from gdt.pipeline.leaves import MODALITIES, Leaves
from gdt.pipeline.transformations.base import Choice


@dataclass(frozen=True)
class Modality(Choice):
    """Modality of the leaf, one of those in brackets: modality(video,text)."""

    name = "modality"
    of: tuple[str, ...] = ("video", "audio")
    """The first is the modality if it is not varied."""

    def __post_init__(self) -> None:
        for name in self.of:
            if name not in MODALITIES:
                raise unknown("modality", name, MODALITIES)
        if len(set(self.of)) < len(self.of):
            raise UserError(f"the modalities are {', '.join(self.of)}; name each once")

    @property
    def values(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.of

    def refuses(self, k: int) -> str:
        why = super().refuses(k)
        if not why and not self.takes_all(k):  # every batch has the same number of each
            return f"the factor has {len(self.of)} values, of which a batch takes 1 or all; set K to {len(self.of)}"
        return why

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.modality = np.asarray([MODALITIES.index(name) for name in self.of])[values]

    def modalities(self, k: int) -> tuple[str, ...]:
        return self.of[:k]
