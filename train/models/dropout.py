"""Dropout that depends only on the leaf, not on its batch or rank."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gdt.common.streams import Stream, seed_sequence

_LAYER = 1 << 24
"""Offset between the feature numbers of two layers."""


class Dropout(nn.Dropout):
    """Dropout whose mask depends only on keys of the leaves; without keys, torch's dropout."""

    def __init__(self, p: float, layer: int) -> None:
        """`layer`: number of this dropout layer in its network."""
        super().__init__(p)
        self.layer = layer

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        """In training, set a share p of the features [n, d] to 0; `keys` int64 [n] determine which in each row."""
        if keys is None or not self.training or self.p == 0:
            return super().forward(x)
        kept = uniform(keys, self.layer * _LAYER, x.shape[1]) >= self.p
        return x * kept.to(x.dtype) / (1 - self.p)


def leaf_keys(seed: int, step: int, leaves: Tensor) -> Tensor:
    """Keys of the leaves of a step: int64 [n]; `leaves` are their indices in the whole batch."""
    start = seed_sequence(Stream.DROPOUT, seed, step).generate_state(1, np.uint64).view(np.int64)[0]
    return leaves + int(start)


def uniform(keys: Tensor, first: int, count: int) -> Tensor:
    """Random numbers in [0, 1) for `keys` [n] and the indices first..first+count-1: float32 [n, count].

    Uses splitmix64 (Steele et al. 2014), whose integer arithmetic gives equal numbers on every device.
    """
    indices = torch.arange(first + 1, first + 1 + count, device=keys.device)
    mixed = _mix(_mix(keys)[:, None] + indices[None] * _GAMMA)
    return ((mixed >> 40) & 0xFFFFFF).float() / (1 << 24)


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA, _FIRST, _SECOND = map(_to_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
