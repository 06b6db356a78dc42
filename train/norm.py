"""Batch norm over groups of leaves, or over the whole batch of all ranks.

A group is one forward pass of plain batch norm; a batch shared by ranks needs synchronised batch norm. Running
statistics are updated once per step, with the mean over the groups.

Leaves that the loss ignores (text without words, stand-ins of damaged clips) are left out of all statistics. They
stay in the batch, masked, so shapes do not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Norm = TypeVar("Norm", bound="PartialBatchNorm")


def synchronise(model: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """The model with batch norm over the leaves of all ranks, or those of `group`.

    Not torch's: torch.compile leaves that at every layer (it indexes by a mask), and it cannot leave out leaves.
    """
    for norm in _convert(model, SyncBatchNorm):
        norm.group = group
    return model


def allow_partial(model: nn.Module) -> nn.Module:
    """The model with batch norm of one rank that can leave out leaves."""
    _convert(model, PartialBatchNorm)
    return model


def _convert(model: nn.Module, kind: type[Norm]) -> list[Norm]:
    norms: list[Any] = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.__class__ = kind  # keeps its parameters, which an optimizer may hold
    return norms


class PartialBatchNorm(_BatchNorm):
    """Batch norm over the rows that count: torch's own if all do, so its results do not change then."""

    counted: Tensor | None = None
    """Rows of the next input that count: bool [n]; None for all."""
    group: dist.ProcessGroup | None = None
    """Ranks that share the batch, if it is shared; None for all."""
    _shared = False

    def _check_input_dim(self, input: Tensor) -> None:
        return

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or (self.counted is None and not self._shared):
            return super().forward(input)
        y, mean, variance, some = _Normalise.apply(
            input, self.weight, self.bias, self.eps, self.counted, self._shared, self.group
        )
        with torch.no_grad():
            assert self.num_batches_tracked is not None and self.momentum is not None
            self.num_batches_tracked.add_(some)
            for running, new in ((self.running_mean, mean), (self.running_var, variance)):
                assert running is not None
                # torch's batch norm saves these for the backward pass, so a group whose rows all count would refuse a
                # new version of them; it does not use them there
                running.data.mul_(1 - self.momentum).add_(new, alpha=self.momentum)
        normalised: Tensor = y
        return normalised


class SyncBatchNorm(PartialBatchNorm):
    """Batch norm over the rows of all ranks that count, on any device and backend."""

    _shared = True


