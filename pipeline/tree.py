"""Hierarchical sampling: factors -> BatchPlan, the table of everything that a batch contains (sections 3.1, A.1.2).

A plan is a pure function of (factors, augmentation, seed, epoch, batch): no I/O, no state, no matter how many ranks
share it. Loaders execute it, the loss compares its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.composition import check
from pipeline.errors import UserError
from pipeline.factors import VIDEO, Draw, Factor


@dataclass(frozen=True)
class Augmentation:
    """Ranges from which g = (g_v, g_a) is drawn for every leaf (section 3.3, appendix)."""

    scale: tuple[int, int] = (128, 160)
    """Length in pixels, both ends included, to which the shorter side is resized before the crop."""
    center_crop: bool = False
    """Crop the centre (evaluation) instead of a random place (pretraining). Section 3.3 says
    random, the appendix centre."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    brightness: float = 0.4
    """Brightness is multiplied by 1 - x to 1 + x; 0.4 in the published release."""
    contrast: float = 0.4
    """Contrast about mid-grey is multiplied by 1 - x to 1 + x; 0.4 in the published release."""
    saturation: float = 0.4
    """Saturation is multiplied by 1 - x to 1 + x; 0.4 in the published release."""
    hue: float = 0.1
    """Hue is turned by -x to x of a full turn."""
    volume: float = 0.1
    """The waveform is multiplied by 1 - x to 1 + x."""
    frequency_mask: int = 3
    """Largest width of the one SpecAugment frequency mask, in mel bands."""
    time_mask: int = 6
    """Largest width of the one SpecAugment time mask, in frames of 10 ms."""

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1]:
            raise UserError(f"augmentation scale {self.scale} must be two lengths in pixels, the smaller first")
        for name in ("flip", "brightness", "contrast", "saturation", "hue", "volume"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"augmentation {name} is {getattr(self, name)}; it must lie between 0 and 1")

    def draw(self, rng: np.random.Generator, n: int, mel: tuple[int, int]) -> dict[str, np.ndarray]:
        """Parameters of n leaves, each an array [n]; `mel` is (frames, bands) of the log-mel clip.

        scale [px], top and left (share of the free margin, 0 to 1), flip (0/1), brightness, contrast, saturation
        (factors), hue [turns], volume (factor), and the two masks as (start, width) in bands and frames.
        """
        frames, bands = mel
        margin = rng.random((2, n))
        if self.center_crop:
            margin[:] = 0.5

        def jitter(width: float) -> np.ndarray:
            return rng.uniform(1 - width, 1 + width, n)

        draws = {
            "scale": rng.integers(self.scale[0], self.scale[1], n, endpoint=True),
            "top": margin[0],
            "left": margin[1],
            "flip": rng.random(n) < self.flip,
            "brightness": jitter(self.brightness),
            "contrast": jitter(self.contrast),
            "saturation": jitter(self.saturation),
            "hue": rng.uniform(-self.hue, self.hue, n),
            "volume": jitter(self.volume),
        }
        for name, largest, size in (("frequency", self.frequency_mask, bands), ("time", self.time_mask, frames)):
            width = rng.integers(0, min(largest, size), n, endpoint=True)
            draws[f"{name}_width"] = width
            draws[f"{name}_start"] = rng.integers(0, size - width, endpoint=True)
        return {name: np.asarray(values, np.float32) for name, values in draws.items()}


EVALUATION = Augmentation(
    scale=(128, 128), center_crop=True, flip=0.0, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0, volume=0.0,
    frequency_mask=0, time_mask=0,
)  # fmt: skip
"""Nothing is random: centre crop at the smaller training scale."""


