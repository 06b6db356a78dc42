"""Equation 1, or the published release's loss, from embeddings and the factor table, on one or several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gdt.pipeline.composition import Factor, contrast, weight
from gdt.train import published
from gdt.train.norm import gather


class Outcome(NamedTuple):
    """Loss and accuracy of a batch, equal on every rank."""

    loss: Tensor
    """Its gradient is that of this rank's share."""
    top1: Tensor
    """Share of the leaves with positives whose most similar leaf, among those with w = 1, is a positive."""


def gdt_loss(
    embeddings: Tensor, table: Mapping[str, Tensor], factors: Sequence[Factor], temperature: float,
    joined: Mapping[str, Tensor] | None = None, loss: str = "paper",
) -> Tensor:  # fmt: skip
    """Equation 1 as the mean over the positive pairs (c w = 1) of the whole batch: a scalar, equal on every rank.

    `embeddings` [n, d] of length 1 and `table` (factor name and `leaf` -> int64 [n]) are this rank's leaves. Ranks have
    equal shares, and the average of their gradients, as in DDP, is the gradient of the joined batch. Computed in
    float32, or float64 if the embeddings are. Leaves whose `usable` in the table is 0 are ignored; the loss is 0 if no
    positive pair is left. `joined`: the table of all ranks without `usable`; gathered if not given. `loss` "published":
    the mean over the comparisons of the published release, whose keys have no gradient; raises UserError if it has none
    for these factors.
    """
    return outcome(embeddings, table, factors, temperature, joined, loss).loss


def outcome(
    embeddings: Tensor, table: Mapping[str, Tensor], factors: Sequence[Factor], temperature: float,
    joined: Mapping[str, Tensor] | None = None, loss: str = "paper",
) -> Outcome:  # fmt: skip
    """`gdt_loss` with the accuracy; does not synchronise with the device."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    columns, gathered = dict(table), embeddings.detach() if loss == "published" else embeddings
    if world > 1:
        gathered = _GatherWithGradient.apply(gathered)
        known = {} if joined is None else joined
        columns = {name: known[name] if name in known else torch.cat(gather(column)) for name, column in table.items()}
    wide = torch.float64 if embeddings.dtype == torch.float64 else torch.float32
    with torch.autocast(embeddings.device.type, enabled=False):
        similarity = embeddings.to(wide) @ gathered.to(wide).T / temperature
    w = weight(factors, table, columns)
    positive = contrast(factors, table, columns)
    if "usable" in table:
        w &= (table["usable"][:, None] * columns["usable"][None, :]).bool()
    positive &= w
    # a row without weights has no positives; masking it would make its gradient NaN
    weighed = similarity.masked_fill(~w & w.any(1, keepdim=True), -torch.inf)
    if loss == "published":
        total, terms = _published(similarity, w, table, columns, factors)
    else:
        log_p = similarity - torch.logsumexp(weighed, dim=1, keepdim=True)
        total, terms = -log_p.where(positive, 0).sum(), positive.sum()
    with torch.no_grad():
        met = positive.gather(1, weighed.argmax(1, keepdim=True)).sum()
        counts = torch.stack([total.detach(), terms.to(wide), met.to(wide), positive.any(1).sum().to(wide)])
        if world > 1:
            dist.all_reduce(counts)
        value, terms, met, rows = counts
        terms, rows = terms.clamp(min=1), rows.clamp(min=1)
    # gradients are averaged over ranks, and the joined batch needs their sum
    share = total * world / terms
    return Outcome(value / terms + (share - share.detach()) if world > 1 else share, met / rows)


def _published(
    similarity: Tensor, w: Tensor, rows: Mapping[str, Tensor], columns: Mapping[str, Tensor], factors: Sequence[Factor]
) -> tuple[Tensor, Tensor]:
    """Sum and number of the terms of the published loss; those whose leaf or key is unusable are left out."""
    own, other = published.positions(factors, rows), published.positions(factors, columns)
    same_video = own.video[:, None] == other.video
    per_gpu = published.videos_per_gpu(factors)
    same_gpu = own.video[:, None] // per_gpu == other.video // per_gpu
    total, terms = similarity.new_zeros(2)
    for branch, key, *counts in published.comparisons(factors):
        near, far = (sum(n * (other.branch == one) for one, n in times.items()) for times in counts)
        keys = same_video & w & (other.branch == key) & (own.branch == branch)[:, None]
        # rows without a key would have an empty denominator, whose gradient is NaN
        times = (w * torch.where(same_gpu, near, far)).where(keys.any(1, keepdim=True), 1)
        log_p = similarity - torch.logsumexp(similarity + times.to(similarity.dtype).log(), dim=1, keepdim=True)
        total, terms = total - log_p.where(keys, 0).sum(), terms + keys.sum()
    return total, terms


class _GatherWithGradient(torch.autograd.Function):
    """Rows of all ranks, in the order of the ranks; gradients flow back to the rank of the row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return torch.cat(gather(rows))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]