class _Normalise(torch.autograd.Function):
    """Batch norm over the rows that count, of this rank or of all: output, mean, unbiased variance, whether any counts.

    If no row counts, the mean and the variance are 0, and the output is the bias: division by the square root of `eps`
    would grow to infinity over the layers.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, counted: Tensor | None, shared: bool,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        local = torch.cat(_moments(_wide(x), counted))
        gathered = torch.stack(gather(local, group) if shared else [local]).double()
        channels = x.shape[1]
        means, variances, counts = gathered[:, :channels], gathered[:, channels:-1], gathered[:, -1:]
        some = counts.sum() > 0
        total = counts.sum().clamp(min=1)
        joint = (means * counts).sum(0) / total
        spread = ((variances + (means - joint) ** 2) * counts).sum(0)
        mean, inverse = joint.to(local), (some * (spread / total + eps).rsqrt()).to(local)
        ctx.save_for_backward(x, weight, mean, inverse, total.to(local), counted)
        ctx.shared, ctx.group = shared, group
        y = (x - _along(mean, x)) * _along(inverse * weight, x) + _along(bias, x)
        unbiased = (spread / (total - 1).clamp(min=1)).to(local)
        ctx.mark_non_differentiable(mean, unbiased, some)
        return y.to(x.dtype), mean, unbiased, some

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, total, counted = ctx.saved_tensors
        rows = [0, *range(2, x.dim())]
        normal = (x - _along(mean, x)) * _along(inverse, x)
        to_bias, to_weight = _wide(gradient).sum(rows), _wide(gradient * normal).sum(rows)
        sums = torch.stack([to_bias, to_weight])
        if ctx.shared:
            dist.all_reduce(sums, group=ctx.group)
        average, slope = sums / total
        to_x = gradient - _along(average, x) - normal * _along(slope, x)
        if counted is not None:  # the statistics do not depend on the others
            to_x = to_x.where(_rows(counted, x), gradient)
        to_x = to_x * _along(weight * inverse, x)
        return to_x.to(x.dtype), to_weight, to_bias, None, None, None, None


def _moments(x: Tensor, counted: Tensor | None) -> list[Tensor]:
    """Mean and variance of each channel [channels], and the number of values per channel [1]."""
    rows = [0, *range(2, x.dim())]
    if counted is None:
        variance, mean = torch.var_mean(x, rows, correction=0)
        return [mean, variance, mean.new_full((1,), x.numel() / len(mean))]
    values = x[0, 0].numel()
    count = counted.sum().to(x)[None] * values
    some = count.clamp(min=1)
    mean = x.where(_rows(counted, x), 0).sum(rows) / some
    variance = (x - _along(mean, x)).where(_rows(counted, x), 0).square().sum(rows) / some
    return [mean, variance, count]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Values [channels] shaped to broadcast with x [n, channels, ...]."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _rows(counted: Tensor, x: Tensor) -> Tensor:
    """Rows [n] shaped to broadcast with x [n, channels, ...]."""
    return counted.view(-1, *[1] * (x.dim() - 1))


def gather(rows: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """Rows of all ranks, or those of `group`, in the order of the ranks; all have the same number."""
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, rows.contiguous(), group=group)
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
        self._groups: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def step(self, shared: bool) -> Iterator[None]:
        """Context for the passes of a step; `shared`: each rank has its own groups, the same number on all.

        In it, running statistics are those of the last group, 0 if none of its rows counted; an error restores the old
        ones.
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

    def count(self, name: str, counted: Tensor | None) -> None:
        """Set which rows of the next group count: bool [n]; None for all."""
        self._tracked(name).zero_()
        for norm in self._norms[name]:
            if isinstance(norm, PartialBatchNorm):
                norm.counted = counted

    def add(self, name: str) -> None:
        """Add the statistics of the group whose forward pass was the last, unless none of its rows counted."""
        running = self._running(name)
        one = self._tracked(name).to(running[0])
        if name in self._sums:
            torch._foreach_add_(self._sums[name], running)
            self._groups[name] += one
        else:
            self._sums[name] = [value.clone() for value in running]
            self._groups[name] = one

    def forget(self) -> None:
        """Drop the groups added so far, before they are computed again."""
        self._sums.clear()
        self._groups.clear()

    def _moved(self, before: dict[str, list[Tensor]], momentum: float | None, shared: bool) -> dict[str, list[Tensor]]:
        assert momentum is not None
        if shared and dist.is_initialized():
            all_reduce_flat([*self._groups.values(), *(value for sums in self._sums.values() for value in sums)])
        moved = {}
        for name, old in before.items():
            groups = self._groups[name].double()
            new = torch._foreach_mul(self._sums[name], momentum / groups.clamp(min=1))
            kept = torch.where(groups > 0, 1 - momentum, 1.0)  # no leaf counted: as before
            moved[name] = list(torch._foreach_add(torch._foreach_mul(old, kept), new))
        return moved

    def _tracked(self, name: str) -> Tensor:
        """0, or 1 after the forward pass of a group of which any row counted.

        A buffer, since compiled code that is recomputed cannot set attributes.
        """
        tracked = self._norms[name][0].num_batches_tracked
        assert tracked is not None
        return tracked

    def _running(self, name: str) -> list[Tensor]:
        found = [(norm.running_mean, norm.running_var) for norm in self._norms[name]]
        return [value for pair in found for value in pair if value is not None]


def all_reduce_flat(tensors: list[Tensor]) -> None:
    """Sum tensors over all ranks in place, in one collective."""
    joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(joined)
    parts = joined.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])