@dataclass(frozen=True)
class BatchPlan:
    """One row per leaf T = (i, tau, m, r, g): factor values and the drawn augmentation parameters."""

    epoch: int
    batch: int
    columns: dict[str, np.ndarray]
    """Factor name -> int64 [n_leaves]; `leaf` is the leaf's number in the whole batch."""
    draws: dict[str, np.ndarray]
    """Augmentation parameter -> float32 [n_leaves], see Augmentation.draw."""

    def __len__(self) -> int:
        return len(self.columns["leaf"])

    def take(self, leaves: np.ndarray | slice) -> BatchPlan:
        """The plan of some leaves, given by their rows, a mask or a slice."""
        return BatchPlan(
            self.epoch,
            self.batch,
            {name: values[leaves] for name, values in self.columns.items()},
            {name: values[leaves] for name, values in self.draws.items()},
        )

    def share(self, rank: int, world: int) -> BatchPlan:
        """The leaves of one rank: whole videos, an equal run of them. Raises UserError if they do not divide."""
        videos = len(np.unique(self.columns["video"]))
        if videos % world:
            raise UserError(
                f"{videos} videos per batch cannot be shared by {world} GPUs; make --videos-per-batch a multiple of it"
            )
        per_rank = len(self) // world
        return self.take(np.arange(rank * per_rank, (rank + 1) * per_rank))

    def modality(self, modality: int) -> BatchPlan:
        """The leaves of one modality, in order."""
        return self.take(self.columns["modality"] == modality)


@dataclass(frozen=True)
class Tree:
    """The sampling tree of a composition over a data set."""

    factors: tuple[Factor, ...]
    augmentation: Augmentation
    mel: tuple[int, int]
    """(frames, bands) of a log-mel clip, within which the masks lie."""
    n_videos: int
    """Videos to sample from, for the number of batches of an epoch."""
    seed: int = 0

    def __post_init__(self) -> None:
        check(self.factors)
        if self.n_videos < self.factors[0].k:
            raise UserError(
                f"a batch takes {self.factors[0].k} videos but only {self.n_videos} can be used; "
                "set --videos-per-batch to no more than that"
            )

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches; the videos left over are other ones in every epoch."""
        return self.n_videos // self.factors[0].k

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        """The batch `batch` of epoch `epoch`, the same whenever and wherever it is asked for."""
        draw = Draw(self.seed, epoch, batch)
        rng = draw.generator()
        columns = sample(self.factors, rng, draw)
        return BatchPlan(epoch, batch, columns, self.augmentation.draw(rng, len(columns["leaf"]), self.mel))

    def plans(self, first: int, last: int) -> Iterator[BatchPlan]:
        """Plans of the steps first..last-1, counted from the start of training over all epochs."""
        for step in range(first, last):
            yield self.plan(*divmod(step, self.batches_per_epoch))


def sample(factors: Sequence[Factor], rng: np.random.Generator, draw: Draw) -> dict[str, np.ndarray]:
    """Extend every branch by K_m values of each factor in turn: the leaves' factor values, each int64 [prod K]."""
    columns: dict[str, np.ndarray] = {}
    n = 1
    for factor in factors:
        values = factor.space.sample(rng, draw, factor.k, columns, n)
        columns = {name: np.repeat(column, factor.k) for name, column in columns.items()}
        columns[factor.name] = values.reshape(-1)
        n *= factor.k
    return columns | {"leaf": np.arange(n, dtype=np.int64)}


def uniform_clips(videos: np.ndarray, starts: np.ndarray, clips: int, augmentation: Augmentation) -> BatchPlan:
    """Evaluation plan: `clips` video clips spread uniformly over each video, from its first to its last start.

    `videos` [n] are rows of the index, `starts` [n] the numbers of start frames they offer. n * clips leaves, the
    clips of a video one after another; a video that offers fewer starts repeats some.
    """
    position = np.linspace(0.0, 1.0, clips) if clips > 1 else np.array([0.5])
    shift = np.floor(position[None] * (starts[:, None] - 1) + 0.5).astype(np.int64).reshape(-1)
    n = len(shift)
    zeros = np.zeros(n, np.int64)
    columns = {
        "video": np.repeat(videos.astype(np.int64), clips),
        "time_shift": shift,
        "modality": zeros + VIDEO,
        "time_reversal": zeros,
        "augmentation": np.arange(n, dtype=np.int64),
        "leaf": np.arange(n, dtype=np.int64),
    }
    rng = np.random.Generator(np.random.Philox(0))  # every range of an evaluation augmentation is a single value
    return BatchPlan(0, 0, columns, augmentation.draw(rng, n, (1, 1)))
