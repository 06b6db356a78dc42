"""Colour jitter and normalisation as one affine map of RGB per leaf: y = A x + b, nothing clipped in between.

Hue turns and saturation scales the chroma of the YIQ space, then contrast acts about mid-grey (128), then brightness
scales, as in DALI's color_twist; then (x - mean) / std per channel. One map costs a fraction of the separate steps
(benchmarks/loader.py) and loses nothing to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

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


def apply(
    pixels: torch.Tensor, matrix: torch.Tensor, offset: torch.Tensor, out: torch.Tensor, leaves: np.ndarray
) -> None:
    """out[leaf] = A x + b for every pixel of each of the leaves.

    `pixels` uint8 [k, p, 3] in the order of `leaves` [k]; `matrix` [k, 3, 3], `offset` [k, 3]; `out` float32
    [n, ..., 3] with p pixels per entry.
    """
    # a product with a block-diagonal matrix of several pixels keeps the processor's matrix units busy
    group = next(size for size in (8, 4, 2, 1) if pixels.shape[1] % size == 0)
    blocks = torch.zeros(len(leaves), group, 3, group, 3)
    blocks[:, torch.arange(group), :, torch.arange(group)] = matrix.transpose(1, 2)
    blocks = blocks.view(-1, 3 * group, 3 * group).to(out.device, non_blocking=True)
    shift = offset.repeat(1, group).to(out.device, non_blocking=True)
    x = torch.empty(pixels.shape[1] // group, 3 * group, device=out.device)
    for k, leaf in enumerate(leaves):
        x.copy_(pixels[k].view(x.shape))
        torch.addmm(shift[k], x, blocks[k], out=out[leaf].view(x.shape))
