"""The order in which the leaves of a batch are embedded, and their assignment to ranks.

Batch norm takes its statistics over groups of `group_size` leaves of one modality, and a rank holds whole groups.
The order is a function of the plan, so the groups are the same on any number of ranks.
"""

import numpy as np

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.pipeline.tree import BatchPlan


def check_groups(videos: int, views: int, group_size: int, world: int, whole: bool = True) -> None:
    """Raise UserError unless `world` ranks can take equal shares of whole groups, or of whole videos without groups.

    `views` is the number of leaves per video and modality; a group holds one leaf per video. `whole`: whether all
    leaves of a modality may be one pass.
    """
    if not group_size and whole:
        if videos % world:
            raise UserError(
                f"{videos} videos per batch cannot be split over {world} GPUs; make --batch-size a multiple of {world}"
            )
        return
    if group_size and _divides(videos, views, group_size, world):
        return
    sizes = [str(n) for n in range(2, videos + 1) if _divides(videos, views, n, world)] + ["0"] * whole
    processes = f"{world} process{'es' if world > 1 else ''}"
    if not group_size:
        message = f"--group-size 0 on {processes} needs GPUs"
    else:
        message = f"{videos} videos per batch do not make whole groups of --group-size {group_size} for {processes}"
    raise UserError(f"{message}; set it to {', '.join(sizes) or '0'}, start another number, or change --batch-size")


def _divides(videos: int, views: int, group_size: int, world: int) -> bool:
    return videos % group_size == 0 and videos // group_size * views % world == 0


def take_rank(plan: BatchPlan, rank: int, world: int, group_size: int = 0) -> BatchPlan:
    """The leaves of one rank, sorted by modality, then by group.

    Without groups, a rank takes an equal, contiguous share of whole videos. With groups (`group_size` > 0), it
    takes an equal, contiguous share of the groups. A group has no video twice, and a random leaf of each of its videos,
    so it mixes the values of every factor: batch norm over reversed clips alone would subtract what they have in
    common, which evaluation does not. Videos are assigned to groups anew for each modality and each leaf of a video, so
    the statistics of one group do not reveal the videos of another. Raises UserError if ranks cannot take equal shares.
    """
    videos, numbers = len(np.unique(plan.leaves.video)), np.unique(plan.leaves.modality)
    most = np.unique([plan.leaves.video, plan.leaves.modality], axis=1, return_counts=True)[1].max()
    if (group_size or world > 1) and len(plan) < most * videos * len(numbers):
        raise UserError(
            "the factors give videos or modalities unequal numbers of leaves, but groups and ranks need equally many; "
            "change those of --factors-from, or set --group-size to 0 on one process"
        )
    check_groups(videos, len(plan) // len(numbers) // videos, group_size, world)
    order = np.concatenate([_order(plan, number, videos, group_size) for number in numbers])
    # on several ranks, all modalities have the same number of leaves: whole videos or groups
    return plan.take(order.reshape(len(numbers) if world > 1 else 1, world, -1)[:, rank].reshape(-1))


def _order(plan: BatchPlan, modality: int, videos: int, group_size: int) -> np.ndarray:
    """Indices of the leaves of one modality, group by group; the groups take turns over the views."""
    chosen = np.flatnonzero(plan.leaves.modality == modality)
    if not group_size:
        return chosen
    leaves = chosen[np.argsort(plan.leaves.video[chosen], kind="stable")].reshape(videos, -1)  # [video, view]
    rng = generator(Stream.GROUPS, plan.seed, plan.epoch, plan.batch, modality)
    leaves = rng.permuted(leaves, axis=1)  # else each view would hold one value, such as reversed
    views = [view[rng.permutation(videos)].reshape(-1, group_size) for view in leaves.T]
    return np.stack(views, 1).reshape(-1)
