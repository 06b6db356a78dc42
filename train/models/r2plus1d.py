"""R(2+1)D (Tran et al. 2018) with the parameter names of torchvision's `r2plus1d_18`, so that its weights load."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def factorised(inputs: int, outputs: int, middle: int, stride: int = 1) -> nn.Sequential:
    """A 3x3x3 convolution as 1x3x3 in space, then 3x1x1 in time."""
    return nn.Sequential(
        nn.Conv3d(inputs, middle, (1, 3, 3), stride=(1, stride, stride), padding=(0, 1, 1), bias=False),
        nn.BatchNorm3d(middle),
        nn.ReLU(inplace=True),
        nn.Conv3d(middle, outputs, (3, 1, 1), stride=(stride, 1, 1), padding=(1, 0, 0), bias=False),
    )


def middle_channels(inputs: int, outputs: int) -> int:
    """Channels between the two convolutions that keep the number of parameters of the full 3x3x3 one."""
    return inputs * outputs * 27 // (inputs * 9 + 3 * outputs)


class Block(nn.Module):
    """Residual block of two factorised convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, slim: bool) -> None:
        super().__init__()
        middle = outputs if slim else middle_channels(inputs, outputs)
        self.conv1 = nn.Sequential(
            factorised(inputs, outputs, middle, stride), nn.BatchNorm3d(outputs), nn.ReLU(inplace=True)
        )
        self.conv2 = nn.Sequential(factorised(outputs, outputs, middle), nn.BatchNorm3d(outputs))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(nn.Conv3d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm3d(outputs))
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.conv2(self.conv1(x)) + shortcut)


class R2Plus1D(nn.Module):
    """Video trunk; `widths` and `depth` of the four (or fewer) stages, each but the first halving time and space."""

    def __init__(
        self, stem: int = 64, stem_middle: int = 45, widths: tuple[int, ...] = (64, 128, 256, 512), depth: int = 2,
        slim: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, stem_middle, (1, 7, 7), stride=(1, 2, 2), padding=(0, 3, 3), bias=False),
            nn.BatchNorm3d(stem_middle),
            nn.ReLU(inplace=True),
            nn.Conv3d(stem_middle, stem, (3, 1, 1), padding=(1, 0, 0), bias=False),
            nn.BatchNorm3d(stem),
            nn.ReLU(inplace=True),
        )
        inputs = stem
        self.stages = len(widths)
        for number, outputs in enumerate(widths, 1):
            blocks = [Block(inputs, outputs, 1 if number == 1 else 2, slim)]
            blocks += [Block(outputs, outputs, 1, slim) for _ in range(depth - 1)]
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
            inputs = outputs
        self.dim = inputs
        self.recomputed = 0
        """Parts, of the stem and the stages in turn, of which training keeps no activations but those that go in: they
        are made again for the gradient, which is the same."""

    def parts(self) -> list[list[nn.Module]]:
        """The blocks of the stem and of each stage."""
        stages = (self.get_submodule(f"layer{number}") for number in range(1, self.stages + 1))
        return [[self.stem], *(list(stage.children()) for stage in stages)]

    def maps(self, x: Tensor) -> Tensor:
        """Clips [n, 3, frames, height, width] to the maps after the last residual block [n, dim, t, h, w]."""
        for number, part in enumerate(self.parts()):
            for block in part:
                if number < self.recomputed and self.training and torch.is_grad_enabled():
                    x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
                else:
                    x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Globally average-pooled features: [n, dim]."""
        return torch.mean(self.maps(x), dim=(2, 3, 4))
