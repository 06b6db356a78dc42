"""Other ways to compute the convolutions of a model, with the same results."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from gdt.train.models.gdt import GDT


def fold_convolutions(model: GDT) -> None:
    """Compute convolutions over space on n·t images, and those over time on images of t rows and h·w columns.

    With channels last neither moves anything in memory. Pointwise convolutions of shortcuts are left alone: they are
    not factorised, and as strided 2-D convolutions they make torch 2.13 write out of bounds on a CPU.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Conv3d and (child.kernel_size[0] > 1) != (child.kernel_size[1] > 1):
                shape: dict[str, Any] = {name: getattr(child, name) for name in ("kernel_size", "stride", "padding")}
                folded = _Folded(child.in_channels, child.out_channels, **shape, bias=False, device="meta")
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
