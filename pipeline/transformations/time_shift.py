"""tau: where in the video the clip begins."""

import numpy as np

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.base import Branches, Transformation, VideoPool, distinct


class TimeShift(Transformation):
    """Start frame of the clip, drawn uniformly; time_shift:i:1 draws one per video."""

    name = "time_shift"

    def sample(self, rng: np.random.Generator, k: int, branches: Branches) -> np.ndarray:
        return distinct(rng, branches.pool.start_counts[branches.columns["video"]], k)

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        leaves.start = values

    def starts_needed(self, k: int) -> int:
        return k

    def label(self, value: int, pool: VideoPool) -> str:
        return f"from {value / pool.fps:.2f} s"
