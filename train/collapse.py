"""Collapse of embeddings: networks that map all videos to nearly the same point, or into few dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

RANK, UNIFORMITY = "effective rank", "uniformity"


def measures(embeddings: Mapping[str, Tensor]) -> dict[str, float]:
    """Measures of embeddings of length 1, [n, d] by modality, whose rows are the same n videos.

    The effective rank is from 1 to min(n, d) (Roy & Vetterli 2007: exp of the entropy of the singular values, without
    centring, as in RankMe). Alignment, the mean squared distance of positives, and uniformity, the log mean of
    exp(-2 squared distance) over pairs of videos, are those of Wang & Isola (2020).
    """
    found = {}
    for name, values in embeddings.items():
        values = values.double()
        shares = torch.linalg.svdvals(values)
        shares = shares / shares.sum()
        found[f"{name} {RANK}"] = float(torch.special.entr(shares).sum().exp())
        found[f"{name} {UNIFORMITY}"] = float(torch.pdist(values).square().mul(-2).exp().mean().log())
    for one, other in combinations(embeddings, 2):
        distances = (embeddings[one] - embeddings[other]).double().square().sum(1)
        found[f"{one} to {other} alignment"] = float(distances.mean())
    return found


def warning(found: Mapping[str, float], videos: int) -> str:
    """What to say of measures if the embeddings of a modality have collapsed; empty if none has."""
    least = min(2.0, videos / 4)  # in runs of the tiny size, 1.0 to 1.7 when collapsed, and 5 or more otherwise
    ranks = {name.removesuffix(f" {RANK}"): value for name, value in found.items() if name.endswith(RANK)}
    collapsed = [f"{name} ({RANK} {value:.1f})" for name, value in ranks.items() if value < least]
    if not collapsed:
        return ""
    return (
        f"the embeddings of {' and '.join(collapsed)} have collapsed: they are nearly the same for all {videos} "
        "videos; start again with a lower --lr"
    )
