"""The exact gradient of a batch, in the memory of a micro-batch if needed.

If a rank's leaves fit into memory, they are embedded once. Otherwise they are embedded without gradient, the loss
gives the gradient of the embeddings, and each micro-batch is embedded again to propagate it to the weights (gradient
caching, Gao et al. 2021). Micro-batches do not change results: batch norm is over groups, and dropout depends on
the leaf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gdt.common.errors import is_out_of_memory
from gdt.pipeline import groups as grouping
from gdt.pipeline.composition import Factor
from gdt.pipeline.loader import Batch
from gdt.train.cost import TWO_STAGES
from gdt.train.loss import outcome
from gdt.train.memory import empty_caches
from gdt.train.metrics import Metrics
from gdt.train.models.dropout import leaf_keys
from gdt.train.models.gdt import GDT
from gdt.train.norm import RunningStatistics, all_reduce_flat

T = TypeVar("T")


@dataclass(frozen=True)
class StepConfig:
    """Settings of a step; `micro_batch_size` does not change results."""

    factors: Sequence[Factor]
    temperature: float
    seed: int
    precision: torch.dtype = torch.float32
    """Precision of the networks."""
    bn_group_size: int = 0
    """Leaves of one modality that share batch-norm statistics; 0 for the whole batch."""
    micro_batch_size: int = 0
    """Leaves of one modality per forward pass, whole groups; 0 for all of a rank."""
    loss: str = "paper"
    """As in `gdt_loss`."""


class _Group(NamedTuple):
    modality: str
    inputs: Any
    keys: Tensor
    rows: slice
    """Rows of the rank's embeddings."""
    counted: Tensor | None
    """Leaves in the statistics of batch norm: bool [n]; None for all."""


