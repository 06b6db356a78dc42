"""Convolutions that training does not have, as functions on its model that leave what it computes as it is."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from gdt.train.models.gdt import GDT


def padded(model: GDT, multiple: int = 8) -> None:
    """Give factorised convolutions inner widths that are a multiple of some number.

    The channels that come on top are zero, and stay so: zero weights make them, batch norm leaves them zero without an
    offset, zero weights take them in, and so nothing has a gradient.
    """
    for sequence in [module for module in model.modules() if isinstance(module, nn.Sequential)]:
        match list(sequence):
            case [nn.Conv3d() as space, nn.BatchNorm3d() as norm, nn.ReLU(), nn.Conv3d() as time, *_]:
                width = -(-space.out_channels // multiple) * multiple
                sequence[0] = _grown(space, nn.Conv3d(space.in_channels, width, **_how(space)))
                sequence[1] = _grown(norm, nn.BatchNorm3d(width, norm.eps, norm.momentum))
                sequence[3] = _grown(time, nn.Conv3d(width, time.out_channels, **_how(time)))


def _how(conv: nn.Conv3d) -> dict[str, Any]:
    return {"kernel_size": conv.kernel_size, "stride": conv.stride, "padding": conv.padding, "bias": False}


def _grown(module: nn.Module, made: nn.Module) -> nn.Module:
    """A larger layer, with what a smaller one has; the weights of a convolution that come on top are zero."""
    state = made.state_dict()
    for name, value in module.state_dict().items():
        if isinstance(made, nn.Conv3d):
            state[name].zero_()
        state[name][tuple(map(slice, value.shape))] = value
    return made.to(value.device)


def folded(model: GDT) -> None:
    """Compute convolutions over space as images of n·t frames, and those over time as images of t rows and h·w columns.

    Where the channels of a pixel lie side by side, neither moves anything in memory. Values stay as they are. Those of
    one pixel alone, in shortcuts, are left: they are no part of a factorised one, and as two-dimensional ones with a
    stride they have torch 2.13 write past its memory on a processor.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Conv3d and (child.kernel_size[0] > 1) != (child.kernel_size[1] > 1):
                made = _Folded(child.in_channels, child.out_channels, **_how(child), device="meta")
                made.weight = child.weight
                setattr(parent, name, made)


class _Folded(nn.Conv3d):
    """Over space alone or time alone."""

    def forward(self, x: Tensor) -> Tensor:
        (by_t, *by), (pad_t, *pad) = self.stride, map(int, self.padding)
        if self.kernel_size[0] > 1:
            rows = functional.conv2d(x.flatten(3), self.weight[..., 0], None, (by_t, 1), (pad_t, 0))
            return rows.unflatten(3, x.shape[3:])
        frames = functional.conv2d(x.transpose(1, 2).flatten(0, 1), self.weight[:, :, 0], None, by, pad)
        return frames.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)
