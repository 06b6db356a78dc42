"""Which side of the picture is up."""

from __future__ import annotations

import numpy as np

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.base import Choice


class Rotation(Choice):
    """Quarter turns of the crop, counter-clockwise; sound has no side that is up, and stays as it is."""

    name = "rotation"
    values = ("upright", "turned by 90", "turned by 180", "turned by 270")

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.turns = values
