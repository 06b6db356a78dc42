"""How a batch fits into memory: batch-norm groups, micro-batches, recomputation, and kernels.

`fit` estimates it before anything runs. `plan_run` tries one micro-batch on the device, since libraries use working
memory that cannot be estimated; groups can still change then. During the run, groups are fixed, and `step.Gradient`
halves micro-batches when out of memory.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from gdt.common.errors import UserError, is_out_of_memory
from gdt.pipeline.composition import Composition
from gdt.pipeline.groups import check_groups
from gdt.pipeline.loader import all_usable
from gdt.train.cost import ONE_STAGE, TWO_STAGES, Held, memory, most_leaves, parameters
from gdt.train.kernels import BUDGET, PRECISIONS, Kernels, candidate_kernels
from gdt.train.models.gdt import GDT
from gdt.train.padding import pad_widths
from gdt.train.settings import Pretrain
from gdt.train.trial import Trial, choose_kernels

_GIB = 2**30
_USED = 0.85
"""Share of the available memory to plan with; libraries need some for themselves."""
_PER_PAIR = 24
"""Bytes of the loss per pair of leaves: similarities, logarithms, masks, gradient."""
_OUT_OF_MEMORY = float("inf")
"""Result of a trial that ran out of memory, in place of an index of kernels."""
_SHRINK = 0.75
"""Factor by which the planned memory shrinks after such a trial."""

Memory = Callable[[int, bool], dict[str, Held]]
"""What a leaf of each modality holds, by the number of recomputed parts, and whether there is a memory budget."""


@dataclass(frozen=True)
class Fit:
    """How a rank computes its share of a batch; only the groups affect results."""

    bn_group_size: int
    """As in the settings; 0 for the whole batch."""
    micro_batch_size: int
    """As in the settings; 0 for all of the rank's leaves."""
    recomputed: int
    """Parts of the video trunk that are recomputed for the gradient."""
    budget: bool
    """Whether the trunk is compiled with a memory budget."""
    needed: float
    """Bytes, estimated."""
    room: float
    """Bytes available."""
    most: int = 0
    """Leaves that a forward pass can have, if that decides the groups; else 0."""

    @property
    def fits(self) -> bool:
        return self.needed <= _USED * self.room

    @property
    def batch(self) -> str:
        """Description of groups, micro-batches and recomputation."""
        norm = f"groups of {self.bn_group_size} leaves" if self.bn_group_size else "the whole batch"
        norm += f" (a pass of more than {self.most} has activations of 2**31 elements)" if self.most else ""
        chunks = f", micro-batches of {self.micro_batch_size} leaves, embedded twice" if self.micro_batch_size else ""
        again = ["the first stages"] * bool(self.recomputed) + ["the layers between convolutions"] * self.budget
        return f"batch norm over {norm}{chunks}{', recomputed: ' * bool(again)}{' and '.join(again)}"

    @property
    def memory(self) -> str:
        """Description of the estimated memory."""
        short = "; expect to run out of memory" if self.needed > self.room else ""
        return f"estimated {self.needed / _GIB:.1f} GiB for tensors, {self.room / _GIB:.1f} GiB available{short}"


def fit(
    settings: Pretrain, composition: Composition, world: int, parameters: int, room: float, memory: Memory,
    compiled: bool = False,
) -> Fit:  # fmt: skip
    """The cheapest computation that fits into `room` bytes on each of `world` ranks.

    Groups and micro-batches in the settings are kept. Otherwise batch norm is over the whole batch if that fits, else
    over the largest groups that do. A group, or the share of a rank in the whole batch, is a forward pass, and has at
    most `cost.most_leaves`. If nothing fits, returns what needs least memory with the smallest groups. Raises UserError
    if the settings allow no groups.
    """
    leaves = composition.batch_size * composition.clips_per_video // world
    most = most_leaves(settings.network, settings.clip) if "video" in composition.modalities else leaves
    fixed = _fixed(settings, composition, world, parameters)
    found: list[Fit] = []
    for norm, chunk, recomputed, budget in _from_best(settings, composition.batch_size, leaves, most, compiled):
        held, of_pass = memory(recomputed, budget).values(), norm or leaves
        kept = chunk * max(one.kept for one in held) if chunk else leaves * sum(one.kept for one in held)
        again = of_pass * max(one.peak - one.kept for one in held)  # the backward pass takes one forward pass at a time
        found.append(Fit(norm, chunk, recomputed, budget, fixed + kept + again, room))
        if found[-1].fits:
            break
    one, first = found[-1], found[0]
    if not one.fits:
        one = min((other for other in found if other.bn_group_size == one.bn_group_size), key=lambda one: one.needed)
    decides = settings.bn_group_size is None and leaves > most and one.bn_group_size == first.bn_group_size
    return replace(one, most=most if decides else 0)


