"""Colour jitter and normalisation as one affine map of RGB per leaf: y = A x + b, without clipping.

As in DALI's color_twist, hue rotates and saturation scales the chroma of YIQ, contrast acts about mid-grey (128), then
brightness scales; then (x - mean) / std per channel. One map costs a fraction of the separate steps
(benchmarks/loader.py) and avoids their rounding. `late_affine` is the published release's jitter, after normalisation.
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
_BGR_GREY = np.array([0.114, 0.587, 0.299])
"""Weights of R, G and B in the release's grey; it mistakes RGB for BGR."""


def affine(draws: Mapping[str, np.ndarray], mean: np.ndarray, std: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """A [n, 3, 3] and b [n, 3], float32, from the draws of n leaves and each channel's mean and std (0-255)."""
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


def late_affine(
    draws: Mapping[str, np.ndarray], mean: np.ndarray, std: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A and b as in `affine`, and B [n, 3, 3] for the mean colour m of each frame: y = A x + B m + b.

    All three change normalised pixels: brightness scales them, contrast acts about the mean grey of their frame,
    saturation about their own grey. They commute, so the random order of the release changes nothing. Hue is ignored.
    """
    names = ("brightness", "contrast", "saturation")
    brightness, contrast, saturation = (draws[name].astype(np.float64)[:, None, None] for name in names)
    grey = np.broadcast_to(_BGR_GREY, (3, 3))
    matrix = brightness * contrast * (saturation * np.eye(3) + (1 - saturation) * grey)
    mean_matrix = brightness * (1 - contrast) * grey
    offset = -(matrix + mean_matrix) @ (mean / std)
    maps = (matrix / std, offset, mean_matrix / std)
    a, b, mean_a = (torch.from_numpy(values.astype(np.float32)) for values in maps)
    return a, b, mean_a


@dataclass(frozen=True)
class Pixels:
    """Crops of n leaves as bytes, a quarter of the memory of floats, and the colour map of each leaf."""

    crops: torch.Tensor
    """uint8 [n, frames, size, size, 3]."""
    matrix: torch.Tensor
    """A of every leaf: float32 [n, 3, 3]."""
    offset: torch.Tensor
    """b of every leaf: float32 [n, 3]."""
    buffers: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)
    """Output buffers on a CPU, reused by all batches: allocating one takes longer than filling it."""
    mean_matrix: torch.Tensor | None = None
    """B of every leaf, for `late_affine`: float32 [n, 3, 3]."""

    def __len__(self) -> int:
        return len(self.crops)

    def part(self, first: int, count: int = 1) -> Pixels:
        """The pixels of some leaves."""
        chosen = slice(first, first + count)
        mean_matrix = None if self.mean_matrix is None else self.mean_matrix[chosen]
        return Pixels(self.crops[chosen], self.matrix[chosen], self.offset[chosen], mean_matrix=mean_matrix)

    def floats(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normalised clips for the encoder: [n, 3, frames, size, size], channels-last in memory, on the crops' device.

        Computed in float32 and rounded to `dtype`. On a CPU the result is valid until the next batch of the same
        loader is converted.
        """
        out = self._memory(dtype)
        pixels = self if self.mean_matrix is None else self._by_frame(self.mean_matrix)
        (_on_cpu if self.crops.device.type == "cpu" else _on_any_device)(pixels, out)
        return out.permute(0, 4, 1, 2, 3)

    def _by_frame(self, mean_matrix: torch.Tensor) -> Pixels:
        """Every frame as a clip of its own, with B m added to its offset."""
        means = torch.stack([crop.mean((1, 2), dtype=torch.float32) for crop in self.crops])  # [n, frames, 3]
        # not a matrix product, which autocast would round
        offset = self.offset[:, None] + (mean_matrix[:, None] * means[:, :, None]).sum(3)
        matrix = self.matrix.repeat_interleave(means.shape[1], 0)
        return Pixels(self.crops.flatten(0, 1)[:, None], matrix, offset.flatten(0, 1))

    def _memory(self, dtype: torch.dtype) -> torch.Tensor:
        if self.crops.device.type != "cpu":  # torch caches GPU memory
            return torch.empty(self.crops.shape, dtype=dtype, device=self.crops.device)
        memory = self.buffers.get(dtype)
        if memory is None or memory.shape != self.crops.shape:
            memory = self.buffers[dtype] = torch.empty(self.crops.shape, dtype=dtype)
        return memory


_CHUNK = 1 << 28
"""Values per kernel launch on a GPU: long kernels whose temporaries fit into memory."""


def _on_cpu(pixels: Pixels, out: torch.Tensor) -> None:
    """Convert frame by frame, since one frame fits into the cache."""
    n, frames = pixels.crops.shape[:2]
    crops, matrix, offset = pixels.crops.view(n, frames, -1).numpy(), pixels.matrix.numpy(), pixels.offset.numpy()
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
    step, rows = max(1, _CHUNK // max(1, x[:1].numel())), max(1, _CHUNK // (3 * group))
    with torch.autocast(x.device.type, enabled=False):
        diagonal = torch.eye(group, device=x.device)
        blocks = torch.einsum("gh,nji->ngihj", diagonal, pixels.matrix).reshape(n, 3 * group, -1)
        shift = pixels.offset.repeat(1, group)[:, None]
        for first, row in itertools.product(range(0, n, step), range(0, x.shape[1], rows)):
            leaves, part = slice(first, first + step), slice(row, row + rows)
            y[leaves, part] = torch.baddbmm(shift[leaves], x[leaves, part].float(), blocks[leaves])
