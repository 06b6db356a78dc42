"""Which shards a cache evicts, and what a plan fetches: eviction by next use, without any files."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdt.common.errors import UserError


def evicted(held: Mapping[Any, tuple[float, int]], room: int) -> list[Any]:
    """The shards that go, given when each is needed (inf: never) and its size: what is needed first stays if it fits,
    of those needed at once the largest, else the first. For one size, this fetches the least, else about 1 % more.
    """

    def priority(item: tuple[Any, tuple[float, int]]) -> tuple[float, int]:
        use, size = item[1]
        return use, -size if use < math.inf else 0

    victims = []
    for shard, (_, size) in sorted(held.items(), key=priority):
        if size > room:
            victims.append(shard)
        else:
            room -= size
    return victims


def too_small(bound: int, least: int) -> UserError:
    """The error about a cache that cannot hold the shards of one batch."""
    return UserError(
        f"a cache of {bound / 1e6:,.1f} MB cannot hold the shards of one batch; set --cache to "
        f"{math.ceil(least / 1e6)}MB or more or, without --cache, GDT_CACHE to a folder on a disk with as much "
        "free (or gdt pretrain's --shuffle-shards: batches then take fewer shards)"
    )


def simulate(batches: Sequence[np.ndarray], sizes: Sequence[int], bound: int) -> tuple[list[int], int]:
    """The shards that batches of shard numbers fetch into an empty cache with eviction by next use, in order.

    And the smallest bound that would do, which is the size of the shards of the largest batch.
    """
    plan = [sorted({*batch.tolist()}) for batch in batches]
    uses: dict[int, list[int]] = {}  # the batches that need each shard, the first one last; then never, len(plan)
    for at in reversed(range(len(plan))):
        for number in plan[at]:
            uses.setdefault(number, [len(plan)]).append(at)
    held: set[int] = set()
    fetched: list[int] = []
    least = 0
    for shards in plan:
        needed = sum(sizes[number] for number in shards)
        least = max(least, needed)
        fetched += [number for number in shards if number not in held]
        held.update(shards)
        for number in shards:
            uses[number].pop()
        idle = {number: (uses[number][-1], sizes[number]) for number in held.difference(shards)}
        held.difference_update(evicted(idle, bound - needed))
    return fetched, least
