"""Base class of video networks; to add one, subclass it and add a line to `network.BACKBONES`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gdt.train.models.network import Network


class Backbone(nn.Module):
    """Clips [n, 3, frames, height, width] to features [n, dim]."""

    dim: int
    """Channels of the last stage: the feature size."""

    def __init__(self, network: Network) -> None:
        super().__init__()

    def maps(self, x: Tensor) -> Tensor:
        """Clips to the maps after the last block [n, dim, t, h, w]: the parts one after another."""
        for part in self.children():
            x = part(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Globally average-pooled features: [n, dim]."""
        return torch.mean(self.maps(x), dim=(2, 3, 4))
