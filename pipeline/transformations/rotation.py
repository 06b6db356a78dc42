"""Rotation of the frames."""

import numpy as np

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.base import Choice


class Rotation(Choice):
    """Quarter turns of the crop, counter-clockwise; audio and text do not change."""

    name = "rotation"
    values = ("upright", "rotated by 90", "rotated by 180", "rotated by 270")

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.turns = values
