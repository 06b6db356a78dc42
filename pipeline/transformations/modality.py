"""m: picture or sound."""

from __future__ import annotations

import numpy as np

from pipeline.leaves import MODALITIES, Leaves
from pipeline.transformations.base import Choice


class Modality(Choice):
    """The modality of the leaf; the picture where it is not varied."""

    name = "modality"
    values = MODALITIES

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.modality = values

    def modalities(self, k: int) -> tuple[str, ...]:
        return self.values[:k]
