"""Hierarchical sampling: composition -> BatchPlan, the table of everything that a batch contains (sections 3.1, A.1.2).

A plan is a pure function of (composition, source, seed, epoch, batch): no I/O, no state, no matter how many ranks
share it. Loaders execute it, the loss compares its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gdt.common.errors import UserError
from gdt.pipeline.composition import Composition
from gdt.pipeline.factors import Factor
from gdt.pipeline.leaves import Clip, Leaves
from gdt.pipeline.notation import report_custom_errors
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.base import Branches, Draw, Source


@dataclass(frozen=True)
class BatchPlan:
    """One row per leaf T = (i, tau, m, r, g): factor values and the drawn augmentation parameters."""

    epoch: int
    batch: int
    columns: dict[str, np.ndarray]
    """Factor name -> int64 [n_leaves], which the loss compares; `leaf` is the leaf's number in the whole batch."""
    leaves: Leaves
    """What the loader does for each of them."""
    seed: int = 0
    joined: dict[str, np.ndarray] | None = None
    """The columns of the leaves of all ranks, where several share the batch: int64 [n_all] each, rank after rank."""

    def __len__(self) -> int:
        return len(self.leaves)

    def take(self, chosen: np.ndarray | slice) -> BatchPlan:
        """The plan of some leaves, given by their places, a mask or a slice."""
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return replace(self, columns=columns, leaves=self.leaves.take(chosen))


@dataclass(frozen=True)
class Tree:
    """The sampling tree of a composition over a data set."""

    composition: Composition
    source: Source
    clip: Clip
    bands: int
    """Mel bands."""
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.source.videos) < self.composition.batch_size:
            raise UserError(
                f"a batch takes {self.composition.batch_size} videos but only {len(self.source.videos)} can be "
                "used; set --batch-size to no more than that"
            )

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches; the videos left over are other ones in every epoch."""
        return len(self.source.videos) // self.composition.batch_size

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        """The batch `batch` of epoch `epoch`, the same whenever and wherever it is asked for."""
        draw = Draw(self.seed, epoch, batch)
        rng = draw.generator()
        columns = sample(self.composition.factors, self.source, rng, draw)
        leaves = Leaves.plain(len(columns["leaf"]), self.clip, self.bands)
        plain = leaves.arrays()
        for factor in self.composition.factors:
            with report_custom_errors(factor.transformation):
                factor.transformation.act(leaves, columns[factor.name].copy(), rng)  # which it may write into
            _require_whole(leaves, plain, factor.name)
        return BatchPlan(epoch, batch, columns, leaves, self.seed)

    def plans(self, first: int, last: int) -> Iterator[BatchPlan]:
        """Plans of the steps first..last-1, counted from the start of training over all epochs."""
        for step in range(first, last):
            yield self.plan(*divmod(step, self.batches_per_epoch))


def sample(factors: Sequence[Factor], source: Source, rng: np.random.Generator, draw: Draw) -> dict[str, np.ndarray]:
    """Extend every branch by K_m values of each factor in turn: the leaves' factor values, each int64 [prod K]."""
    columns: dict[str, np.ndarray] = {}
    n = 1
    for factor in factors:
        with report_custom_errors(factor.transformation):
            values = factor.transformation.sample(rng, factor.k, Branches(n, columns, source, draw))
        if getattr(values, "shape", None) != (n, factor.k) or not np.issubdtype(values.dtype, np.integer):
            raise UserError(
                f"factor '{factor.name}' draws {_told(values)}; its sample must give integers [branches, k], "
                f"here [{n}, {factor.k}]"
            )
        columns = {name: np.repeat(column, factor.k) for name, column in columns.items()}
        columns[factor.name] = values.reshape(-1)
        n *= factor.k
    return columns | {"leaf": np.arange(n, dtype=np.int64)}


def _require_whole(leaves: Leaves, plain: dict[str, np.ndarray], name: str) -> None:
    """Raise UserError, naming the factor, where a transformation has left arrays of another shape or kind."""
    for field, before in plain.items():
        values = getattr(leaves, field)
        whole = np.issubdtype(before.dtype, np.integer)
        if getattr(values, "shape", None) != before.shape or (whole and not np.issubdtype(values.dtype, np.integer)):
            raise UserError(
                f"factor '{name}' makes leaves.{field} {_told(values)}; it must be "
                f"{'integers' if whole else 'numbers'} {list(before.shape)}"
            )


def _told(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype} {list(values.shape)}"
    return f"a {type(values).__name__}"


def sampling_tree(
    index: Index,
    composition: Composition,
    clip: Clip,
    split: str,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
    shuffle_shards: int = 0,
) -> Tree:
    """The tree over the videos of a split that are long enough; how many those are is said. UserError if too few.

    With `shuffle_shards`, the videos of so many shards at a time are shuffled with each other.
    """
    sound, text = (name in composition.modalities for name in ("audio", "text"))
    frames = _stretch((clip.frames - 1) * clip.stride, composition.reach)
    starts = index.start_counts(frames, 1, _stretch(clip.mel_frames - 1, composition.reach) if sound else 0)
    inside = index.split == split
    if not inside.any():
        there = ", ".join(sorted(set(index.split.tolist())))
        raise UserError(f"no video of {index.folder} is in the split '{split}'; set --split to one of {there}")
    enough, left_out = inside, []
    needed = composition.starts_needed
    seconds = f"{frames / index.fps:.2f} s"
    too_short = f"shorter than a clip ({seconds})" if needed == 1 else f"too short for {needed} clips of {seconds}"
    shorter = "lower --clip.frames or --clip.stride"
    shorter += f", or a speed below {composition.reach:g}" if composition.reach > 1 else ""
    shorter += ", or the K of what needs so many" if needed > 2 else ""
    for why, lacking, remedy in (
        ("have no sound", index.mel_count == 0 if sound else None, "compose without sound, or use videos that have it"),
        ("have no words", index.text_count == 0 if text else None, "make the shards anew with captions and WORD2VEC="),
        (f"are {too_short}", starts < needed, f"{shorter}, or use longer videos"),
    ):
        if lacking is not None and (n := int((enough & lacking).sum())):
            left_out.append(f"{n} {why}")
            enough = enough & ~lacking
            if not enough.any():
                raise UserError(
                    f"none of the {int(inside.sum())} {split} videos of {index.folder} can be used: "
                    f"{', '.join(left_out)}; {remedy}"
                )
    shards = len(np.unique(index.shard[enough]))
    say(
        f"{int(enough.sum())} of {int(inside.sum())} {split} videos of {index.folder}"
        + (f"; {', '.join(left_out)} and are not used" if left_out else "")
        + (f"; shuffled within {shuffle_shards} of {shards} shards at a time" if 0 < shuffle_shards < shards else "")
    )
    source = Source(np.flatnonzero(enough), starts, index.fps, index.shard, shuffle_shards)
    return Tree(composition, source, clip, index.bands, seed)


def _stretch(last: int, reach: float) -> int:
    """Frames or rows from the first to the last one of a clip that takes `reach` times its own length."""
    return int(np.floor(last * reach + 0.5)) + 1
