"""Before the first step: which groups, chunks and kernels a run computes with on the memory and the GPUs there are."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from gdt.common.errors import is_out_of_memory
from gdt.pipeline.composition import Composition
from gdt.pipeline.groups import require_groups
from gdt.train.cost import memory, parameters
from gdt.train.fitting import Fit, fit, room
from gdt.train.kernels import Kernels, first_right, ways
from gdt.train.settings import BEFORE, Pretrain

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
_SHORT = float("inf")
"""In the place of a way to compute: there was no memory for the trial."""
_LESS = 0.75
"""Share of the memory that is planned with once a trial has run out of it."""


@dataclass(frozen=True)
class Plan:
    """How a rank computes; alike on all ranks."""

    settings: Pretrain
    """With what the run's numbers depend on: its groups, and the precision that was found right."""
    fit: Fit
    kernels: Kernels


def prepared(
    settings: Pretrain, composition: Composition, bands: int, state: Mapping[str, Any] | None, device: torch.device,
    world: int, say: Callable[[str], None], trial: bool,
) -> Plan:  # fmt: skip
    """Groups are chosen where a run begins, and those of its checkpoint's `state` where it goes on.

    `trial`: compute one chunk before the run relies on it, which finds a lack of memory and wrong or slow kernels.
    Raises UserError where the ranks cannot have whole groups.
    """
    if settings.norm_leaves is None and state is not None:
        begun = json.loads(state["settings"]).get("norm_leaves", BEFORE["norm_leaves"])
        settings = replace(settings, norm_leaves=begun)
    clips = composition.clips_per_video
    require_groups(settings.videos_per_batch, clips, settings.norm_leaves or 0, world)
    numbers = PRECISIONS[settings.precision]
    weights = parameters(settings.network, composition.modalities)

    @cache
    def memory_of(recomputed: int) -> dict[str, float]:
        return memory(settings.network, settings.clip, bands, composition.modalities, numbers, recomputed)

    compiled = settings.compile == "on" or (settings.compile == "auto" and device.type == "cuda")
    candidates = ways(numbers, compiled)
    if state is not None:  # its numbers are of one precision
        candidates = [kernels for kernels in candidates if kernels.precision == numbers]
    trial = trial and "video" in composition.modalities
    free = room(device) / (int(os.environ.get("LOCAL_WORLD_SIZE", world)) if device.type == "cpu" else 1)
    while True:
        free = _least(free, device)
        one = fit(settings, composition, world, weights, free, memory_of)
        try:
            found = _tried(settings, clips, one, candidates, device, world, say) if trial else candidates[0]
            choice = float(candidates.index(found))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            choice = _SHORT
        # one reduction whatever came of the trial, or ranks that differ would wait for each other; the most careful
        # rank decides, and one that is short of memory above all
        agreed = -_least(-choice, device)
        if agreed < _SHORT:
            kernels = candidates[int(agreed)]
            if agreed > choice:
                say(f"computing in {kernels}, as another GPU does")
            break
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        smaller = fit(settings, composition, world, weights, free * _LESS, memory_of)
        if (smaller.norm_leaves, smaller.chunk_leaves, smaller.recomputed) == (
            one.norm_leaves, one.chunk_leaves, one.recomputed
        ):  # fmt: skip
            kernels = candidates[0]
            break  # there is no smaller way; the run itself will say what to change
        say(f"out of memory where it {one}; trying less")
        free *= _LESS
    exact: Any = str(kernels.precision).removeprefix("torch.")
    settings = replace(settings, norm_leaves=one.norm_leaves, chunk_leaves=one.chunk_leaves, precision=exact)
    return Plan(settings, one, kernels)


def _tried(
    settings: Pretrain, clips: int, one: Fit, candidates: list[Kernels], device: torch.device, world: int,
    say: Callable[[str], None],
) -> Kernels:  # fmt: skip
    share = settings.videos_per_batch * clips // world
    leaves = min(one.chunk_leaves or one.norm_leaves or share, share)
    return first_right(candidates, settings.network, settings.clip, leaves, one.recomputed, device, say)


def _least(value: float, device: torch.device) -> float:
    """The smallest over all ranks."""
    if not dist.is_initialized():
        return value
    everyone = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(everyone, dist.ReduceOp.MIN)
    return everyone.item()
