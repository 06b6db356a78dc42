"""Dropout that is a function of the leaf, not of when, where or beside whom its features are computed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

_LAYER = 1 << 24
"""Features of one layer are numbered from its number times this on."""


class Dropout(nn.Dropout):
    """torch's, unless it is told which leaves the rows are of."""

    def __init__(self, p: float, layer: int) -> None:
        """`layer` tells several layers of one network apart."""
        super().__init__(p)
        self.layer = layer

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        """Features [n, d], of which a share p is set to 0 in training; `keys` int64 [n] decide which, row by row."""
        if keys is None or not self.training or self.p == 0:
            return super().forward(x)
        kept = uniform(keys, self.layer * _LAYER, x.shape[1]) >= self.p
        return x * kept.to(x.dtype) / (1 - self.p)


def leaf_keys(seed: int, step: int, leaves: Tensor) -> Tensor:
    """Keys of the leaves of a step: int64 [n]; `leaves` are their numbers in the whole batch."""
    start = np.random.SeedSequence([seed, step]).generate_state(1, np.uint64).view(np.int64)[0]
    return leaves + int(start)


def uniform(keys: Tensor, first: int, count: int) -> Tensor:
    """Numbers between 0 and 1, of which `keys` [n] and the places first..first+count-1 decide: float32 [n, count].

    Steele et al. 2014 (splitmix64), whose integers wrap around alike on every device.
    """
    places = torch.arange(first + 1, first + 1 + count, device=keys.device)
    mixed = _mixed(_mixed(keys)[:, None] + places[None] * _GAMMA)
    return ((mixed >> 40) & 0xFFFFFF).float() / (1 << 24)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA, _FIRST, _SECOND = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros moving in; torch's own copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
