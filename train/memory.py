"""What fits: over which groups batch norm runs, what is embedded at a time, what is recomputed, in which kernels.

Three answers, each where the one before is not sure. `fit` counts before anything runs. `prepared` tries one chunk on
the device, as no count knows the working memory of libraries; groups can still change then. While the run goes on its
groups are fixed, and `step.Gradient` halves the chunks where memory runs out all the same.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from gdt.common.errors import UserError, is_out_of_memory
from gdt.pipeline.composition import Composition
from gdt.pipeline.groups import check_groups
from gdt.train.cost import WIDE, WIDER, memory, parameters
from gdt.train.kernels import PRECISIONS, Kernels, first_right, ways
from gdt.train.settings import Pretrain

_GIB = 2**30
_USED = 0.85
"""Share of the free memory that is planned with; libraries take working memory that cannot be counted before."""
_PER_PAIR = 24
"""Bytes of the loss per pair of leaves: similarities, their logarithms, masks and what the gradient needs of them."""
_SHORT = float("inf")
"""In the place of a way to compute: there was no memory for the trial."""
_LESS = 0.75
"""Share of the memory that is planned with once a trial has run out of it."""

Memory = Callable[[int], dict[str, float]]
"""Bytes that a leaf of each modality keeps, by the number of parts that are recomputed."""


@dataclass(frozen=True)
class Fit:
    """How a rank goes about its share of a batch; only the groups are part of the run's numbers."""

    bn_group_size: int
    """As in the settings; 0 for the whole batch."""
    micro_batch_size: int
    """As in the settings; 0 for all of the rank's leaves at once, which are then embedded once."""
    recomputed: int
    """Parts of the video trunk whose activations are made again for the gradient."""
    needed: float
    """Bytes, estimated."""
    room: float
    """Bytes that were free."""

    @property
    def fits(self) -> bool:
        return self.needed <= _USED * self.room

    @property
    def batch(self) -> str:
        """How a batch is computed."""
        norm = f"groups of {self.bn_group_size} leaves" if self.bn_group_size else "the whole batch"
        chunks = f", micro-batches of {self.micro_batch_size} leaves, embedded twice" if self.micro_batch_size else ""
        again = ", activations of the first stages recomputed" if self.recomputed else ""
        return f"batch norm over {norm}{chunks}{again}"

    @property
    def memory(self) -> str:
        """What that is estimated to take."""
        short = "; expect to run out of memory" if self.needed > self.room else ""
        return f"estimated memory {self.needed / _GIB:.1f} GiB of {self.room / _GIB:.1f} GiB available{short}"


def fit(settings: Pretrain, composition: Composition, world: int, parameters: int, room: float, memory: Memory) -> Fit:
    """The way that computes least among those that fit into `room` bytes on each of `world` ranks.

    What the settings say is kept to. Else batch norm is over the whole batch where that fits, and over the largest
    groups that do where it does not. Where nothing fits, it is the way that needs least, of the smallest groups.
    """
    leaves = composition.batch_size * composition.clips_per_video // world
    fixed = _fixed(settings, composition, world, parameters)
    found: list[Fit] = []
    for norm, chunk, recomputed in _from_best(settings, composition.batch_size, leaves):
        kept = memory(recomputed)
        needed = chunk * max(kept.values()) if chunk else leaves * sum(kept.values())
        found.append(Fit(norm, chunk, recomputed, fixed + needed, room))
        if found[-1].fits:
            return found[-1]
    return min((one for one in found if one.bn_group_size == found[-1].bn_group_size), key=lambda one: one.needed)


def _from_best(settings: Pretrain, batch: int, leaves: int) -> Iterator[tuple[int, int, int]]:
    """Groups, chunks and recomputed parts that the settings leave open, what computes least first."""
    asked, chunk = settings.bn_group_size, settings.micro_batch_size
    stages = (0, WIDE, WIDER)
    sizes = [asked] if asked else [n for n in range(batch, 1, -1) if batch % n == 0 and leaves % n == 0]
    if chunk and not (sizes := [n for n in sizes if chunk % n == 0]):
        raise UserError(
            f"--micro-batch-size {chunk} is not a multiple of a batch-norm group size that divides the {batch} videos "
            "of a batch; use one that is"
        )
    if not asked and not chunk:
        yield from ((0, 0, recomputed) for recomputed in stages)
    if asked == 0:
        return
    for norm in sizes:
        number = leaves // norm
        chunks = [norm * n for n in range(number - 1, 0, -1) if number % n == 0]
        for several in [[chunk]] if chunk else [[0], chunks]:
            yield from ((norm, size, recomputed) for recomputed in stages for size in several)


