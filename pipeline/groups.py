"""In which order the leaves of a batch are embedded, and which rank holds which.

Batch norm takes its statistics over groups of so many leaves of one modality, and a rank holds whole groups. The order
is a function of the plan, so the groups are the same on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipeline.errors import UserError
from pipeline.tree import BatchPlan

_ORDER = 0x67726F7570  # a stream of random numbers beside that of the plan


def require_groups(videos: int, norm_leaves: int, world: int) -> None:
    """Raise UserError where so many ranks cannot have whole groups, or whole videos, and as many each."""
    if videos % world:
        raise UserError(
            f"{videos} videos per batch cannot be shared by {world} GPUs; make --videos-per-batch a multiple of it"
        )
    if norm_leaves and videos % (norm_leaves * world):
        fitting = [n for n in range(2, videos // world + 1) if videos // world % n == 0]
        raise UserError(
            f"{videos} videos per batch do not make whole groups of --norm-leaves {norm_leaves} for {world} "
            f"GPU{'s' if world > 1 else ''}; "
            + (f"it can be {', '.join(map(str, fitting))}, or 0 for the whole batch" if fitting else "set it to 0")
        )


def shared(plan: BatchPlan, rank: int, world: int, norm_leaves: int = 0) -> BatchPlan:
    """The leaves of one rank, one modality after the other, and within each one group after the other.

    Its `joined` are the columns of all ranks' leaves, rank after rank. Without groups a rank has whole videos, an equal
    run of them. With groups (`norm_leaves` > 0) each holds one leaf of every video of a unit of so many videos: the
    first leaves of these videos in a modality are a group, the second ones the next, and so on, so that none holds two
    of a video; and the videos of each modality are in an order of their own, drawn with the plan, so that the
    statistics of a group of one modality say nothing of which videos a group of another holds. Raises UserError where
    ranks cannot have equal shares.
    """
    videos = len(np.unique(plan.leaves.video))
    require_groups(videos, norm_leaves, world)
    modality = plan.leaves.modality
    order = np.concatenate([_order(plan, number, videos, norm_leaves) for number in np.unique(modality)])
    # the modalities have as many leaves each, whole videos or units of them
    by_modality = order.reshape(len(np.unique(modality)), world, -1)
    joined = by_modality.swapaxes(0, 1).reshape(world, -1)
    columns = {name: values[joined.reshape(-1)] for name, values in plan.columns.items()}
    return replace(plan.take(joined[rank]), joined=columns if world > 1 else None)


def _order(plan: BatchPlan, modality: int, videos: int, norm_leaves: int) -> np.ndarray:
    """Places of the leaves of one modality in the order of their groups."""
    places = np.flatnonzero(plan.leaves.modality == modality)
    if not norm_leaves:
        return places
    views = places[np.argsort(plan.leaves.video[places], kind="stable")].reshape(videos, -1)  # [video, leaf]
    seeds = np.random.SeedSequence([plan.seed, plan.epoch, plan.batch, _ORDER, modality])
    shuffled = views[np.random.Generator(np.random.Philox(seeds)).permutation(videos)]
    units = shuffled.reshape(videos // norm_leaves, norm_leaves, -1)
    return units.swapaxes(1, 2).reshape(-1)


def groups(count: int, norm_leaves: int) -> Iterator[slice]:
    """Where the groups lie among a rank's `count` leaves of a modality; all of them are one without groups."""
    size = norm_leaves or count
    return (slice(first, first + size) for first in range(0, count, size))
