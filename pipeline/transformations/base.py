"""Base classes of transformations: a set of values to sample, and their effect on the leaves of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar

import numpy as np

from gdt.pipeline.leaves import Leaves


@dataclass(frozen=True, eq=False)
class VideoPool:
    """The videos to sample from."""

    videos: np.ndarray
    """Usable rows of the index: int64 [n]."""
    start_counts: np.ndarray
    """Number of start frames of each video of the index, from frame 0 on: int64 [n_index]."""
    fps: int
    shards: np.ndarray | None = None
    """Shard of each video of the index: int64 [n_index]; needed if `window` > 0."""
    window: int = 0
    """Number of shards that are shuffled together; 0 for all."""


@dataclass(frozen=True)
class Branches:
    """The branches of the tree in which a factor is sampled."""

    count: int
    columns: Mapping[str, np.ndarray]
    """Values of the factors sampled before: int64 [count] each."""
    pool: VideoPool
    seed: int
    epoch: int
    batch: int


class Transformation(ABC):
    """One of the transformations t_m of section 3.1."""

    name: ClassVar[str]
    """Name in the factor table and on the command line."""

    def __str__(self) -> str:
        """The name as typed, with settings in brackets unless all have their defaults."""
        if not is_dataclass(self) or self == type(self)():
            return self.name
        parts: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            parts += map(str, value if isinstance(value, tuple) else (value,))
        return f"{self.name}({','.join(part.removesuffix('.0') for part in parts)})"

    @abstractmethod
    def sample(self, rng: np.random.Generator, k: int, branches: Branches) -> np.ndarray:
        """Draw k values without replacement in each branch: int64 [branches.count, k]."""

    def refuses(self, k: int) -> str:
        """Why a batch cannot take k values; empty if it can."""
        return "K must be 1 or more" if k < 1 else ""

    def takes_all(self, k: int) -> bool:
        """Whether every sample of k values is the same set, so that all branches of the tree share it."""
        return False

    @abstractmethod
    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        """Apply the values [n] to n leaves. Transformations act in the order of the factors."""

    def modalities(self, k: int) -> tuple[str, ...]:
        """Modalities of the leaves with k values."""
        return ()

    def starts_needed(self, k: int) -> int:
        """Minimum start frames of a video for k values."""
        return 1

    def reach(self, k: int) -> float:
        """Longest stretch of video that a leaf may span with k values, in clip lengths."""
        return 1.0

    def label(self, value: int, pool: VideoPool) -> str:
        """Label of a value for plots; empty if it has none."""
        return ""


class Choice(Transformation):
    """A transformation with a few values.

    K = 1 takes the first (not varied), K = len(values) all of them in order, any other K a random subset.
    """

    values: tuple[str, ...]

    def sample(self, rng: np.random.Generator, k: int, branches: Branches) -> np.ndarray:
        n = branches.count
        if self.takes_all(k):
            return np.tile(np.arange(k, dtype=np.int64), (n, 1))
        return distinct(rng, np.full(n, len(self.values)), k)

    def refuses(self, k: int) -> str:
        size = len(self.values)
        if k > size:
            return f"the factor has {size} values; set K to {size} or less"
        return super().refuses(k)

    def takes_all(self, k: int) -> bool:
        return k in (1, len(self.values))

    def label(self, value: int, pool: VideoPool) -> str:
        return self.values[value]


def distinct(rng: np.random.Generator, sizes: np.ndarray, k: int) -> np.ndarray:
    """Draw k different integers of range(sizes[row]) for every row, uniform over k-tuples: int64 [rows, k].

    Raises ValueError if a size is below k.
    """
    sizes = np.asarray(sizes, np.int64)
    drawn = np.empty((len(sizes), k), np.int64)
    for j in range(k):
        value = rng.integers(0, sizes - j)
        for earlier in np.sort(drawn[:, :j], axis=1).T:  # skip values drawn before, smallest first
            value += value >= earlier
        drawn[:, j] = value
    return drawn
