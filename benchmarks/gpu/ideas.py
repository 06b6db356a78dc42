"""Ideas that training does not have, as functions on its model that leave what it computes as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.device import Processor
from gdt.train.models.gdt import GDT


def padded(model: GDT, multiple: int = 8) -> None:
    """Give factorised convolutions inner widths that are a multiple of some number.

    The channels that come on top are zero, and stay so: zero weights make them, batch norm leaves them zero without an
    offset, zero weights take them in, and so nothing has a gradient.
    """
    for sequence in [module for module in model.modules() if isinstance(module, nn.Sequential)]:
        match list(sequence):
            case [nn.Conv3d() as space, nn.BatchNorm3d() as norm, nn.ReLU(), nn.Conv3d() as time, *_]:
                more = -space.out_channels % multiple
                if more:
                    sequence[0] = _grown(space, 0, more)
                    sequence[1] = _grown_norm(norm, more)
                    sequence[3] = _grown(time, 1, more)


def _grown(conv: nn.Conv3d, axis: int, more: int) -> nn.Conv3d:
    """With more outputs (axis 0) or inputs (axis 1), of zero weights."""
    shape = list(conv.weight.shape)
    shape[axis] = more
    weight = torch.cat([conv.weight.detach(), conv.weight.new_zeros(shape)], axis)
    return _with(weight, conv, type(conv))


def _with(weight: Tensor, conv: nn.Conv3d, kind: type[nn.Conv3d]) -> nn.Conv3d:
    """The convolution with another weight, as another kind."""
    outputs, inputs = weight.shape[:2]
    made = kind(inputs, outputs, conv.kernel_size, conv.stride, conv.padding, bias=False, device="meta")  # type: ignore[arg-type]
    made.weight = nn.Parameter(weight)
    return made


def _grown_norm(norm: nn.BatchNorm3d, more: int) -> nn.BatchNorm3d:
    device, dtype = norm.weight.device, norm.weight.dtype
    made = nn.BatchNorm3d(norm.num_features + more, norm.eps, norm.momentum, device=device, dtype=dtype)
    with torch.no_grad():
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(made, name)[: norm.num_features] = getattr(norm, name)
    return made


def folded(model: GDT) -> None:
    """Compute convolutions over space as images of n·t frames, and those over time as images of t rows and h·w columns.

    Where the channels of a pixel lie side by side, neither moves anything in memory. Values stay as they are. Those of
    one pixel alone, in shortcuts, are left: they are no part of a factorised one, and as two-dimensional ones with a
    stride they have torch 2.13 write past its memory on a processor.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Conv3d and (child.kernel_size[0] > 1) != (child.kernel_size[1] > 1):
                setattr(parent, name, _with(child.weight, child, _Folded))


class _Folded(nn.Conv3d):
    """Over space alone or time alone."""

    def forward(self, x: Tensor) -> Tensor:
        (by_t, *by), (pad_t, *pad) = self.stride, map(int, self.padding)
        if self.kernel_size[0] > 1:
            rows = functional.conv2d(x.flatten(3), self.weight[..., 0], None, (by_t, 1), (pad_t, 0))
            return rows.unflatten(3, x.shape[3:])
        frames = functional.conv2d(x.transpose(1, 2).flatten(0, 1), self.weight[:, :, 0], None, by, pad)
        return frames.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


def side_stream(model: GDT, device: Processor) -> None:
    """Let sound be embedded on a stream of its own, beside the pictures that were begun before it."""
    beside, embed = device.beside(), model.embed

    def aside(modality: str, inputs: Any, keys: Tensor | None = None) -> Tensor:
        if modality != "audio":
            beside.begin()
            return embed(modality, inputs, keys)
        with beside.on():
            made = embed(modality, inputs, keys)
        beside.join(made)
        return made

    model.embed = aside  # type: ignore[method-assign]
