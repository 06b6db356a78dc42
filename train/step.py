"""The exact gradient of a batch, one group at a time.

A group is one leaf of each of its videos, of one modality (`pipeline.groups`). It is one pass through batch norm, one
seed of dropout and one micro-batch: gradient caching (Gao et al. 2021) embeds all groups without gradient, computes the
gradient of the loss for the embeddings, and embeds each group again to propagate it to the weights. Groups whose
activations fit into memory need no second pass. A rank holds whole groups, so neither their number nor the ranks change
the result. Without groups, all leaves of a modality are one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, seed_sequence
from gdt.pipeline.composition import Factor
from gdt.pipeline.loader import Batch
from gdt.train.distributed import all_reduce_flat
from gdt.train.health import RANK_EVERY, effective_rank
from gdt.train.loss import outcome
from gdt.train.models.gdt import GDT
from gdt.train.settings import RunSettings

_FEWEST = 8
"""Clips with words, of larger batches, from which the effective rank of text is measured."""


class Metrics(NamedTuple):
    """Metrics of a step, the same in all processes but for the effective rank; every field is logged."""

    loss: float
    top1: float
    chance: float
    least: float
    """The same as in `loss.GdtLoss`."""
    gradient_norm: float
    rank: float | None
    """Effective rank of this process's embeddings, of the modality where it is lowest; None in most steps."""


def require_finite(loss: float, norm: float, when: str) -> None:
    """Raise UserError unless a loss and the norm of its gradient are finite; called before the weights are updated."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise UserError(
            f"the loss is {loss:g} and the norm of its gradient {norm:g} {when}, which is not saved; lower --lr"
        )


def seed_torch(stream: Stream, *numbers: int) -> None:
    """Seed what torch draws, such as dropout, from a stream: a resumed run draws the same."""
    state = seed_sequence(stream, *numbers).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]) >> 1)


class Group(NamedTuple):
    """Leaves that are embedded in one pass."""

    modality: str
    inputs: Any
    number: int
    """Among the groups of the whole batch, on all ranks."""
    rows: slice
    """Rows of the rank's embeddings."""


class Gradient:
    """Computes the gradient of a batch, split over ranks, and stores it in the parameters of a model."""

    def __init__(self, model: GDT, settings: RunSettings, factors: Sequence[Factor]) -> None:
        self.model = model
        self._settings = settings
        self._factors = factors
        self._process = dist.get_rank() if dist.is_initialized() else 0
        self._world = dist.get_world_size() if dist.is_initialized() else 1
        self.memory = ActivationMemory(next(model.parameters()).device)

    def __call__(self, step: int, batch: Batch) -> Metrics:
        """Gradient of this rank's share of a batch, averaged over ranks; updates running statistics once."""
        groups = list(self._groups(batch))
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        with RunningStatistics(self.model) as statistics, self.memory.measured():
            parts = []
            for group, kept in zip(groups, self._kept(groups), strict=True):
                part = self._embed(step, group)  # with gradient: compiled without, it would run another, slower graph
                parts.append(part if kept else part.detach())  # detached, the activations are freed
                statistics.add(group.modality)  # only of the first pass: the second one would count them twice
            embeddings = torch.cat(parts).detach().requires_grad_()
            result = outcome(embeddings, batch.table, self._factors, self._settings.temperature)
            result.loss.backward()
            assert embeddings.grad is not None
            # kept groups first, which frees their memory for the second passes
            for group, part in sorted(zip(groups, parts, strict=True), key=lambda pair: not pair[1].requires_grad):
                again = part
                if not part.requires_grad:
                    with self.memory.noted(group.modality):
                        again = self._embed(step, group)
                again.backward(embeddings.grad[group.rows])
        if self._settings.network.own and self._world > 1:
            self._fill_gradients()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self._world > 1:
            all_reduce_flat(gradients)
            torch._foreach_div_(gradients, self._world)
        norm = torch.nn.utils.get_total_norm(gradients)
        values = [value.detach().double() for value in (*result, norm)]  # waits for the device once
        loss, top1, chance, least, size = torch.stack(values).tolist()
        return Metrics(loss, top1, chance, least, size, self._effective_rank(step, batch, embeddings.detach()))

    def _effective_rank(self, step: int, batch: Batch, embeddings: Tensor) -> float | None:
        """The least effective rank of a modality; of text, of the clips with words, if there are enough."""
        if step % RANK_EVERY or not embeddings.isfinite().all():
            return None
        sizes = [len(inputs) for inputs in batch.inputs.values()]
        usable = batch.table.get("usable", torch.ones(len(embeddings), device=embeddings.device)).bool()
        found = [
            effective_rank(part[kept])
            for part, kept in zip(embeddings.split(sizes), usable.split(sizes), strict=True)
            if kept.sum() >= min(len(kept), _FEWEST)
        ]
        return min(found, default=None)

    def _kept(self, groups: Sequence[Group]) -> list[bool]:
        """Whether to keep the activations of each group for the backward pass."""
        modalities = [group.modality for group in groups]
        way = self._settings.gradient_cache
        if way == "off" or len(set(modalities)) == len(modalities):
            return [True] * len(groups)
        if way == "on":
            return [False] * len(groups)
        return self.memory.fitting(modalities)

    def _fill_gradients(self) -> None:
        """Zeros for parameters that this rank has not used, but another has, as with blocks skipped at random."""
        parameters = [*self.model.parameters()]
        used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8, device=parameters[0].device)
        dist.all_reduce(used, dist.ReduceOp.MAX)
        for parameter, somewhere in zip(parameters, used.tolist(), strict=True):
            if somewhere and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _groups(self, batch: Batch) -> Iterator[Group]:
        """This rank's groups; each modality has equally many, and a rank has a contiguous share of them."""
        done = 0
        for number, (modality, inputs) in enumerate(batch.inputs.items()):
            size = self._settings.group_size or len(inputs)
            here = len(inputs) // size
            first = (number * self._world + self._process) * here
            for k in range(here):
                part = inputs if here == 1 else inputs[k * size : (k + 1) * size]
                yield Group(modality, part, first + k, slice(done, done + size))
                done += size

    def _embed(self, step: int, group: Group) -> Tensor:
        seed_torch(Stream.DROPOUT, self._settings.seed, step, group.number)
        # a new context per pass, since a pass with gradient must not reuse the cached casts of one without
        device = next(self.model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._settings.precision == "bfloat16"):
            return self.model.embed(group.modality, group.inputs)


