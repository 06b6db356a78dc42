"""Batch norm over groups of leaves, or over the whole batch of all ranks.

A group is one forward pass of plain batch norm; a batch shared by ranks needs SyncBatchNorm. Running statistics are
updated once per step, with the mean over the groups.

A mask leaves the leaves that the loss ignores (text without words, stand-ins for damaged clips) out of all statistics.
They stay in the batch, so that shapes do not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Norm = TypeVar("Norm", bound="MaskedBatchNorm")


def synchronise(model: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Convert a model in place to batch norm over the leaves of all ranks, or those of `group`; returns the model.

    Not to torch's SyncBatchNorm: it breaks the graphs of torch.compile, and has no masks.
    """
    for norm in _convert(model, SyncBatchNorm):
        norm.group = group
    return model


def allow_masks(model: nn.Module) -> nn.Module:
    """Convert a model in place to batch norm of one rank that accepts masks; returns the model."""
    _convert(model, MaskedBatchNorm)
    return model


def _convert(model: nn.Module, kind: type[Norm]) -> list[Norm]:
    norms: list[Any] = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.__class__ = kind  # keeps its parameters, which an optimizer may hold
    return norms


class MaskedBatchNorm(_BatchNorm):
    """Batch norm over the rows that a mask selects; torch's own, with its exact results, if there is no mask."""

    mask: Tensor | None = None
    """Rows of the next input to compute statistics from: bool [n]; None for all."""
    group: dist.ProcessGroup | None = None
    """Ranks that share the batch, if it is shared; None for all."""
    _shared = False

    def _check_input_dim(self, input: Tensor) -> None:
        return

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or (self.mask is None and not self._shared):
            return super().forward(input)
        y, mean, variance, any_row = _Normalise.apply(
            input, self.weight, self.bias, self.eps, self.mask, self._shared, self.group
        )
        with torch.no_grad():
            assert self.num_batches_tracked is not None and self.momentum is not None
            self.num_batches_tracked.add_(any_row)
            for running, new in ((self.running_mean, mean), (self.running_var, variance)):
                assert running is not None
                # .data: torch's batch norm saves these tensors for the backward pass, which checks that they have not
                # changed, though it does not use them; without .data, groups without a mask would fail
                running.data.mul_(1 - self.momentum).add_(new, alpha=self.momentum)
        normalised: Tensor = y
        return normalised


class SyncBatchNorm(MaskedBatchNorm):
    """Batch norm over the selected rows of all ranks, on any device and backend."""

    _shared = True


class _Normalise(torch.autograd.Function):
    """Batch norm over the selected rows of this rank or of all ranks.

    Returns the output, mean, unbiased variance, and whether any row is selected. If none is, mean and variance are 0
    and the output is the bias: dividing by the square root of `eps` in every layer would lead to infinity.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, mask: Tensor | None, shared: bool,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        local = torch.cat(_moments(_widen(x), mask))
        gathered = torch.stack(gather(local, group) if shared else [local]).double()
        channels = x.shape[1]
        means, variances, counts = gathered[:, :channels], gathered[:, channels:-1], gathered[:, -1:]
        any_row = counts.sum() > 0
        total = counts.sum().clamp(min=1)
        joint = (means * counts).sum(0) / total
        spread = ((variances + (means - joint) ** 2) * counts).sum(0)
        mean, inverse = joint.to(local), (any_row * (spread / total + eps).rsqrt()).to(local)
        ctx.save_for_backward(x, weight, mean, inverse, total.to(local), mask)
        ctx.shared, ctx.group = shared, group
        y = (x - _per_channel(mean, x)) * _per_channel(inverse * weight, x) + _per_channel(bias, x)
        unbiased = (spread / (total - 1).clamp(min=1)).to(local)
        ctx.mark_non_differentiable(mean, unbiased, any_row)
        return y.to(x.dtype), mean, unbiased, any_row

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, total, mask = ctx.saved_tensors
        rows = [0, *range(2, x.dim())]
        normal = (x - _per_channel(mean, x)) * _per_channel(inverse, x)
        grad_bias, grad_weight = _widen(gradient).sum(rows), _widen(gradient * normal).sum(rows)
        sums = torch.stack([grad_bias, grad_weight])
        if ctx.shared:
            dist.all_reduce(sums, group=ctx.group)
        average, slope = sums / total
        grad_x = gradient - _per_channel(average, x) - normal * _per_channel(slope, x)
        if mask is not None:  # the statistics depend on the selected rows only
            grad_x = grad_x.where(_per_row(mask, x), gradient)
        grad_x = grad_x * _per_channel(weight * inverse, x)
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None, None, None


def _moments(x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Mean and variance of each channel [channels], and the number of values per channel [1]."""
    rows = [0, *range(2, x.dim())]
    if mask is None:
        variance, mean = torch.var_mean(x, rows, correction=0)
        return [mean, variance, mean.new_full((1,), x.numel() / len(mean))]
    values = x[0, 0].numel()
    count = mask.sum().to(x)[None] * values
    divisor = count.clamp(min=1)
    mean = x.where(_per_row(mask, x), 0).sum(rows) / divisor
    variance = (x - _per_channel(mean, x)).where(_per_row(mask, x), 0).square().sum(rows) / divisor
    return [mean, variance, count]