class Gradient:
    """Computes the gradient of a batch, split over ranks, into the parameters of a model."""

    def __init__(self, model: GDT, how: StepConfig, world: int = 1, say: Callable[[str], None] = print) -> None:
        """`model` has synchronised batch norm if `how` needs it; `say` gets a message when micro-batches shrink."""
        self.model, self.how, self.micro_batch_size = model, how, how.micro_batch_size
        self._world, self._say = world, say
        self._statistics = RunningStatistics(
            {
                modality: [model.get_submodule(f"{modality}_network"), model.get_submodule(f"mlp_{modality[0]}")]
                for modality in model.modalities
            }
        )

    def __call__(self, step: int, batch: Batch) -> Metrics:
        """Gradient of this rank's share of a batch, averaged over ranks; updates running statistics once.

        Raises torch's error if not even one group fits into memory.
        """
        how = self.how
        self.model.train()
        keys = leaf_keys(how.seed, step, batch.table["leaf"])
        groups = list(_grouped(batch, keys, how.bn_group_size, self._world > 1 and not how.bn_group_size))
        with self._statistics.step(shared=how.bn_group_size > 0):
            embedded = [self._retrying(groups, lambda: self._embedded(groups))]
            leaf = embedded[0].detach().requires_grad_()
            found = outcome(leaf, batch.table, how.factors, how.temperature, batch.joined, how.loss)
            found.loss.backward()
            assert leaf.grad is not None
            of_embeddings = leaf.grad
            self._retrying(groups, lambda: self._backward(groups, embedded, of_embeddings))
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self._world > 1:
            all_reduce_flat(gradients)
            torch._foreach_div_(gradients, self._world)
        return Metrics(found.loss.detach(), found.top1, torch.nn.utils.get_total_norm(gradients))

    def _embedded(self, groups: Sequence[_Group]) -> Tensor:
        """Embeddings of all groups, with their graph if they are embedded at once."""
        at_once = not self.micro_batch_size or self.micro_batch_size >= _most(groups)
        at_once &= self._joinable(groups)
        self._statistics.forget()
        parts = []
        with torch.set_grad_enabled(at_once), self._autocast():
            for group in groups:
                parts.append(self._embed(group))
                self._statistics.add(group.modality)
        return torch.cat(parts)

    def _backward(self, groups: Sequence[_Group], embedded: list[Tensor], gradient: Tensor) -> None:
        """Propagate the gradient of the embeddings to the weights.

        `embedded` is the only reference to the graph, so that a failed backward pass frees it.
        """
        self.model.zero_grad(set_to_none=True)
        if embedded and embedded[0].requires_grad:
            embedded.pop().backward(gradient)
            return
        for chunk in self._chunks(groups):
            self._chunk(chunk, gradient)

    def _chunk(self, chunk: Sequence[_Group], gradient: Tensor) -> None:
        # a function, so that its graph is freed before the next chunk is embedded
        with self._autocast():
            parts = [self._embed(group) for group in chunk]
        torch.cat(parts).backward(torch.cat([gradient[group.rows] for group in chunk]))

    def _embed(self, group: _Group) -> Tensor:
        self._statistics.count(group.modality, group.counted)
        return self.model.embed(group.modality, group.inputs, group.keys)

    def _joinable(self, groups: Sequence[_Group]) -> bool:
        """Whether groups can share a backward pass: the video trunk recomputes with the last group's `counted`."""
        if not self.how.bn_group_size or "video" not in self.model.modalities:
            return True
        masked = any(group.modality == "video" and group.counted is not None for group in groups)
        return not (masked and self.model.video_network.base.recomputed)

    def _chunks(self, groups: Sequence[_Group]) -> Iterator[Sequence[_Group]]:
        """Groups of one modality that make up a micro-batch."""
        number = max(1, self.micro_batch_size // (self.how.bn_group_size or 1)) if self.micro_batch_size else 1
        number = number if self._joinable(groups) else 1
        for modality in dict.fromkeys(group.modality for group in groups):
            own = [group for group in groups if group.modality == modality]
            yield from (own[first : first + number] for first in range(0, len(own), number))

    def _autocast(self) -> torch.autocast:
        # one per pass: its cache of casts without gradient would be reused in the pass with gradient
        device = next(self.model.parameters()).device.type
        return torch.autocast(device, self.how.precision, enabled=self.how.precision == torch.bfloat16)

    def _retrying(self, groups: Sequence[_Group], compute: Callable[[], T]) -> T:
        """Result of `compute`, retried with smaller micro-batches when out of memory."""
        while True:
            try:
                return compute()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                shortage = error.with_traceback(None)  # its frames hold memory
            self._halve(groups, shortage)

    def _halve(self, groups: Sequence[_Group], shortage: Exception) -> None:
        """Halve the micro-batches, or recompute more. Raises `shortage` if both are impossible."""
        group = self.how.bn_group_size
        before = min(self.micro_batch_size or _most(groups), _most(groups))
        if group and before > group:
            self.micro_batch_size = max(1, before // group // 2) * group
            change = f" with micro-batches of {before} leaves; now --micro-batch-size {self.micro_batch_size}"
        elif not group and self._world == 1 and self._recompute_more():
            change = "; now recomputing activations of the first stages"
        else:
            raise shortage
        empty_caches()
        self._say(f"out of memory{change}, which does not change results")

    def _recompute_more(self) -> bool:
        """Recompute more of the video trunk; False if that is not possible."""
        if "video" not in self.model.modalities or self.model.video_network.base.recomputed >= TWO_STAGES:
            return False
        self.model.video_network.base.recomputed = TWO_STAGES
        return True


def _grouped(batch: Batch, keys: Tensor, bn_group_size: int, shared: bool) -> Iterator[_Group]:
    """Groups of a rank; those `shared` by all ranks have a mask on every rank or on none.

    A rank with a mask and one without would compile different graphs, whose collectives may differ in order.
    """
    done = 0
    for modality, inputs in batch.inputs.items():
        count = len(inputs)
        for span in grouping.groups(count, bn_group_size):
            rows = slice(done + span.start, done + span.stop)
            whole = span.stop - span.start == count
            all_count = batch.usable is None or (not shared and batch.usable[rows].all())
            counted = None if all_count else batch.table["usable"][rows].bool()
            yield _Group(modality, inputs if whole else _part(inputs, span), keys[rows], rows, counted)
        done += count


def _part(inputs: Any, span: slice) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[span]
    return inputs.part(span.start, span.stop - span.start)


def _most(groups: Sequence[_Group]) -> int:
    """Leaves of the largest modality."""
    counts: Counter[str] = Counter()
    for group in groups:
        counts[group.modality] += len(group.keys)
    return max(counts.values())
