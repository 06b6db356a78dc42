"""Equation 1 on one or several ranks."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gdt.common.errors import UserError
from gdt.pipeline.composition import Composition, Contrast, Factor, Weight, contrast, weight
from gdt.train.distributed import gather


class GdtLoss(NamedTuple):
    """Loss and accuracy of a batch, equal on every rank."""

    loss: Tensor
    """Its gradient is that of this rank's leaves; average it over ranks, as DDP does."""
    top1: Tensor
    """Share of the leaves with positives whose most similar leaf, among those with w = 1, is a positive."""
    chance: Tensor
    """Loss of embeddings that are all the same."""
    least: Tensor
    """Lower bound of the loss: that of positives which are the same, and infinitely far from negatives."""


def gdt_loss(
    embeddings: Tensor, table: Mapping[str, Any], composition: Composition | Sequence[Factor], temperature: float
) -> Tensor:
    """Equation 1 as the mean over the positive pairs (c w = 1) of the whole batch: a scalar, equal on every rank.

    `embeddings` [n, d] of length 1 and `table` (factor name and `leaf` -> int64 [n], tensors or arrays) are this rank's
    leaves, equally many on all ranks. The gradient, averaged over ranks as in DDP, is that of the whole batch. Computed
    in float32, or float64 if the embeddings are. Ignores leaves whose `usable` in the table is 0; the loss is 0 if no
    positive pair is left. Raises UserError if embeddings and table do not fit each other, or lengths are not 1, for
    which it waits for the device.
    """
    if isinstance(composition, str):
        raise UserError(f"the composition is a text; pass gdt.composition('{composition}', batch_size)")
    factors = composition.factors if isinstance(composition, Composition) else composition
    if embeddings.dim() != 2:
        raise UserError(f"embeddings have the shape {[*embeddings.shape]}; pass [n, d], a row per leaf")
    columns = {name: torch.as_tensor(values, device=embeddings.device) for name, values in table.items()}
    compared = [f.name for f in factors if f.contrast is Contrast.DISTINCTIVE or f.weight is Weight.DIFFERS]
    for name in ["leaf", *compared]:
        if name not in columns:
            raise UserError(f"the table has no column '{name}'; pass the columns of the batch's plan")
    for name, values in columns.items():
        if values.shape != embeddings.shape[:1]:
            raise UserError(
                f"there are {len(embeddings)} embeddings, and column '{name}' has the shape {[*values.shape]}; "
                "pass a value per leaf"
            )
    if not bool(((embeddings.norm(dim=1) - 1).abs() < 1e-2).all()):
        raise UserError("embeddings must have length 1; pass torch.nn.functional.normalize(embeddings, dim=1)")
    return outcome(embeddings, columns, factors, temperature).loss


def outcome(embeddings: Tensor, table: Mapping[str, Tensor], factors: Sequence[Factor], temperature: float) -> GdtLoss:
    """`gdt_loss` and the top-1 accuracy, unchecked; does not wait for the device."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    columns = dict(table)
    gathered = embeddings
    if world > 1:
        gathered = _GatherWithGradient.apply(gathered)
        columns = {name: torch.cat(gather(column)) for name, column in table.items()}
    dtype = torch.float64 if embeddings.dtype == torch.float64 else torch.float32
    with torch.autocast(embeddings.device.type, enabled=False):
        similarity = embeddings.to(dtype) @ gathered.to(dtype).T / temperature
    w = weight(factors, table, columns)
    positive = contrast(factors, table, columns)
    if "usable" in table:
        w &= (table["usable"][:, None] * columns["usable"][None, :]).bool()
    positive &= w
    # leave rows without any weight unmasked: all -inf would make the gradient NaN, and they have no positives
    masked = similarity.masked_fill(~w & w.any(1, keepdim=True), -torch.inf)
    log_p = similarity - torch.logsumexp(masked, dim=1, keepdim=True)
    total = -log_p.where(positive, 0).sum()
    terms = positive.sum()
    with torch.no_grad():
        hits = positive.gather(1, masked.argmax(1, keepdim=True)).sum()
        positives = positive.sum(1).to(dtype)
        # of each pair: the log of the number of leaves, or of positives, in the denominator
        chance = torch.xlogy(positives, w.sum(1).to(dtype)).sum()
        least = torch.xlogy(positives, positives).sum()
        rows = (positives > 0).sum().to(dtype)
        counts = torch.stack([total.detach(), terms.to(dtype), hits.to(dtype), rows, chance, least])
        if world > 1:
            dist.all_reduce(counts)
        value, terms, hits, rows, chance, least = counts
        terms = terms.clamp(min=1)
        rows = rows.clamp(min=1)
    # times `world`, since gradients are averaged over ranks, not summed
    share = total * world / terms
    loss = value / terms + (share - share.detach()) if world > 1 else share
    return GdtLoss(loss, hits / rows, chance / terms, least / terms)


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
