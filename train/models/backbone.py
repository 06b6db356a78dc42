"""Base class of video networks; to add one, subclass it and add a line to `network.BACKBONES`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gdt.train.models.network import Network


class Backbone(nn.Module):
    """Clips [n, 3, frames, height, width] to features [n, dim]."""

    dim: int
    """Channels of the last stage: the feature size."""
    recomputed = 0
    """Number of leading `parts` that keep only their inputs in training and are recomputed in the backward pass."""

    def __init__(self, network: Network) -> None:
        super().__init__()

    def parts(self) -> list[list[nn.Module]]:
        """Blocks of the stem and of each stage, which `maps` calls in this order.

        A block maps one tensor to one tensor, so that `cost.memory` can count its activations and `maps` can recompute
        it.
        """
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
