"""In which order the leaves of a batch are embedded, and which rank holds which.

Batch norm takes its statistics over groups of so many leaves of one modality, and a rank holds whole groups. The order
is a function of the plan, so the groups are the same on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gdt.common.errors import UserError
from gdt.pipeline.tree import BatchPlan

_ORDER = 0x67726F7570  # a stream of random numbers beside that of the plan


def check_groups(videos: int, views: int, bn_group_size: int, world: int) -> None:
    """Raise UserError where so many ranks cannot have whole groups, or whole videos, and as many each.

    `views` are the leaves of a video in one modality; a group holds one view of its videos.
    """
    if not bn_group_size:
        if videos % world:
            raise UserError(
                f"{videos} videos per batch cannot be shared by {world} GPUs; make --batch-size a multiple of it"
            )
        return
    if _whole(videos, views, bn_group_size, world):
        return
    sizes = [n for n in range(2, videos + 1) if _whole(videos, views, n, world)]
    numbers = [n for n in range(1, 2 * world) if _whole(videos, views, bn_group_size, n)]
    said = f"{videos} videos per batch do not make whole groups of --bn-group-size {bn_group_size} for {world} "
    said += f"GPU{'s' if world > 1 else ''}; "
    if numbers:
        said += f"take {_listed(numbers)} GPU{'s' if numbers != [1] else ''}, or, for a run that begins, "
    raise UserError(said + (f"set it to {_listed(sizes)}, or 0 for the whole batch" if sizes else "set it to 0"))


def _whole(videos: int, views: int, bn_group_size: int, world: int) -> bool:
    return videos % bn_group_size == 0 and videos // bn_group_size * views % world == 0


def _listed(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def take_rank(plan: BatchPlan, rank: int, world: int, bn_group_size: int = 0) -> BatchPlan:
    """The leaves of one rank, one modality after the other, and within each one group after the other.

    Its `joined` are the columns of all ranks' leaves, rank after rank. Without groups a rank has whole videos, an equal
    run of them. With groups (`bn_group_size` > 0) it has an equal run of these. Each holds one view of so many videos:
    their first leaves in a modality, or their second ones, and so on, so that none holds two of a video. The videos of
    each view are in an order of their own, drawn with the plan, so that the statistics of a group say nothing of which
    videos a group of another view or modality holds. Raises UserError where ranks cannot have equal shares.
    """
    modality = plan.leaves.modality
    videos = len(np.unique(plan.leaves.video))
    numbers = np.unique(modality)
    check_groups(videos, len(plan) // len(numbers) // videos, bn_group_size, world)
    order = np.concatenate([_order(plan, number, videos, bn_group_size) for number in numbers])
    # the modalities have as many leaves each, whole videos or groups of them
    by_modality = order.reshape(len(numbers), world, -1)
    joined = by_modality.swapaxes(0, 1).reshape(world, -1)
    columns = {name: values[joined.reshape(-1)] for name, values in plan.columns.items()}
    return replace(plan.take(joined[rank]), joined=columns if world > 1 else None)


def _order(plan: BatchPlan, modality: int, videos: int, bn_group_size: int) -> np.ndarray:
    """Places of the leaves of one modality in the order of their groups: one of each view, and so on."""
    places = np.flatnonzero(plan.leaves.modality == modality)
    if not bn_group_size:
        return places
    leaves = places[np.argsort(plan.leaves.video[places], kind="stable")].reshape(videos, -1)  # [video, view]
    seeds = np.random.SeedSequence([plan.seed, plan.epoch, plan.batch, _ORDER, modality])
    rng = np.random.Generator(np.random.Philox(seeds))
    views = [view[rng.permutation(videos)].reshape(-1, bn_group_size) for view in leaves.T]
    return np.stack(views, 1).reshape(-1)


def groups(count: int, bn_group_size: int) -> Iterator[slice]:
    """Where the groups lie among a rank's `count` leaves of a modality; all of them are one without groups."""
    size = bn_group_size or count
    return (slice(first, first + size) for first in range(0, count, size))