def _widen(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Reshape values [channels] to broadcast with x [n, channels, ...]."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _per_row(mask: Tensor, x: Tensor) -> Tensor:
    """Reshape a mask [n] to broadcast with x [n, channels, ...]."""
    return mask.view(-1, *[1] * (x.dim() - 1))


def gather(rows: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """Rows of all ranks, or those of `group`, in the order of the ranks; all have the same number."""
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, rows.contiguous(), group=group)
    return parts


class RunningStatistics:
    """Updates the running statistics of a model once per step, with any number of forward passes."""

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
        """Context for the passes of a step; updates the running statistics at its end.

        `shared`: average over all ranks, each of which has its own groups, equally many. Inside the context, running
        statistics are those of the last group (0 if no row is selected). An error restores the old ones.
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
            after = self._compute_running(before, momenta[0], shared)
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

    def set_mask(self, name: str, mask: Tensor | None) -> None:
        """Set the rows of the next group to compute statistics from: bool [n]; None for all."""
        self._flag(name).zero_()
        for norm in self._norms[name]:
            if isinstance(norm, MaskedBatchNorm):
                norm.mask = mask

    def add(self, name: str) -> None:
        """Add the statistics of the last forward pass, unless no row was selected."""
        running = self._running(name)
        added = self._flag(name).to(running[0])
        if name in self._sums:
            torch._foreach_add_(self._sums[name], running)
            self._groups[name] += added
        else:
            self._sums[name] = [value.clone() for value in running]
            self._groups[name] = added

    def forget(self) -> None:
        """Drop the groups added so far; they will be computed again."""
        self._sums.clear()
        self._groups.clear()

    def _compute_running(
        self, before: dict[str, list[Tensor]], momentum: float | None, shared: bool
    ) -> dict[str, list[Tensor]]:
        assert momentum is not None
        if shared and dist.is_initialized():
            all_reduce_flat([*self._groups.values(), *(value for sums in self._sums.values() for value in sums)])
        moved = {}
        for name, old in before.items():
            groups = self._groups[name].double()
            new = torch._foreach_mul(self._sums[name], momentum / groups.clamp(min=1))
            kept = torch.where(groups > 0, 1 - momentum, 1.0)  # unchanged if no row was selected
            moved[name] = list(torch._foreach_add(torch._foreach_mul(old, kept), new))
        return moved

    def _flag(self, name: str) -> Tensor:
        """0, or 1 after a forward pass with selected rows.

        This is a buffer of a batch norm, since recomputed compiled code cannot set attributes.
        """
        flag = self._norms[name][0].num_batches_tracked
        assert flag is not None
        return flag

    def _running(self, name: str) -> list[Tensor]:
        found = [(norm.running_mean, norm.running_var) for norm in self._norms[name]]
        return [value for pair in found for value in pair if value is not None]


def all_reduce_flat(tensors: list[Tensor]) -> None:
    """Sum tensors over all ranks in place, in one collective."""
    joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(joined)
    parts = joined.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])
