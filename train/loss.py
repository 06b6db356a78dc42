"""Equation 1, from embeddings and the factor table; on one process or across ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.composition import contrast, weight
from pipeline.factors import Factor


def gdt_loss(embeddings: Tensor, table: Mapping[str, Tensor], factors: Sequence[Factor], temperature: float) -> Tensor:
    """Equation 1, as the mean over the positive pairs (c w = 1) of the whole batch: a scalar.

    `embeddings` [n, d] of length 1 and `table` (factor name and `leaf` -> int64 [n]) are this rank's leaves; with
    several ranks each gives an equal share, and the gradients that DDP averages are those of the joined batch.
    The value returned is the same on every rank. Computed in float32, or float64 if the embeddings are. Leaves that
    are 0 in the column `usable` of the table, where there is one, count for nothing: the loss is that of the batch
    without them, 0 where no positive pair is left.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    columns, gathered = dict(table), embeddings
    if world > 1:
        gathered = _GatherWithGradient.apply(embeddings)
        columns = {name: _gather(column) for name, column in table.items()}
    wide = torch.float64 if embeddings.dtype == torch.float64 else torch.float32
    with torch.autocast(embeddings.device.type, enabled=False):
        similarity = embeddings.to(wide) @ gathered.to(wide).T / temperature
    w = weight(factors, table, columns)
    positive = contrast(factors, table, columns)
    if "usable" in table:
        w &= (table["usable"][:, None] * columns["usable"][None, :]).bool()
        rows = w.any(1)  # of a row without any weight, the logarithm below has no gradient
        similarity, w, positive = similarity[rows], w[rows], positive[rows]
    positive &= w
    log_p = similarity - torch.logsumexp(similarity.masked_fill(~w, -torch.inf), dim=1, keepdim=True)
    total = -log_p.masked_select(positive).sum()
    pairs = positive.sum()
    if world > 1:
        dist.all_reduce(pairs)
        # DDP divides the summed gradients by the world size; the loss of the joined batch asks for their plain sum
        share = total * world / pairs.clamp(min=1)
        value = total.detach() / pairs.clamp(min=1)
        dist.all_reduce(value)
        return value + share - share.detach()
    return total / pairs.clamp(min=1)


class _GatherWithGradient(torch.autograd.Function):
    """Rows of all ranks, in the order of the ranks; the gradient of a row flows back to the rank it came from."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return _gather(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def _gather(column: Tensor) -> Tensor:
    parts = [torch.empty_like(column) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, column.contiguous())
    return torch.cat(parts)
