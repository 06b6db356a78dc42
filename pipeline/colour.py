"""Colour jitter and normalisation as one affine map of RGB per leaf: y = A x + b, without clipping.

As in DALI's color_twist, hue rotates and saturation scales the chroma of YIQ, contrast acts about mid-grey (128), then
brightness scales; then (x - mean) / std per channel. One map costs a fraction of the separate steps and
avoids their rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gdt.pipeline.compiled import affine_map
from gdt.pipeline.shards.statistics import Channels

_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_FROM_YIQ = np.linalg.inv(_TO_YIQ)
_MID_GREY = 128.0


def affine(draws: Mapping[str, np.ndarray], mean: Channels, std: Channels) -> tuple[torch.Tensor, torch.Tensor]:
    """A [n, 3, 3] and b [n, 3], float32, from the draws of n leaves and each channel's mean and std (0-255)."""
    deviation = np.array(std)
    n = len(draws["hue"])
    angle = 2 * np.pi * draws["hue"].astype(np.float64)
    chroma = np.zeros((n, 3, 3))
    chroma[:, 0, 0] = 1
    chroma[:, 1, 1] = draws["saturation"] * np.cos(angle)
    chroma[:, 2, 2] = chroma[:, 1, 1]
    chroma[:, 1, 2] = draws["saturation"] * np.sin(angle)
    chroma[:, 2, 1] = -chroma[:, 1, 2]
    gain = (draws["brightness"].astype(np.float64) * draws["contrast"])[:, None, None]
    matrix = gain * (_FROM_YIQ @ chroma @ _TO_YIQ)
    lift = draws["brightness"].astype(np.float64) * _MID_GREY * (1 - draws["contrast"])
    offset = (lift[:, None] - mean) / deviation
    matrix /= deviation[:, None]
    return torch.from_numpy(matrix.astype(np.float32)), torch.from_numpy(offset.astype(np.float32))


def memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A new tensor without values."""
    if device.type == "cpu":  # NumPy takes huge pages, which cost less to get than torch's
        size = math.prod(shape) * dtype.itemsize
        return torch.from_numpy(np.empty(size, np.uint8)).view(dtype).view(*shape)
    return torch.empty(*shape, dtype=dtype, device=device)


@dataclass(frozen=True)
class Pixels:
    """Crops of n leaves as bytes, a quarter of the memory of floats, and the colour map of each leaf."""

    crops: torch.Tensor
    """uint8 [n, frames, size, size, 3]."""
    matrix: torch.Tensor
    """A of every leaf: float32 [n, 3, 3]."""
    offset: torch.Tensor
    """b of every leaf: float32 [n, 3]."""

    def __len__(self) -> int:
        return len(self.crops)

    def __getitem__(self, chosen: slice) -> Pixels:
        return Pixels(self.crops[chosen], self.matrix[chosen], self.offset[chosen])

    def floats(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normalised clips for the encoder: [n, 3, frames, size, size], channels-last in memory, on the crops' device.

        Computed in float32 and rounded to `dtype`.
        """
        out = memory(self.crops.shape, dtype, self.crops.device)
        convert = _on_cpu if self.crops.device.type == "cpu" else _on_any_device
        convert(self, out)
        return out.permute(0, 4, 1, 2, 3)


_CHUNK = 1 << 28
"""Values per kernel launch on a GPU: long kernels whose temporaries fit into memory."""


def _on_cpu(pixels: Pixels, out: torch.Tensor) -> None:
    """Convert frame by frame, since one frame fits into the cache."""
    n, frames = pixels.crops.shape[:2]
    crops = pixels.crops.view(n, frames, -1).numpy()
    matrix = pixels.matrix.numpy()
    offset = pixels.offset.numpy()
    to = out.view(n, frames, -1)
    frame = torch.empty(to.shape[2:])
    for leaf, number in itertools.product(range(n), range(frames)):
        target = to[leaf, number] if out.dtype == torch.float32 else frame
        affine_map(crops[leaf, number], matrix[leaf], offset[leaf], target.numpy())
        if target is frame:
            to[leaf, number] = frame


def _on_any_device(pixels: Pixels, out: torch.Tensor) -> None:
    """Convert with torch; a block-diagonal matrix over several pixels uses tensor cores better."""
    n = len(pixels)
    x = pixels.crops.view(n, -1, 3)
    group = next(size for size in (8, 4, 2, 1) if x.shape[1] % size == 0)
    x = x.view(n, -1, 3 * group)
    y = out.view(x.shape)
    step = max(1, _CHUNK // max(1, x[:1].numel()))
    rows = max(1, _CHUNK // (3 * group))
    with torch.autocast(x.device.type, enabled=False):
        diagonal = torch.eye(group, device=x.device)
        blocks = torch.einsum("gh,nji->ngihj", diagonal, pixels.matrix).reshape(n, 3 * group, -1)
        shift = pixels.offset.repeat(1, group)[:, None]
        for first, row in itertools.product(range(0, n, step), range(0, x.shape[1], rows)):
            leaves = slice(first, first + step)
            part = slice(row, row + rows)
            y[leaves, part] = torch.baddbmm(shift[leaves], x[leaves, part].float(), blocks[leaves])