def _fixed(settings: Pretrain, composition: Composition, world: int, parameters: int) -> float:
    """Bytes of what is there whatever is embedded at a time."""
    clip, leaves = settings.clip, composition.batch_size * composition.clips_per_video
    moments = 2 if settings.optimization.optimizer == "adamw" else 1
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


@dataclass(frozen=True)
class Plan:
    """How a rank computes; alike on all ranks."""

    settings: Pretrain
    """With what the run's numbers depend on: its groups, and the precision that was found right."""
    fit: Fit
    kernels: Kernels


def prepared(
    settings: Pretrain, composition: Composition, bands: int, begun: Pretrain | None, device: torch.device, world: int,
    say: Callable[[str], None], trial: bool,
) -> Plan:  # fmt: skip
    """Groups are chosen where a run begins; one that goes on keeps those that it has `begun` with.

    `trial`: compute one chunk before the run relies on it, which finds a lack of memory and wrong or slow kernels.
    Raises UserError where the ranks cannot have whole groups.
    """
    if settings.bn_group_size is None and begun is not None:
        settings = replace(settings, bn_group_size=begun.bn_group_size)
    share = composition.batch_size * composition.clips_per_video // world
    check_groups(composition.batch_size, composition.clips_per_video, settings.bn_group_size or 0, world)
    numbers = PRECISIONS[settings.precision]
    weights = parameters(settings.network, composition.modalities)
    candidates = ways(numbers, settings.compile == "on" or (settings.compile == "auto" and device.type == "cuda"))
    if begun is not None:  # its numbers are of one precision
        candidates = [kernels for kernels in candidates if kernels.precision == numbers]

    @cache
    def memory_of(recomputed: int) -> dict[str, float]:
        return memory(settings.network, settings.clip, bands, composition.modalities, numbers, recomputed)

    def tried(one: Fit) -> float:
        """The number of the kernels that are right."""
        if not trial or "video" not in composition.modalities:
            return 0
        leaves = min(one.micro_batch_size or one.bn_group_size or share, share)
        try:
            found = first_right(candidates, settings.network, settings.clip, leaves, one.recomputed, device, say)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return _SHORT
        return candidates.index(found)

    free = room(device) / (int(os.environ.get("LOCAL_WORLD_SIZE", world)) if device.type == "cpu" else 1)
    while True:
        free = _least(free, device)
        one = fit(settings, composition, world, weights, free, memory_of)
        choice = tried(one)
        # one reduction whatever came of the trial, or ranks that differ would wait for each other; the most careful
        # rank decides, and one that is short of memory above all
        agreed = -_least(-choice, device)
        if agreed < _SHORT:
            kernels = candidates[int(agreed)]
            if agreed > choice:
                say(f"computing in {kernels}, as another GPU does")
            break
        empty_caches()
        smaller = fit(settings, composition, world, weights, free * _LESS, memory_of)
        if replace(smaller, room=one.room) == one:
            kernels = candidates[0]
            break  # there is no smaller way; the run itself will say what to change
        say(f"out of memory with {one.batch} ({one.memory}); trying less")
        free *= _LESS
    exact: Any = str(kernels.precision).removeprefix("torch.")
    settings = replace(
        settings, bn_group_size=one.bn_group_size, micro_batch_size=one.micro_batch_size, precision=exact
    )
    return Plan(settings, one, kernels)


def empty_caches() -> None:
    """Give back what torch keeps of memory that nothing uses any more."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def _least(value: float, device: torch.device) -> float:
    """The smallest over all ranks."""
    if not dist.is_initialized():
        return value
    everyone = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(everyone, dist.ReduceOp.MIN)
    return everyone.item()
