"""The generalized data transformations of a video, T = (i, tau, m, r, g), as a table of factors (section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Protocol

import numpy as np

Columns = Mapping[str, np.ndarray]

VIDEO, AUDIO = 0, 1
MODALITIES = ("video", "audio")
FORWARD, REVERSED = 0, 1


class Contrast(Enum):
    """c(t, t') of one factor: 1 iff t = t' (distinctive), or always 1 (invariant)."""

    DISTINCTIVE = "distinctive"
    INVARIANT = "invariant"


class Weight(Enum):
    """w(t, t') of one factor: 1 always, or 1 iff t != t' (cross-modal learning)."""

    ANY = "any"
    DIFFERS = "differs"


@dataclass(frozen=True)
class Draw:
    """Where a batch stands and the generator that draws it; a pure function of (seed, epoch, batch)."""

    seed: int
    epoch: int
    batch: int

    def generator(self) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, self.epoch, self.batch])))


class Space(Protocol):
    """The set that a factor is sampled from."""

    def sample(self, rng: np.random.Generator, draw: Draw, k: int, branches: Columns, n: int) -> np.ndarray:
        """Draw k values without replacement in each of n branches: int64 [n, k].

        `branches` holds the columns of the factors sampled before, each [n].
        """
        ...

    def exhausted(self, k: int) -> bool:
        """Whether k values are all there are, so that every branch of the tree holds the same ones."""
        ...


@dataclass(frozen=True)
class Videos:
    """All videos, each once per epoch: batch b takes the b-th run of k videos of the epoch's permutation."""

    ids: tuple[int, ...]

    def sample(self, rng: np.random.Generator, draw: Draw, k: int, branches: Columns, n: int) -> np.ndarray:
        if n != 1:
            raise ValueError("videos are the first factor of the tree")
        order = _permutation(self.ids, draw.seed, draw.epoch)
        chosen = order[draw.batch * k : (draw.batch + 1) * k]
        if len(chosen) < k:
            raise IndexError(
                f"an epoch of {len(order)} videos has {len(order) // k} batches of {k}, not {draw.batch + 1}"
            )
        return chosen[None]

    def exhausted(self, k: int) -> bool:
        return k == len(self.ids)


@lru_cache(maxsize=2)
def _permutation(ids: tuple[int, ...], seed: int, epoch: int) -> np.ndarray:
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch])))
    return rng.permutation(np.asarray(ids, np.int64))


class TimeShifts:
    """Start frame of the clip, uniform over those that fit into the video; `starts` [n_videos] counts them."""

    def __init__(self, starts: np.ndarray) -> None:
        self.starts = np.asarray(starts, np.int64)

    def sample(self, rng: np.random.Generator, draw: Draw, k: int, branches: Columns, n: int) -> np.ndarray:
        return distinct(rng, self.starts[branches["video"]], k)

    def exhausted(self, k: int) -> bool:
        return False


@dataclass(frozen=True)
class Choices:
    """A few values; taken all, in order, where k is their number (a set has no order), else k of them at random."""

    values: tuple[int, ...]

    def sample(self, rng: np.random.Generator, draw: Draw, k: int, branches: Columns, n: int) -> np.ndarray:
        values = np.asarray(self.values, np.int64)
        if k == len(values):
            return np.tile(values, (n, 1))
        return values[distinct(rng, np.full(n, len(values)), k)]

    def exhausted(self, k: int) -> bool:
        return k == len(self.values)


class Continuum:
    """A continuous space, where no two draws agree: each draw is named by a running number."""

    def sample(self, rng: np.random.Generator, draw: Draw, k: int, branches: Columns, n: int) -> np.ndarray:
        return np.arange(n * k, dtype=np.int64).reshape(n, k)

    def exhausted(self, k: int) -> bool:
        return False


@dataclass(frozen=True)
class Factor:
    """One transformation t_m: its name, where it is sampled from, K_m, its contrast and its weight rule."""

    name: str
    space: Space
    k: int
    contrast: Contrast
    weight: Weight = Weight.ANY


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
