"""Base class of networks over maps."""

from __future__ import annotations

from torch import Tensor, nn


class Backbone(nn.Module):
    """Clips [n, 3, frames, height, width], or log-mel [n, 1, bands, frames], to features [n, dim]."""

    dim: int
    """Channels of the last stage: the feature size."""

    def maps(self, x: Tensor) -> Tensor:
        """Clips to the maps after the last block [n, dim, ...]: the parts one after another."""
        for part in self.children():
            x = part(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Globally average-pooled features: [n, dim]."""
        maps = self.maps(x)
        return maps.mean(tuple(range(2, maps.dim())))
