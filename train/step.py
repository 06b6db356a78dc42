"""The gradient of one batch: exactly that of the whole batch, in the memory of a part of it.

Where a rank's leaves fit into memory together, they are embedded once. Else all are embedded without gradient, equation
1 gives the gradient of the embeddings, and the leaves are embedded again, a chunk of groups at a time, to take it back
to the weights (gradient caching, Gao et al. 2021). Nothing depends on the chunks: batch norm is over groups, and
dropout is the leaf's own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gdt.common.errors import is_out_of_memory
from gdt.pipeline.factors import Factor
from gdt.pipeline.groups import groups
from gdt.pipeline.loader import Batch
from gdt.train.cost import WIDER
from gdt.train.loss import outcome
from gdt.train.models.dropout import leaf_keys
from gdt.train.models.gdt import GDT
from gdt.train.norm import RunningStatistics, all_reduce_together


@dataclass(frozen=True)
class How:
    """What a step does; of these, only the groups and the precision are part of the run's numbers."""

    factors: Sequence[Factor]
    temperature: float
    seed: int
    precision: torch.dtype = torch.float32
    """Of the networks."""
    norm_leaves: int = 0
    """Leaves of one modality over which batch norm takes its statistics; 0 for the whole batch."""
    chunk_leaves: int = 0
    """Leaves of one modality that are embedded at a time, whole groups; 0 for all of a rank."""


class Figures(NamedTuple):
    """Of a step; on the device, and the same on every rank."""

    loss: Tensor
    accuracy: Tensor
    """Share of the leaves whose most similar one, of those with weight, is a positive."""
    gradient_norm: Tensor


class _Group(NamedTuple):
    modality: str
    inputs: Any
    keys: Tensor
    rows: slice
    """Of the rank's embeddings."""


