"""The exact gradient of a batch, in the memory of a micro-batch if needed.

If a rank's leaves fit into memory, they are embedded once. Otherwise gradient caching (Gao et al. 2021) embeds them
without gradient, computes the gradient of the loss for the embeddings, and embeds each micro-batch again to propagate
it to the weights. Micro-batches do not change results: batch norm is over groups, and dropout depends on the leaf.
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
    """Leaves of one modality per backward pass, a multiple of `bn_group_size`; 0 for all of a rank."""


class _Group(NamedTuple):
    modality: str
    inputs: Any
    keys: Tensor
    rows: slice
    """Rows of the rank's embeddings."""
    mask: Tensor | None
    """Leaves to compute batch-norm statistics from: bool [n]; None for all."""


class Gradient:
    """Computes the gradient of a batch, split over ranks, and stores it in the parameters of a model."""

    def __init__(self, model: GDT, config: StepConfig, world: int = 1, say: Callable[[str], None] = print) -> None:
        """`model` has SyncBatchNorm if `config` needs it; `say` gets a message when micro-batches shrink."""
        self.model, self.config, self.micro_batch_size = model, config, config.micro_batch_size
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
        config = self.config
        self.model.train()
        keys = leaf_keys(config.seed, step, batch.table["leaf"])
        shared = self._world > 1 and not config.bn_group_size
        groups = list(_split_into_groups(batch, keys, config.bn_group_size, shared))
        with self._statistics.step(shared=config.bn_group_size > 0):
            embedded = [self._retry(groups, lambda: self._embed_all(groups))]
            embeddings = embedded[0].detach().requires_grad_()
            result = outcome(embeddings, batch.table, config.factors, config.temperature, batch.joined)
            result.loss.backward()
            assert embeddings.grad is not None
            gradient = embeddings.grad
            self._retry(groups, lambda: self._backward(groups, embedded, gradient))
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self._world > 1:
            all_reduce_flat(gradients)
            torch._foreach_div_(gradients, self._world)
        return Metrics(result.loss.detach(), result.top1, torch.nn.utils.get_total_norm(gradients))

    def _embed_all(self, groups: Sequence[_Group]) -> Tensor:
        """Embeddings of all groups, with their graph unless `_backward` embeds them again."""
        at_once = not self.micro_batch_size or self.micro_batch_size >= _max_leaves(groups)
        at_once &= self._can_share_backward(groups)
        self._statistics.forget()
        parts = []
        with torch.set_grad_enabled(at_once), self._autocast():
            for group in groups:
                parts.append(self._embed_group(group))
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
        for micro_batch in self._micro_batches(groups):
            self._backward_micro_batch(micro_batch, gradient)

    def _backward_micro_batch(self, groups: Sequence[_Group], gradient: Tensor) -> None:
        # a function, so that its graph is freed before the next micro-batch is embedded
        with self._autocast():
            parts = [self._embed_group(group) for group in groups]
        torch.cat(parts).backward(torch.cat([gradient[group.rows] for group in groups]))

    def _embed_group(self, group: _Group) -> Tensor:
        self._statistics.set_mask(group.modality, group.mask)
        return self.model.embed(group.modality, group.inputs, group.keys)

    def _can_share_backward(self, groups: Sequence[_Group]) -> bool:
        """Whether groups can share a backward pass: a video trunk that recomputes would use the last group's mask."""
        if not self.config.bn_group_size or "video" not in self.model.modalities:
            return True
        masked = any(group.modality == "video" and group.mask is not None for group in groups)
        return not (masked and self.model.video_network.base.recomputed)

    def _micro_batches(self, groups: Sequence[_Group]) -> Iterator[Sequence[_Group]]:
        """The groups of each micro-batch, which has one modality."""
        number = max(1, self.micro_batch_size // (self.config.bn_group_size or 1))
        number = number if self._can_share_backward(groups) else 1
        for modality in dict.fromkeys(group.modality for group in groups):
            own = [group for group in groups if group.modality == modality]
            yield from (own[first : first + number] for first in range(0, len(own), number))

    def _autocast(self) -> torch.autocast:
        # a new one per pass, since a pass with gradient must not reuse the cached casts of one without
        device = next(self.model.parameters()).device.type
        return torch.autocast(device, self.config.precision, enabled=self.config.precision == torch.bfloat16)

    def _retry(self, groups: Sequence[_Group], compute: Callable[[], T]) -> T:
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
        group = self.config.bn_group_size
        largest = _max_leaves(groups)
        before = min(self.micro_batch_size or largest, largest)
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


def _split_into_groups(batch: Batch, keys: Tensor, bn_group_size: int, shared: bool) -> Iterator[_Group]:
    """Groups of a rank; if `shared` by all ranks, either all ranks have masks or none has.

    A rank with a mask and one without would compile different graphs, whose collectives may differ in order.
    """
    done = 0
    for modality, inputs in batch.inputs.items():
        count = len(inputs)
        for span in grouping.groups(count, bn_group_size):
            rows = slice(done + span.start, done + span.stop)
            whole = span.stop - span.start == count
            unmasked = batch.usable is None or (not shared and batch.usable[rows].all())
            mask = None if unmasked else batch.table["usable"][rows].bool()
            yield _Group(modality, inputs if whole else _slice(inputs, span), keys[rows], rows, mask)
        done += count


def _slice(inputs: Any, span: slice) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[span]
    return inputs.part(span.start, span.stop - span.start)


def _max_leaves(groups: Sequence[_Group]) -> int:
    """Leaves of the largest modality."""
    counts: Counter[str] = Counter()
    for group in groups:
        counts[group.modality] += len(group.keys)
    return max(counts.values())
