"""In which order the parts of a clip come."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from pipeline.errors import UserError
from pipeline.leaves import Leaves
from pipeline.transformations.base import Choice


@dataclass(frozen=True)
class Order(Choice):
    """Segments of equal length of frames, sound and words, in their own order first, then in every other."""

    name = "order"
    segments: int = 3
    """How many, 2 to 5; their number of orders is its factorial."""

    def __post_init__(self) -> None:
        if not 2 <= self.segments <= 5:
            raise UserError(f"order permutes {self.segments} segments; it must be 2 to 5 of them")

    @property
    def values(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple("order " + "".join(str(part + 1) for part in order) for order in self._orders())

    def _orders(self) -> list[tuple[int, ...]]:
        return list(permutations(range(self.segments)))

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.frames = self._permuted(leaves.frames, values)
        leaves.mel_frames = self._permuted(leaves.mel_frames, values)
        leaves.words = self._permuted(leaves.words, values)

    def _permuted(self, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
        parts = np.array_split(np.arange(positions.shape[1]), self.segments)
        orders = np.stack([np.concatenate([parts[part] for part in order]) for order in self._orders()])
        return np.take_along_axis(positions, orders[values], axis=1)
