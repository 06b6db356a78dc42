"""What every video network has; a further one is a subclass in a file of its own and a line in `network.BACKBONES`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gdt.train.models.network import Network


class Backbone(nn.Module):
    """Clips [n, 3, frames, height, width] to features [n, dim]; built from the sizes in `network` that it heeds."""

    dim: int
    """Channels of the last stage, which are the features."""
    recomputed = 0
    """Parts, in order, of which training keeps no activations but those that go in: they are made again for the
    gradient, which is the same."""

    def __init__(self, network: Network) -> None:
        super().__init__()

    def parts(self) -> list[list[nn.Module]]:
        """The blocks of the stem and of each stage, which are called one after the other."""
        raise NotImplementedError

    def maps(self, x: Tensor) -> Tensor:
        """Clips to the maps after the last block [n, dim, t, h, w]."""
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
