"""How a batch fits into memory: batch-norm groups, micro-batches, recomputation, and kernels.

`fit` estimates the memory. `plan_run` then tries one micro-batch on the device, since the workspaces of libraries
cannot be estimated; it may choose smaller groups. During the run, groups are fixed, and `step.Gradient` halves
micro-batches when out of memory.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gdt.common.errors import UserError, is_out_of_memory
from gdt.pipeline.composition import Composition
from gdt.pipeline.groups import check_groups
from gdt.pipeline.loader import all_usable
from gdt.train.cost import ONE_STAGE, TWO_STAGES, LeafMemory, max_leaves_per_pass, memory, parameters
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

MemoryOf = Callable[[int, bool], dict[str, LeafMemory]]
"""Memory of a leaf of each modality, for a number of recomputed parts, with or without a memory budget."""


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
    """Maximum leaves of a forward pass, if it determines the groups; else 0."""

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
    settings: Pretrain, composition: Composition, world: int, parameters: int, room: float, memory: MemoryOf,
    compiled: bool = False,
) -> Fit:  # fmt: skip
    """The cheapest computation that fits into `room` bytes on each of `world` ranks.

    Keeps the groups and micro-batches of the settings. By default, batch norm is over the whole batch if that fits,
    else over the largest groups that do. A forward pass is a group, or a rank's share of the whole batch, of at most
    `cost.max_leaves_per_pass` leaves. If nothing fits, returns the smallest groups with the least memory. Raises
    UserError if the settings allow no groups.
    """
    leaves = composition.batch_size * composition.clips_per_video // world
    most = max_leaves_per_pass(settings.network, settings.clip) if "video" in composition.modalities else leaves
    fixed = _fixed_memory(settings, composition, world, parameters)
    found: list[Fit] = []
    for norm, micro_batch, recomputed, budget in _list_ways(settings, composition.batch_size, leaves, most, compiled):
        per_leaf = memory(recomputed, budget).values()
        kept = micro_batch * max(m.kept for m in per_leaf) if micro_batch else leaves * sum(m.kept for m in per_leaf)
        # the backward pass goes through one forward pass at a time
        again = (norm or leaves) * max(m.peak - m.kept for m in per_leaf)
        found.append(Fit(norm, micro_batch, recomputed, budget, fixed + kept + again, room))
        if found[-1].fits:
            break
    one, first = found[-1], found[0]
    if not one.fits:
        one = min((other for other in found if other.bn_group_size == one.bn_group_size), key=lambda one: one.needed)
    decides = settings.bn_group_size is None and leaves > most and one.bn_group_size == first.bn_group_size
    return replace(one, most=most if decides else 0)


def _list_ways(
    settings: Pretrain, batch: int, leaves: int, most: int, compiled: bool
) -> Iterator[tuple[int, int, int, bool]]:
    """Allowed groups, micro-batches, recomputed parts and budget, best first; a pass has at most `most` leaves."""
    asked, micro_batch = settings.bn_group_size, settings.micro_batch_size
    ways = [(0, False), *((recomputed, compiled) for recomputed in (0, ONE_STAGE, TWO_STAGES)[not compiled :])]
    _require_small_passes(settings, batch, leaves, most)
    sizes = [asked] if asked else [n for n in _group_sizes(batch, leaves) if n <= most]
    if micro_batch and not (sizes := [n for n in sizes if micro_batch % n == 0]):
        raise UserError(
            f"--micro-batch-size {micro_batch} is not a multiple of any batch-norm group size; set it to a multiple of "
            f"a divisor of the batch, {batch}"
        )
    if not asked and not micro_batch and leaves <= most:
        yield from ((0, 0, *way) for way in ways)
    if asked == 0:
        return
    for norm in sizes:
        number = leaves // norm
        smaller = [norm * n for n in range(number - 1, 0, -1) if number % n == 0]
        for several in [[micro_batch]] if micro_batch else [[0], smaller]:
            yield from ((norm, size, *way) for way in ways for size in several)


def _group_sizes(batch: int, leaves: int) -> list[int]:
    """Possible sizes of groups, largest first: divisors of the batch size and of the number of leaves."""
    return [n for n in range(batch, 1, -1) if batch % n == 0 and leaves % n == 0]


def _require_small_passes(settings: Pretrain, batch: int, leaves: int, most: int) -> None:
    """Raise UserError if the settings allow only groups of more than `most` leaves."""
    asked = settings.bn_group_size
    smaller = next((n for n in _group_sizes(batch, leaves) if n <= most), None)
    if (asked or leaves) <= most or (asked is None and smaller):
        return
    ways = [] if asked else [f"use at least {-(-leaves // most)} times as many GPUs"]
    ways += [f"{'or ' * bool(ways)}(new runs only) set --bn-group-size to {smaller} or less"] if smaller else []
    raise UserError(
        f"{f'--batch-size {batch}' if asked is None else f'--bn-group-size {asked}'}: a forward pass of "
        f"{asked or leaves} clips has activations of 2**31 elements or more, which GPUs compute slowly or wrongly; "
        f"{', '.join(ways)}"
    )


def _fixed_memory(settings: Pretrain, composition: Composition, world: int, parameters: int) -> float:
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
    (kib,) = re.findall(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
    return float(min(1024 * int(kib), _cgroup_memory()))


def _cgroup_memory(mount: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Bytes left within the limits of the process's cgroup (v1 or v2) and its parents; page cache counts as left."""
    left = float("inf")
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            root, names = mount / "memory", ("limit_in_bytes", "usage_in_bytes")
        elif not controllers:
            root, names = mount, ("max", "current")
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                left = min(left, _left_in(folder, *names))
    return left