def _from_best(
    settings: Pretrain, batch: int, leaves: int, most: int, compiled: bool
) -> Iterator[tuple[int, int, int, bool]]:
    """Allowed groups, micro-batches, recomputed parts and budget, the best first; a pass has at most `most` leaves."""
    asked, chunk = settings.bn_group_size, settings.micro_batch_size
    ways = [(0, False), *((recomputed, compiled) for recomputed in (0, ONE_STAGE, TWO_STAGES)[not compiled :])]
    _require_passes(settings, batch, leaves, most)
    sizes = [asked] if asked else [n for n in _divisors(batch, leaves) if n <= most]
    if chunk and not (sizes := [n for n in sizes if chunk % n == 0]):
        raise UserError(
            f"--micro-batch-size {chunk} is not a multiple of any batch-norm group size; set it to a multiple of a "
            f"divisor of the batch, {batch}"
        )
    if not asked and not chunk and leaves <= most:
        yield from ((0, 0, *way) for way in ways)
    if asked == 0:
        return
    for norm in sizes:
        number = leaves // norm
        chunks = [norm * n for n in range(number - 1, 0, -1) if number % n == 0]
        for several in [[chunk]] if chunk else [[0], chunks]:
            yield from ((norm, size, *way) for way in ways for size in several)


def _divisors(batch: int, leaves: int) -> list[int]:
    """Sizes of whole groups, the largest first."""
    return [n for n in range(batch, 1, -1) if batch % n == 0 and leaves % n == 0]


def _require_passes(settings: Pretrain, batch: int, leaves: int, most: int) -> None:
    """Raise UserError if all groups that the settings allow have more than `most` leaves."""
    asked = settings.bn_group_size
    smaller = next((n for n in _divisors(batch, leaves) if n <= most), None)
    if (asked or leaves) <= most or (asked is None and smaller):
        return
    ways = [] if asked else [f"use at least {-(-leaves // most)} times as many GPUs"]
    ways += [f"{'or ' * bool(ways)}(new runs only) set --bn-group-size to {smaller} or less"] if smaller else []
    raise UserError(
        f"{f'--batch-size {batch}' if asked is None else f'--bn-group-size {asked}'}: a forward pass of "
        f"{asked or leaves} clips has activations of 2**31 elements or more, which GPUs compute slowly or wrongly; "
        f"{', '.join(ways)}"
    )


def _fixed(settings: Pretrain, composition: Composition, world: int, parameters: int) -> float:
    """Bytes that do not depend on the micro-batch: weights, optimizer, batches, loss."""
    clip, leaves = settings.clip, composition.batch_size * composition.clips_per_video
    moments = 2 if settings.optimization.optimizer == "adamw" else 1
    pixels = leaves / world * clip.frames * clip.size**2 * 3 if "video" in composition.modalities else 0
    pairs = (leaves * len(composition.modalities)) ** 2 / world
    return 4.0 * parameters * (2 + moments) + pixels * (settings.loading.prefetch + 2) + _PER_PAIR * pairs


def available_memory(device: torch.device) -> float:
    """Bytes available on a GPU, or on this machine within the limit of the cgroup."""
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
    """How all ranks compute."""

    settings: Pretrain
    """With the chosen groups, micro-batches and precision."""
    fit: Fit
    kernels: Kernels


