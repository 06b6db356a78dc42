"""How a batch is made to fit: over which groups batch norm runs, what is embedded at a time, what is recomputed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from gdt.common.errors import UserError
from gdt.pipeline.composition import Composition
from gdt.train.cost import WIDE, WIDER
from gdt.train.settings import Pretrain

_GIB = 2**30
_USED = 0.85
"""Share of the free memory that is planned with; libraries take working memory that cannot be counted before."""
_PER_PAIR = 24
"""Bytes of the loss per pair of leaves: similarities, their logarithms, masks and what the gradient needs of them."""

Memory = Callable[[int], dict[str, float]]
"""Bytes that a leaf of each modality keeps, by the number of parts that are recomputed."""


@dataclass(frozen=True)
class Fit:
    """How a rank goes about its share of a batch; only the groups are part of the run's numbers."""

    norm_leaves: int
    """As in the settings; 0 for the whole batch."""
    chunk_leaves: int
    """As in the settings; 0 for all of the rank's leaves at once, which are then embedded once."""
    recomputed: int
    """Parts of the video trunk whose activations are made again for the gradient."""
    needed: float
    """Bytes, estimated."""
    room: float
    """Bytes that were free."""

    def __str__(self) -> str:
        norm = f"groups of {self.norm_leaves} leaves" if self.norm_leaves else "the whole batch"
        chunks = f", {self.chunk_leaves} leaves at a time, each embedded twice" if self.chunk_leaves else ""
        again = ", the first stages' activations computed twice" if self.recomputed else ""
        short = "; expect to run out of it" if self.needed > self.room else ""
        return (
            f"needs about {self.needed / _GIB:.1f} of {self.room / _GIB:.1f} GiB that are free: batch norm over "
            f"{norm}{chunks}{again}{short}"
        )


def fit(settings: Pretrain, composition: Composition, world: int, parameters: int, room: float, memory: Memory) -> Fit:
    """The way that computes least among those that fit into `room` bytes on each of `world` ranks.

    What the settings say is kept to. Else batch norm is over the whole batch where that fits, and over the largest
    groups that do where it does not.
    """
    batch, leaves = settings.videos_per_batch, settings.videos_per_batch * composition.clips_per_video // world
    fixed = _fixed(settings, composition, world, parameters)
    stages = (0, WIDE, WIDER)

    def way(norm: int, chunk: int, recomputed: int) -> Fit:
        kept = memory(recomputed)
        needed = chunk * max(kept.values()) if chunk else leaves * sum(kept.values())
        return Fit(norm, chunk, recomputed, fixed + needed, room)

    def best(candidates: Iterator[Fit]) -> Fit:
        others = []
        for candidate in candidates:
            if _fits(candidate):
                return candidate
            others.append(candidate)
        return min(others, key=lambda candidate: candidate.needed)

    def grouped(norm: int) -> Fit:
        if settings.chunk_leaves:
            return best(way(norm, settings.chunk_leaves, recomputed) for recomputed in stages)
        number = leaves // norm
        chunks = [norm * n for n in range(number - 1, 0, -1) if number % n == 0]
        each = (way(norm, chunk, recomputed) for sizes in ((0,), chunks) for recomputed in stages for chunk in sizes)
        return best(each)

    whole = best(way(0, 0, recomputed) for recomputed in stages)
    if settings.norm_leaves == 0 or (settings.norm_leaves is None and not settings.chunk_leaves and _fits(whole)):
        return whole
    if settings.norm_leaves:
        return grouped(settings.norm_leaves)
    sizes = [n for n in range(batch, 1, -1) if batch % n == 0 and leaves % n == 0]
    if settings.chunk_leaves:
        sizes = [n for n in sizes if settings.chunk_leaves % n == 0]
        if not sizes:
            raise UserError(
                f"--chunk-leaves {settings.chunk_leaves} is no multiple of a group of leaves that divides the {batch} "
                "videos of a batch; set it to one"
            )
    several = [grouped(n) for n in sizes] or [whole]
    return next((one for one in several if _fits(one)), several[-1])


def _fits(one: Fit) -> bool:
    return one.needed <= _USED * one.room


def _fixed(settings: Pretrain, composition: Composition, world: int, parameters: int) -> float:
    """Bytes of what is there whatever is embedded at a time."""
    clip, leaves = settings.clip, settings.videos_per_batch * composition.clips_per_video
    moments = 2 if settings.optimization.method == "adamw" else 1
    pixels = leaves / world * clip.frames * clip.size**2 * 3 if "video" in composition.modalities else 0
    pairs = (leaves * len(composition.modalities)) ** 2 / world
    return 4.0 * parameters * (2 + moments) + pixels * (settings.loading.prefetch + 2) + _PER_PAIR * pairs


def room(device: torch.device) -> float:
    """Bytes that are free on a device, or on this machine within the limits of its control group."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    return float(min(psutil.virtual_memory().available, _group_limit()))


def _group_limit(folder: Path = Path("/sys/fs/cgroup")) -> float:
    try:
        limit, used = ((folder / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return float("inf") if limit == "max" else float(int(limit) - int(used))
    except (OSError, ValueError):
        return float("inf")
