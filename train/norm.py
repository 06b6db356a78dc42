"""Batch norm over groups of leaves, or over the whole batch of all ranks.

A group is one forward pass of plain batch norm; a batch shared by ranks needs `SyncBatchNorm`. Running statistics are
updated once per step, with the mean over the groups.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def synchronise(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with batch norm over the leaves of all ranks: torch's on GPUs, ours on CPUs."""
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = SyncBatchNorm  # keeps its parameters, which an optimizer may hold
    return model


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the rows of all ranks, on any device and backend."""

    def _check_input_dim(self, input: Tensor) -> None:
        return

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        y, mean, variance = _Normalise.apply(input, self.weight, self.bias, self.eps)
        with torch.no_grad():
            assert self.num_batches_tracked is not None and self.momentum is not None
            self.num_batches_tracked.add_(1)
            for running, new in ((self.running_mean, mean), (self.running_var, variance)):
                assert running is not None
                running.mul_(1 - self.momentum).add_(new, alpha=self.momentum)
        normalised: Tensor = y
        return normalised


class _Normalise(torch.autograd.Function):
    """Batch norm over the rows of all ranks: output, mean and unbiased variance."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        rows = [0, *range(2, x.dim())]
        variance, mean = torch.var_mean(_wide(x), rows, correction=0)
        count = mean.new_full((1,), x.numel() / len(mean))
        gathered = torch.stack(gather(torch.cat([mean, variance, count]))).double()
        means, variances, counts = gathered[:, : len(mean)], gathered[:, len(mean) : -1], gathered[:, -1:]
        total = counts.sum()
        shared = (means * counts).sum(0) / total
        spread = ((variances + (means - shared) ** 2) * counts).sum(0)
        mean, inverse = shared.to(mean), (spread / total + eps).rsqrt().to(mean)
        ctx.save_for_backward(x, weight, mean, inverse, total.to(mean))
        y = (x - _along(mean, x)) * _along(inverse * weight, x) + _along(bias, x)
        unbiased = (spread / (total - 1)).to(mean)
        ctx.mark_non_differentiable(mean, unbiased)
        return y.to(x.dtype), mean, unbiased

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, inverse, total = ctx.saved_tensors
        rows = [0, *range(2, x.dim())]
        normal = (x - _along(mean, x)) * _along(inverse, x)
        to_bias, to_weight = _wide(gradient).sum(rows), _wide(gradient * normal).sum(rows)
        sums = torch.stack([to_bias, to_weight])
        dist.all_reduce(sums)
        average, slope = sums / total
        to_x = (gradient - _along(average, x) - normal * _along(slope, x)) * _along(weight * inverse, x)
        return to_x.to(x.dtype), to_weight, to_bias, None


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Values [channels] shaped to broadcast with x [n, channels, ...]."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def gather(rows: Tensor) -> list[Tensor]:
    """Rows of all ranks, in the order of the ranks; all have the same number."""
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return parts


class RunningStatistics:
    """Running statistics of a model's batch norms, updated once per step, whatever the number of passes."""

    def __init__(self, parts: Mapping[str, Sequence[nn.Module]]) -> None:
        """`parts`: the networks of each modality."""
        self._norms = {
            name: [norm for module in modules for norm in module.modules() if isinstance(norm, _BatchNorm)]
            for name, modules in parts.items()
        }
        self._sums: dict[str, list[Tensor]] = {}
        self._groups: Counter[str] = Counter()

    @contextlib.contextmanager
    def step(self, shared: bool) -> Iterator[None]:
        """Context for the passes of a step; `shared`: each rank has its own groups, the same number on all.

        In it, running statistics are those of the last group; an error restores the old ones.
        """
        norms = [norm for several in self._norms.values() for norm in several]
        momenta = [norm.momentum for norm in norms]
        counts = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
        seen = [count.clone() for count in counts]
        before = {name: [value.clone() for value in self._running(name)] for name in self._norms}
        self.forget()
        try:
            for norm in norms:
                norm.momentum = 1.0
            yield
            after = self._moved(before, momenta[0], shared)
            torch._foreach_add_(seen, 1)
        except BaseException:
            after = before
            raise
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
            torch._foreach_copy_(counts, seen)
            for name, values in after.items():
                torch._foreach_copy_(self._running(name), values)

    def add(self, name: str) -> None:
        """Add the statistics of the group whose forward pass was the last."""
        if name in self._sums:
            torch._foreach_add_(self._sums[name], self._running(name))
        else:
            self._sums[name] = [value.clone() for value in self._running(name)]
        self._groups[name] += 1

    def forget(self) -> None:
        """Drop the groups added so far, before they are computed again."""
        self._sums.clear()
        self._groups.clear()

    def _moved(self, before: dict[str, list[Tensor]], momentum: float | None, shared: bool) -> dict[str, list[Tensor]]:
        assert momentum is not None
        world = dist.get_world_size() if shared and dist.is_initialized() else 1
        if world > 1:
            all_reduce_flat([value for sums in self._sums.values() for value in sums])
        moved = {}
        for name, old in before.items():
            new = torch._foreach_mul(self._sums[name], momentum / (self._groups[name] * world))
            moved[name] = list(torch._foreach_add(torch._foreach_mul(old, 1 - momentum), new))
        return moved

    def _running(self, name: str) -> list[Tensor]:
        found = [(norm.running_mean, norm.running_var) for norm in self._norms[name]]
        return [value for pair in found for value in pair if value is not None]


def all_reduce_flat(tensors: list[Tensor]) -> None:
    """Sum tensors over all ranks in place, in one collective."""
    joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(joined)
    parts = joined.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])
