"""Other ways to compute the convolutions of a model, with the same results."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from gdt.train.models.gdt import GDT


def pad_widths(model: GDT, multiple: int = 8) -> None:
    """Pad the inner widths of factorised convolutions to a multiple of some number.

    The added channels are zero and stay zero: their weights are zero on both sides, batch norm without offset keeps
    them zero, and so they have no gradient.
    """
    for sequence in [module for module in model.modules() if isinstance(module, nn.Sequential)]:
        match list(sequence):
            case [nn.Conv3d() as space, nn.BatchNorm3d() as norm, nn.ReLU(), nn.Conv3d() as time, *_]:
                width = -(-space.out_channels // multiple) * multiple
                sequence[0] = _grow(space, nn.Conv3d(space.in_channels, width, **_options(space)))
                sequence[1] = _grow(norm, nn.BatchNorm3d(width, norm.eps, norm.momentum))
                sequence[3] = _grow(time, nn.Conv3d(width, time.out_channels, **_options(time)))


def _options(conv: nn.Conv3d) -> dict[str, Any]:
    return {"kernel_size": conv.kernel_size, "stride": conv.stride, "padding": conv.padding, "bias": False}


def _grow(module: nn.Module, larger: nn.Module) -> nn.Module:
    """Copy a layer into a larger one; added weights of convolutions are zero."""
    state = larger.state_dict()
    for name, value in module.state_dict().items():
        if isinstance(larger, nn.Conv3d):
            state[name].zero_()
        state[name][tuple(map(slice, value.shape))] = value
    return larger.to(value.device)


def fold_convolutions(model: GDT) -> None:
    """Compute convolutions over space on n·t images, and those over time on images of t rows and h·w columns.

    With channels last neither moves anything in memory. Pointwise convolutions of shortcuts are left alone: they are
    not factorised, and as strided 2-D convolutions they make torch 2.13 write out of bounds on a CPU.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Conv3d and (child.kernel_size[0] > 1) != (child.kernel_size[1] > 1):
                folded = _Folded(child.in_channels, child.out_channels, **_options(child), device="meta")
                folded.weight = child.weight
                setattr(parent, name, folded)


class _Folded(nn.Conv3d):
    """A convolution over space alone or time alone."""

    def forward(self, x: Tensor) -> Tensor:
        (by_t, *by), (pad_t, *pad) = self.stride, map(int, self.padding)
        if self.kernel_size[0] > 1:
            rows = functional.conv2d(x.flatten(3), self.weight[..., 0], None, (by_t, 1), (pad_t, 0))
            return rows.unflatten(3, x.shape[3:])
        frames = functional.conv2d(x.transpose(1, 2).flatten(0, 1), self.weight[:, :, 0], None, by, pad)
        return frames.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)
