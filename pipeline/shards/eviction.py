"""Which shards a cache evicts: by next use, without any files."""

import math
from collections.abc import Mapping
from typing import Any

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
