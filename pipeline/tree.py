"""Hierarchical sampling: composition -> BatchPlan, a table of everything in a batch (sections 3.1, A.1.2).

A plan is a pure function of (composition, pool, seed, epoch, batch): no I/O, no state, the same for any number of
ranks. Loaders execute it; the loss compares its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.common.wording import plural
from gdt.pipeline.composition import Composition, Factor
from gdt.pipeline.leaves import Clip, Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import MEL_RATE
from gdt.pipeline.transformations.base import Branches, VideoPool


@dataclass(frozen=True)
class BatchPlan:
    """One row per leaf T = (i, tau, m, r, g): its factor values and what to load."""

    epoch: int
    batch: int
    columns: dict[str, np.ndarray]
    """Factor table for the loss: name -> int64 [n_leaves]; `leaf` numbers the leaves of the whole batch."""
    leaves: Leaves
    seed: int = 0

    def __len__(self) -> int:
        return len(self.leaves)

    def take(self, chosen: np.ndarray | slice) -> BatchPlan:
        """The plan of some leaves, selected by index, mask or slice."""
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return replace(self, columns=columns, leaves=self.leaves.take(chosen))


@dataclass(frozen=True)
class Tree:
    """The sampling tree of a composition over a data set."""

    composition: Composition
    pool: VideoPool
    clip: Clip
    bands: int
    seed: int = 0

    def __post_init__(self) -> None:
        usable = len(self.pool.videos)
        if usable < self.composition.batch_size:
            raise UserError(
                f"a batch takes {self.composition.batch_size} videos but only {usable} can be used; "
                + (f"set --batch-size to {usable} or less" if usable > 1 else "preprocess more videos")
            )

    @property
    def batches_per_epoch(self) -> int:
        """Number of full batches; every epoch leaves out different videos."""
        return len(self.pool.videos) // self.composition.batch_size

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        columns, rng = sample(self.composition.factors, self.pool, self.seed, epoch, batch)
        leaves = Leaves.plain(len(columns["leaf"]), self.clip, self.bands)
        shapes = {name: values.shape for name, values in leaves.arrays().items()}
        for factor in self.composition.factors:
            factor.transformation.act(leaves, columns[factor.name].copy(), rng)  # it may write into the copy
            for name, shape in shapes.items():
                if np.shape(getattr(leaves, name)) != shape:
                    raise UserError(f"factor '{factor.name}' changes the shape of leaves.{name}; it must not")
        return BatchPlan(epoch, batch, columns, leaves, self.seed)

    def videos(self, first: int, last: int) -> Iterator[np.ndarray]:
        """The videos of the plans of these steps, without the work of the plans: int64 [batch size]."""
        for step in range(first, last):
            epoch, batch = divmod(step, self.batches_per_epoch)
            columns, _ = sample(self.composition.factors[:1], self.pool, self.seed, epoch, batch)
            yield columns["video"]

    def plans(self, first: int, last: int) -> Iterator[BatchPlan]:
        """Plans of the steps first..last-1 of the whole training."""
        for step in range(first, last):
            yield self.plan(*divmod(step, self.batches_per_epoch))


def sample(
    factors: Sequence[Factor], pool: VideoPool, seed: int, epoch: int, batch: int
) -> tuple[dict[str, np.ndarray], np.random.Generator]:
    """Factor table of the leaves, int64 [prod K] each, and the generator of the batch, which has drawn it.

    Every branch is extended by K_m values of each factor in turn.
    """
    rng = generator(Stream.BATCH, seed, epoch, batch)
    columns: dict[str, np.ndarray] = {}
    n = 1
    for factor in factors:
        values = factor.transformation.sample(rng, factor.k, Branches(n, columns, pool, seed, epoch, batch))
        columns = {name: np.repeat(column, factor.k) for name, column in columns.items()}
        columns[factor.name] = values.reshape(n * factor.k)
        n *= factor.k
    return columns | {"leaf": np.arange(n, dtype=np.int64)}, rng


def sampling_tree(
    index: Index,
    composition: Composition,
    clip: Clip,
    split: str,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
    shuffle_shards: int = 0,
) -> Tree:
    """The tree over the usable videos of a split; passes their number to `say`. Raises UserError if too few.

    With `shuffle_shards` > 0, videos are shuffled only within groups of that many shards.
    """
    modalities = composition.modalities
    rows = _stretch(clip.mel_frames - 1, composition) if "audio" in modalities else 0
    sound_decides = rows and "video" not in modalities
    frames = 0 if sound_decides else _stretch((clip.frames - 1) * clip.stride, composition)
    starts = index.start_counts(frames, 1, rows)
    inside = index.split == split
    if not inside.any():
        splits = " or ".join(sorted({*index.split.tolist()} - {"unused"}))
        raise UserError(f"no video of {index.folder} is in the split '{split}'; set --split to {splits}")
    needed = composition.starts_needed
    several = f"{needed} different starts of " if needed > 1 else ""
    seconds = max(frames / index.fps, (rows + 1) / MEL_RATE)  # the window of the last row ends one row later
    checks = {
        "without pictures": (index.frame_count == 0) & ("video" in modalities),
        "without sound": (index.mel_count == 0) & (rows > 0),
        "without captions": (index.text_count == 0) & ("text" in modalities),
        f"too short for {several}a clip of {seconds:.2f} s": starts < needed,
    }
    usable = inside
    skipped = []
    for problem, lacking in checks.items():
        n = int((usable & lacking).sum())
        if n:
            skipped.append(f"{n} {problem}")
            usable = usable & ~lacking
    report = f"{int(usable.sum())} of {plural(int(inside.sum()), f'{split} video')} of {index.folder}"
    if skipped:
        report += f"; not used: {', '.join(skipped)}"
    if not usable.any():
        raise UserError(f"{report}; {_instead(index, inside)}")
    shards = len(np.unique(index.shard[usable]))
    if 0 < shuffle_shards < shards:
        report += f"; shuffled within groups of {shuffle_shards} of the {shards} shards"
    say(report)
    pool = VideoPool(np.flatnonzero(usable), starts, index.fps, index.shard, shuffle_shards)
    return Tree(composition, pool, clip, index.bands, seed)


def _instead(index: Index, videos: np.ndarray) -> str:
    """What to set if a composition can use none of these videos."""
    if not index.frame_count[videos].any():
        return 'for sounds alone, set --factors "video:d time_shift:i:2 modality(audio):i:1 augmentation:i:2"'
    if not index.mel_count[videos].any():
        return "for videos without sound, set --preset d"
    return "use another composition, shorter clips (--clip.frames, --clip.stride, --clip.mel-frames), or other videos"


def _stretch(last: int, composition: Composition) -> int:
    """Frames or rows that a clip may span, given the index of its last one, which each factor multiplies and rounds."""
    for factor in composition.factors:
        last = int(np.floor(last * factor.transformation.reach(factor.k) + 0.5))
    return last + 1
