"""Order of the segments of a clip."""

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from gdt.common.errors import UserError
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.base import Choice


@dataclass(frozen=True)
class Order(Choice):
    """Order of the segments of a clip, cut at the same times in frames and sound.

    Of words, the places are cut, of which a clip has `Clip.words`: fewer words than in the first segment stay as they
    are, which the paper's text network, a maximum over words, does not see anyway.
    """

    name = "order"
    segments: int = 3
    """Number of segments, 2 to 5; the values are all orders of them (6 for 3 segments), the original first."""

    def __post_init__(self) -> None:
        if not 2 <= self.segments <= 5:
            raise UserError(f"order has {self.segments} segments; it must be 2 to 5")

    @property
    def values(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple("order " + "".join(order) for order in permutations("12345"[: self.segments]))

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        frames = leaves.frames.shape[1]
        if self.segments > frames:
            raise UserError(f"order has {self.segments} segments and a clip {frames} frames; set fewer segments")
        # sound and words are cut where the frames are, also where lengths do not divide evenly
        cuts = np.floor(np.arange(self.segments + 1) * frames / self.segments + 0.5) / frames
        leaves.frames = self._permuted(leaves.frames, values, cuts)
        leaves.mel_frames = self._permuted(leaves.mel_frames, values, cuts)
        leaves.words = self._permuted(leaves.words, values, cuts)

    def _permuted(self, positions: np.ndarray, values: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """Reorder the segments of positions [n, length]; `cuts` are their borders as shares of the length."""
        length = positions.shape[1]
        parts = np.split(np.arange(length), np.floor(cuts[1:-1] * length + 0.5).astype(int))
        orders = np.stack([np.concatenate(order) for order in permutations(parts)])
        return np.take_along_axis(positions, orders[values], axis=1)
