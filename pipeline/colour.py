"""Colour jitter and normalisation as one affine map of RGB per leaf: y = A x + b, nothing clipped in between.

Hue turns and saturation scales the chroma of the YIQ space, then contrast acts about mid-grey (128), then brightness
scales, as in DALI's color_twist; then (x - mean) / std per channel. One map costs a fraction of the separate steps
(benchmarks/loader.py) and loses nothing to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from gdt.pipeline.compiled import affine_map

_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_FROM_YIQ = np.linalg.inv(_TO_YIQ)
_MID_GREY = 128.0


def affine(draws: Mapping[str, np.ndarray], mean: np.ndarray, std: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """A [n, 3, 3] and b [n, 3], float32, from the draws of n leaves and the channels' mean and deviation (0-255)."""
    n = len(draws["hue"])
    angle = 2 * np.pi * draws["hue"].astype(np.float64)
    chroma = np.zeros((n, 3, 3))
    chroma[:, 0, 0] = 1
    chroma[:, 1, 1] = chroma[:, 2, 2] = draws["saturation"] * np.cos(angle)
    chroma[:, 1, 2] = draws["saturation"] * np.sin(angle)
    chroma[:, 2, 1] = -chroma[:, 1, 2]
    gain = (draws["brightness"].astype(np.float64) * draws["contrast"])[:, None, None]
    matrix = gain * (_FROM_YIQ @ chroma @ _TO_YIQ)
    lift = draws["brightness"].astype(np.float64) * _MID_GREY * (1 - draws["contrast"])
    offset = (lift[:, None] - mean) / std
    return torch.from_numpy((matrix / std[:, None]).astype(np.float32)), torch.from_numpy(offset.astype(np.float32))


@dataclass(frozen=True)
class Pixels:
    """Crops of n leaves as bytes, and the colour map of each leaf: a quarter of what floats would take."""

    crops: torch.Tensor
    """uint8 [n, frames, size, size, 3]."""
    matrix: torch.Tensor
    """A of every leaf: float32 [n, 3, 3]."""
    offset: torch.Tensor
    """b of every leaf: float32 [n, 3]."""
    kept: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)
    """Where floats are made on a CPU, batch after batch: to ask for new memory costs more than the product."""

    def __len__(self) -> int:
        return len(self.crops)

    def part(self, first: int, count: int = 1) -> Pixels:
        """Those of some leaves."""
        chosen = slice(first, first + count)
        return Pixels(self.crops[chosen], self.matrix[chosen], self.offset[chosen])

    def floats(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normalised clips for the encoder: [n, 3, frames, size, size], channels-last in memory, on the crops' device.

        Computed in float32, a part at a time, and rounded to `dtype`. On a CPU they hold until the floats of the next
        batch of the same loader are made.
        """
        out = self._memory(dtype)
        (_on_a_processor if self.crops.device.type == "cpu" else on_any_device)(self, out)
        return out.permute(0, 4, 1, 2, 3)

    def _memory(self, dtype: torch.dtype) -> torch.Tensor:
        if self.crops.device.type != "cpu":  # where torch keeps memory itself
            return torch.empty(self.crops.shape, dtype=dtype, device=self.crops.device)
        held = self.kept.get(dtype)
        if held is None or held.shape != self.crops.shape:
            held = self.kept[dtype] = torch.empty(self.crops.shape, dtype=dtype)
        return held


_AT_ONCE = 1 << 28
"""Values of which a GPU makes floats at a time: its kernels should be long, and what lies between them fit."""


def _on_a_processor(pixels: Pixels, out: torch.Tensor) -> None:
    """Frame by frame, which a cache holds."""
    n, frames = pixels.crops.shape[:2]
    crops, matrix, offset = pixels.crops.view(n, frames, -1).numpy(), pixels.matrix.numpy(), pixels.offset.numpy()
    to = out.view(n, frames, -1)
    if out.dtype == torch.float32:
        floats = to.numpy()
        for leaf, number in itertools.product(range(n), range(frames)):
            affine_map(crops[leaf, number], matrix[leaf], offset[leaf], floats[leaf, number])
        return
    frame = torch.empty(to.shape[2:])
    for leaf, number in itertools.product(range(n), range(frames)):
        affine_map(crops[leaf, number], matrix[leaf], offset[leaf], frame.numpy())
        to[leaf, number] = frame


def on_any_device(pixels: Pixels, out: torch.Tensor) -> None:
    """With torch's operations. A product with a block-diagonal matrix of several pixels keeps matrix units busy."""
    n = len(pixels)
    every = pixels.crops.view(n, -1, 3)
    group = next(size for size in (8, 4, 2, 1) if every.shape[1] % size == 0)
    x = every.view(n, -1, 3 * group)
    y = out.view(x.shape)
    some, rows = max(1, _AT_ONCE // max(1, x[:1].numel())), max(1, _AT_ONCE // (3 * group))
    with torch.autocast(x.device.type, enabled=False):
        diagonal = torch.eye(group, device=x.device)
        blocks = torch.einsum("gh,nji->ngihj", diagonal, pixels.matrix).reshape(n, 3 * group, -1)
        shift = pixels.offset.repeat(1, group)[:, None]
        for first, row in itertools.product(range(0, n, some), range(0, x.shape[1], rows)):
            leaves, part = slice(first, first + some), slice(row, row + rows)
            y[leaves, part] = torch.baddbmm(shift[leaves], x[leaves, part].float(), blocks[leaves])