def plan_run(
    settings: Pretrain, composition: Composition, bands: int, begun: Pretrain | None, device: torch.device, world: int,
    say: Callable[[str], None], trial: bool,
) -> Plan:  # fmt: skip
    """Choose groups, micro-batches and kernels; a run that resumes keeps the groups and precision of `begun`.

    `trial`: compute one micro-batch first, to detect a lack of memory and wrong or slow kernels. Raises UserError if
    the ranks cannot have whole groups.
    """
    if settings.bn_group_size is None and begun is not None:
        settings = replace(settings, bn_group_size=begun.bn_group_size)
    share = composition.batch_size * composition.clips_per_video // world
    check_groups(composition.batch_size, composition.clips_per_video, settings.bn_group_size or 0, world)
    numbers = PRECISIONS[settings.precision]
    weights = parameters(settings.network, composition.modalities)
    with torch.device("meta"):
        padded = trial and "video" in composition.modalities and bool(pad_widths(GDT(settings.network, ("video",))))
    compiled = settings.compile == "on" or (settings.compile == "auto" and device.type == "cuda")
    candidates = candidate_kernels(numbers, compiled, padded)
    if begun is not None:
        candidates = [kernels for kernels in candidates if kernels.precision == numbers]

    @cache
    def memory_of(precision: torch.dtype, recomputed: int, budget: bool) -> dict[str, Held]:
        return memory(settings.network, settings.clip, bands, composition.modalities, precision, recomputed, budget)

    def fitted(room: float) -> Fit:
        """For the first of the candidates."""
        first = candidates[0]
        held = partial(memory_of, first.precision)
        return fit(settings, composition, world, weights, room, held, first.compiled)

    def tried(one: Fit, candidates: list[Kernels]) -> float:
        """Index of the first kernels that work."""
        if not trial or "video" not in composition.modalities:
            return 0
        leaves = min(one.bn_group_size or share, share)
        passes = (one.micro_batch_size or share) // leaves
        shared = world > 1 and not one.bn_group_size
        masked = not all_usable(composition.modalities, settings.loading)
        tries = Trial(settings.network, settings.clip, leaves, passes, one.recomputed, shared, masked)
        try:
            found = choose_kernels(candidates, tries, device, say)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return _OUT_OF_MEMORY
        return candidates.index(found)

    free = available_memory(device) / (int(os.environ.get("LOCAL_WORLD_SIZE", world)) if device.type == "cpu" else 1)
    while True:
        free = _least(free, device)
        one = fitted(free)
        candidates = [replace(each, budget=BUDGET if one.budget and each.compiled else 1.0) for each in candidates]
        choice = tried(one, candidates)
        # every rank joins the reduction, even if its trial failed, or the others would hang; the safest choice wins
        agreed = -_least(-choice, device)
        if agreed < _OUT_OF_MEMORY:
            candidates = candidates[int(agreed) :]
            if agreed > choice:
                say(f"computing in {candidates[0]}, since another rank rejects faster kernels")
            if fitted(free) == one:
                break
            say(f"planning again for {candidates[0]}, which needs more memory")
            continue
        empty_caches()
        smaller = fitted(free * _SHRINK)
        if replace(smaller, room=one.room) == one:
            candidates = [each for each in candidates if not each.padded]
            break  # nothing needs less; if the run fails, its error says what to change
        say(f"out of memory with {one.batch} ({one.memory}); planning with less memory")
        free *= _SHRINK
    kernels = candidates[0]
    exact: Any = str(kernels.precision).removeprefix("torch.")
    settings = replace(
        settings, bn_group_size=one.bn_group_size, micro_batch_size=one.micro_batch_size, precision=exact
    )
    return Plan(settings, one, kernels)


def empty_caches() -> None:
    """Free memory that torch caches."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def _least(value: float, device: torch.device) -> float:
    """Minimum over all ranks."""
    if not dist.is_initialized():
        return value
    everyone = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(everyone, dist.ReduceOp.MIN)
    return everyone.item()