class Gradient:
    """Puts the gradient of a batch, which the ranks share, into the parameters of a model."""

    def __init__(self, model: GDT, how: How, world: int = 1, say: Callable[[str], None] = print) -> None:
        """`model` has batch norm over all ranks already where `how` asks for it; `say` is told of smaller chunks."""
        self.model, self.how, self.chunk_leaves = model, how, how.chunk_leaves
        self._world, self._say = world, say
        self._statistics = RunningStatistics(
            {
                modality: [model.get_submodule(f"{modality}_network"), model.get_submodule(f"mlp_{modality[0]}")]
                for modality in model.modalities
            }
        )

    def __call__(self, step: int, batch: Batch) -> Figures:
        """The gradient of this rank's share of the batch of a step, averaged over the ranks as the loss expects.

        Running statistics of batch norm have moved once. Raises what torch raises where not even one group fits.
        """
        how = self.how
        self.model.train()
        keys = leaf_keys(how.seed, step, batch.table["leaf"])
        several = list(_grouped(batch, keys, how.norm_leaves))
        with self._statistics.step(shared=how.norm_leaves > 0):
            held = [self._embedded(several)]
            leaf = held[0].detach().requires_grad_()
            found = outcome(leaf, batch.table, how.factors, how.temperature, batch.joined)
            found.loss.backward()
            assert leaf.grad is not None
            self._take_back(several, held, leaf.grad)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self._world > 1:
            all_reduce_together(gradients)
            torch._foreach_div_(gradients, self._world)
        return Figures(found.loss.detach(), found.accuracy, torch.nn.utils.get_total_norm(gradients))

    def _embedded(self, several: Sequence[_Group]) -> Tensor:
        """Embeddings of all groups, with the graph of what made them where there is memory for it."""
        parts: list[Tensor] = []
        while True:
            with _shortage() as shortage:
                self._statistics.forget()
                with torch.set_grad_enabled(self._at_once(several)), self._autocast():
                    for group in several:
                        parts.append(self.model.embed(group.modality, group.inputs, group.keys))
                        self._statistics.add(group.modality)
                return torch.cat(parts)
            parts.clear()
            self._halve(several, shortage)

    def _take_back(self, several: Sequence[_Group], held: list[Tensor], gradient: Tensor) -> None:
        """From the gradient of the embeddings to that of the weights.

        `held` are the embeddings, and the only ones that hold their graph: what a failed backward pass leaves of it has
        to be gone before there is memory for another.
        """
        with _shortage() as shortage:
            self.model.zero_grad(set_to_none=True)
            if held[0].requires_grad:
                held.pop().backward(gradient)
            else:
                self._chunk_by_chunk(several, gradient)
            return
        while shortage:
            self._halve(several, shortage)
            with _shortage() as shortage:
                self.model.zero_grad(set_to_none=True)
                self._chunk_by_chunk(several, gradient)

    def _chunk_by_chunk(self, several: Sequence[_Group], gradient: Tensor) -> None:
        for chunk in self._chunks(several):
            self._chunk(chunk, gradient)

    def _chunk(self, chunk: Sequence[_Group], gradient: Tensor) -> None:
        # a function of its own: its graph is gone before the next chunk is embedded
        with self._autocast():
            parts = [self.model.embed(group.modality, group.inputs, group.keys) for group in chunk]
        torch.cat(parts).backward(torch.cat([gradient[group.rows] for group in chunk]))

    def _autocast(self) -> torch.autocast:
        # not one for both passes: what it has cast without gradient it would not cast again with one
        device = next(self.model.parameters()).device.type
        return torch.autocast(device, self.how.precision, enabled=self.how.precision == torch.bfloat16)

    def _at_once(self, several: Sequence[_Group]) -> bool:
        return not self.chunk_leaves or self.chunk_leaves >= _most(several)

    def _chunks(self, several: Sequence[_Group]) -> Iterator[Sequence[_Group]]:
        """Runs of groups of one modality that together have as many leaves as a chunk."""
        number = max(1, self.chunk_leaves // (self.how.norm_leaves or 1)) if self.chunk_leaves else 1
        for modality in dict.fromkeys(group.modality for group in several):
            own = [group for group in several if group.modality == modality]
            yield from (own[first : first + number] for first in range(0, len(own), number))

    def _halve(self, several: Sequence[_Group], shortage: list[Exception]) -> None:
        """Go on with less at a time after a lack of memory, which is raised again where that cannot be."""
        one = self.how.norm_leaves
        if not one and self._world == 1 and self._recompute_more():
            shortage.clear()
            _emptied()
            self._say("out of memory; going on with the first stages' activations computed twice, and the same numbers")
            return
        before = min(self.chunk_leaves or _most(several), _most(several))
        if not one or before <= one:
            raise shortage[0]
        self.chunk_leaves = max(1, before // one // 2) * one
        shortage.clear()
        _emptied()
        self._say(
            f"out of memory with chunks of {before} leaves; going on with --chunk-leaves {self.chunk_leaves}, and the "
            "same numbers"
        )

    def _recompute_more(self) -> bool:
        """Whether parts of the video trunk can be computed twice that were not."""
        if "video" not in self.model.modalities or self.model.video_network.base.recomputed >= WIDER:
            return False
        self.model.video_network.base.recomputed = WIDER
        return True


def _emptied() -> None:
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def _grouped(batch: Batch, keys: Tensor, norm_leaves: int) -> Iterator[_Group]:
    done = 0
    for modality, inputs in batch.inputs.items():
        count = len(inputs)
        for places in groups(count, norm_leaves):
            rows = slice(done + places.start, done + places.stop)
            whole = places.stop - places.start == count
            yield _Group(modality, inputs if whole else _part(inputs, places), keys[rows], rows)
        done += count


def _part(inputs: Any, places: slice) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[places]
    return inputs.part(places.start, places.stop - places.start)


def _most(several: Sequence[_Group]) -> int:
    """Leaves of the modality that has most."""
    counts: dict[str, int] = {}
    for group in several:
        counts[group.modality] = counts.get(group.modality, 0) + len(group.keys)
    return max(counts.values())


class _shortage:  # noqa: N801, a context like those of contextlib
    """Keeps an error that tells of a lack of memory, without the frames that hold on to that memory."""

    def __enter__(self) -> list[Exception]:
        self._found: list[Exception] = []
        return self._found

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, MemoryError | RuntimeError) or not is_out_of_memory(error):
            return False
        self._found.append(error.with_traceback(None))
        return True