def _left_in(folder: Path, limit: str, used: str) -> float:
    try:
        limit, used, stat = ((folder / f"memory.{name}").read_text().strip() for name in (limit, used, "stat"))
        if limit == "max":
            return float("inf")
        sizes = {name.removeprefix("total_"): int(size) for name, size in map(str.split, stat.splitlines())}
        return float(int(limit) - int(used) + sizes["active_file"] + sizes["inactive_file"])
    except (OSError, ValueError, KeyError):
        return float("inf")


@dataclass(frozen=True)
class Plan:
    """The computation that all ranks agree on."""

    settings: Pretrain
    """With the chosen groups, micro-batches and precision."""
    fit: Fit
    kernels: Kernels


def plan_run(
    settings: Pretrain, composition: Composition, bands: int, earlier: Pretrain | None, device: torch.device,
    world: int, say: Callable[[str], None], trial: bool,
) -> Plan:  # fmt: skip
    """Choose groups, micro-batches and kernels; a resumed run keeps the groups and precision of `earlier`.

    `trial`: compute one micro-batch first, to detect a lack of memory and wrong or slow kernels. Raises UserError if
    the leaves of a rank cannot be split into groups.
    """
    if settings.bn_group_size is None and earlier is not None:
        settings = replace(settings, bn_group_size=earlier.bn_group_size)
    share = composition.batch_size * composition.clips_per_video // world
    check_groups(composition.batch_size, composition.clips_per_video, settings.bn_group_size or 0, world)
    dtype = PRECISIONS[settings.precision]
    weights = parameters(settings.network, composition.modalities)
    with torch.device("meta"):
        padded = trial and "video" in composition.modalities and bool(pad_widths(GDT(settings.network, ("video",))))
    compiled = settings.compile == "on" or (settings.compile == "auto" and device.type == "cuda")
    candidates = candidate_kernels(dtype, compiled, padded)
    if earlier is not None:
        candidates = [kernels for kernels in candidates if kernels.precision == dtype]

    @cache
    def memory_of(precision: torch.dtype, recomputed: int, budget: bool) -> dict[str, LeafMemory]:
        return memory(settings.network, settings.clip, bands, composition.modalities, precision, recomputed, budget)

    def fit_first(room: float) -> Fit:
        """Fit the first of the candidates."""
        first = candidates[0]
        return fit(settings, composition, world, weights, room, partial(memory_of, first.precision), first.compiled)

    def try_kernels(one: Fit, candidates: list[Kernels]) -> float:
        """Index of the first kernels that work, or _OUT_OF_MEMORY."""
        if not trial or "video" not in composition.modalities:
            return 0
        leaves = min(one.bn_group_size or share, share)
        passes = (one.micro_batch_size or share) // leaves
        shared = world > 1 and not one.bn_group_size
        masked = not all_usable(composition.modalities, settings.loading)
        one_trial = Trial(settings.network, settings.clip, leaves, passes, one.recomputed, shared, masked)
        try:
            return candidates.index(choose_kernels(candidates, one_trial, device, say))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return _OUT_OF_MEMORY

    free = available_memory(device) / (int(os.environ.get("LOCAL_WORLD_SIZE", world)) if device.type == "cpu" else 1)
    while True:
        free = _min_over_ranks(free, device)
        one = fit_first(free)
        candidates = [replace(each, budget=BUDGET if one.budget and each.compiled else 1.0) for each in candidates]
        choice = try_kernels(one, candidates)
        # the safest choice of all ranks; one whose trial failed joins, too, or the others would hang
        agreed = -_min_over_ranks(-choice, device)
        if agreed < _OUT_OF_MEMORY:
            candidates = candidates[int(agreed) :]
            if agreed > choice:
                say(f"computing in {candidates[0]}, since another rank rejects faster kernels")
            if fit_first(free) == one:
                break
            say(f"planning again for {candidates[0]}, which needs more memory")
            continue
        empty_caches()
        smaller = fit_first(free * _SHRINK)
        if replace(smaller, room=one.room) == one:
            candidates = [each for each in candidates if not each.padded]
            break  # nothing needs less; if the run fails, its error says what to change
        say(f"out of memory with {one.batch} ({one.memory}); planning with less memory")
        free *= _SHRINK
    kernels = candidates[0]
    precision: Any = str(kernels.precision).removeprefix("torch.")
    settings = replace(
        settings, bn_group_size=one.bn_group_size, micro_batch_size=one.micro_batch_size, precision=precision
    )
    return Plan(settings, one, kernels)


def empty_caches() -> None:
    """Release the memory that torch caches."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def _min_over_ranks(value: float, device: torch.device) -> float:
    """Minimum over all ranks."""
    if not dist.is_initialized():
        return value
    everyone = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(everyone, dist.ReduceOp.MIN)
    return everyone.item()