class ActivationMemory:
    """How many groups' activations fit into the memory of a GPU; none on a CPU.

    Measures the second step, whose first pass keeps nothing: the first one also tries convolution algorithms, with
    large workspaces.
    """

    _SHARE = 0.9
    """Share of the memory that torch has or can get; the rest is for fragmentation and the loader."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.held: dict[str, float] = {}
        """Bytes of the activations of a group, by modality."""
        self.room: float | None = None if device.type == "cuda" else 0.0
        """Bytes for the activations of kept groups; None until it is measured."""
        self._steps = 0

    def fitting(self, modalities: Sequence[str]) -> list[bool]:
        """Which of the groups, given by their modalities, fit together."""
        room = self.room or 0.0
        kept = list[bool]()
        for modality in modalities:
            size = self.held.get(modality, math.inf)
            fits = size <= room
            if fits:
                room -= size
            kept.append(fits)
        return kept

    @contextmanager
    def noted(self, modality: str) -> Iterator[None]:
        """Context of the second pass of a group; until there is a room, notes what the activations hold."""
        before = torch.cuda.memory_allocated(self._device) if self.room is None else 0
        yield
        if self.room is None:
            self.held[modality] = torch.cuda.memory_allocated(self._device) - before

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Context of a step's passes; the second one measures the room."""
        if self.room is None and self._steps == 1:
            torch.cuda.reset_peak_memory_stats(self._device)
        yield
        self._steps += 1
        if self.room is None and self._steps == 2 and self.held:
            free, _ = torch.cuda.mem_get_info(self._device)
            most = self._SHARE * (free + torch.cuda.memory_reserved(self._device))
            # the activations of a group, which the peak includes, are gone or among the kept ones
            self.room = most - (torch.cuda.max_memory_allocated(self._device) - max(self.held.values()))


class RunningStatistics:
    """Context that updates the running statistics of a model once, with the mean over the groups of all ranks.

    By itself, batch norm would update them in every pass: twice for a group that is embedded twice, and with weights
    that depend on the order of the groups and on how many a rank holds. Inside this context the momentum is 1, so that
    a pass replaces the running statistics by those of its group, which `add` sums up; the context then computes the
    update of a single pass from their mean and from what the statistics were before.
    """

    def __init__(self, model: GDT) -> None:
        self._norms: dict[str, list[Any]] = {}
        """Batch norms by modality, in the trunk and the head."""
        for modality in model.modalities:
            modules = nn.ModuleList([model.trunk(modality), model.head(modality)]).modules()
            self._norms[modality] = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
        self._every = [norm for norms in self._norms.values() for norm in norms]
        self._counts = [norm.num_batches_tracked for norm in self._every]
        self._sums: dict[str, list[Tensor]] = {}
        self._groups: dict[str, int] = {}
        self._momenta = [norm.momentum for norm in self._every]
        self._before = {modality: _copies(self._running(modality)) for modality in self._norms}
        self._seen = torch._foreach_add(self._counts, 0)  # copies

    def __enter__(self) -> RunningStatistics:
        for norm in self._every:
            norm.momentum = 1.0
        return self

    def add(self, modality: str) -> None:
        """Add the statistics of the group that was embedded last."""
        running = self._running(modality)
        if modality in self._sums:
            torch._foreach_add_(self._sums[modality], running)
        else:
            self._sums[modality] = _copies(running)
        self._groups[modality] = self._groups.get(modality, 0) + 1

    def __exit__(self, kind: object, *error: object) -> None:
        """After the last backward pass, since autograd refuses statistics that have changed."""
        for norm, momentum in zip(self._every, self._momenta, strict=True):
            norm.momentum = momentum
        if kind is not None:
            return
        world = dist.get_world_size() if dist.is_initialized() else 1
        if world > 1:
            # each rank holds equally many groups, so the mean over ranks needs no counts
            all_reduce_flat([value for sums in self._sums.values() for value in sums])
        torch._foreach_copy_(self._counts, torch._foreach_add(self._seen, 1))  # one update, however many passes
        for modality, before in self._before.items():
            groups = self._groups[modality] * world
            momenta = [norm.momentum for norm in self._norms[modality] for _ in range(2)]  # of mean and variance
            kept = torch._foreach_mul(before, [1 - momentum for momentum in momenta])
            new = torch._foreach_mul(self._sums[modality], [momentum / groups for momentum in momenta])
            torch._foreach_copy_(self._running(modality), torch._foreach_add(kept, new))

    def _running(self, modality: str) -> list[Tensor]:
        return [value for norm in self._norms[modality] for value in (norm.running_mean, norm.running_var)]


def _copies(values: list[Tensor]) -> list[Tensor]:
    """Copies of many tensors, without a call from Python for each."""
    return list(torch._foreach_mul(values, 1.0))
