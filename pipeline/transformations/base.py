"""What a transformation is: a set to draw from, and what its values do to the leaves of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar

import numpy as np

from gdt.pipeline.leaves import Leaves


@dataclass(frozen=True, eq=False)
class Source:
    """What there is to draw from."""

    videos: np.ndarray
    """Rows of the index that can be used: int64 [n]."""
    start_counts: np.ndarray
    """How many start frames each video of the index offers, from frame 0 on: int64 [n_index]."""
    fps: int
    """Stored frames per second."""
    shards: np.ndarray | None = None
    """The shard of each video of the index: int64 [n_index]. Needed where `window` is above 0."""
    window: int = 0
    """Shards whose videos are shuffled with each other; 0 for all."""


@dataclass(frozen=True)
class Draw:
    """Where a batch stands; with it, a batch is a pure function of (seed, epoch, batch)."""

    seed: int
    epoch: int
    batch: int

    def generator(self) -> np.random.Generator:
        """The generator that draws everything in the batch."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, self.epoch, self.batch])))


@dataclass(frozen=True)
class Branches:
    """The branches of the tree that a factor is sampled in."""

    count: int
    """How many there are."""
    columns: Mapping[str, np.ndarray]
    """The values of the factors sampled before: int64 [count] each."""
    source: Source
    draw: Draw


class Transformation(ABC):
    """One of the transformations t_m of section 3.1."""

    name: ClassVar[str]
    """In the factor table and on the command line."""
    selects_frames: ClassVar[bool] = False
    """Whether leaves of different values hold different frames, and not the same in another order or look."""

    def __str__(self) -> str:
        """As on the command line: the name, and in brackets its settings where they are not the default."""
        if not is_dataclass(self) or self == type(self)():
            return self.name
        settings = [getattr(self, field.name) for field in fields(self)]
        parts = [part for value in settings for part in (value if isinstance(value, tuple) else (value,))]
        return f"{self.name}({','.join(str(part).removesuffix('.0') for part in parts)})"

    @abstractmethod
    def sample(self, rng: np.random.Generator, k: int, branches: Branches) -> np.ndarray:
        """Draw k values, without replacement, in each branch: int64 [branches.count, k]."""

    def size(self) -> int | None:
        """How many values there are; None where there is no end, or where it depends on the data."""
        return None

    def refuses(self, k: int) -> str:
        """Why a batch cannot hold k values, in words; empty where it can."""
        if k < 1:
            return "it must be 1 or more"
        most = self.size()
        return f"it has {most} values; set it to no more" if most is not None and k > most else ""

    def takes_all(self, k: int) -> bool:
        """Whether k values are all there are, so that every branch of the tree holds the same ones."""
        return False

    @abstractmethod
    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        """Write what the values [n] mean into n leaves. Transformations act in the order of the factors."""

    def modalities(self, k: int) -> tuple[str, ...]:
        """Modalities that leaves get from k values."""
        return ()

    def starts_needed(self, k: int) -> int:
        """Start frames that a video must offer for k values."""
        return 1

    def reach(self, k: int) -> float:
        """How many times as long as the clip the stretch of video is that leaves of k values may take."""
        return 1.0

    def label(self, value: int, source: Source) -> str:
        """A value in words, for pictures; empty for what cannot be told in words."""
        return ""


class Choice(Transformation):
    """A transformation with a few values, of which the first is what is taken where it is not varied.

    All of them, in order, where K is their number (a set has no order), and the first where K is 1: not varied. Else
    K of them at random.
    """

    values: tuple[str, ...]
    """The values in words."""

    def sample(self, rng: np.random.Generator, k: int, branches: Branches) -> np.ndarray:
        n = branches.count
        if self.takes_all(k):
            return np.tile(np.arange(k, dtype=np.int64), (n, 1))
        return distinct(rng, np.full(n, len(self.values)), k)

    def size(self) -> int | None:
        return len(self.values)

    def takes_all(self, k: int) -> bool:
        return k in (1, len(self.values))

    def label(self, value: int, source: Source) -> str:
        return self.values[value]


def distinct(rng: np.random.Generator, sizes: np.ndarray, k: int) -> np.ndarray:
    """K different integers of range(sizes[row]) for every row, uniform over ordered k-tuples: int64 [rows, k].

    Raises ValueError where a row has fewer than k values.
    """
    sizes = np.asarray(sizes, np.int64)
    if len(sizes) and sizes.min() < k:
        row = int(sizes.argmin())
        raise ValueError(f"{k} different values asked of a set of {int(sizes[row])} (branch {row})")
    drawn = np.empty((len(sizes), k), np.int64)
    for j in range(k):
        value = rng.integers(0, sizes - j)
        for earlier in np.sort(drawn[:, :j], axis=1).T:  # step over what was drawn before, smallest first
            value += value >= earlier
        drawn[:, j] = value
    return drawn
