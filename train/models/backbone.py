"""Base class of networks over maps, and loading of weights."""

from collections.abc import Mapping

from torch import Tensor, nn

from gdt.common.errors import UserError


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


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights; removes the prefix `module.` from their names.

    Raises UserError with the first parameter whose name, shape or values do not fit.
    """
    weights = {name.removeprefix("module."): value for name, value in weights.items()}
    expected = model.state_dict()

    def shape(values: Mapping[str, Tensor], name: str) -> list[int] | str:
        return list(values[name].shape) if name in values else "missing"

    for name in (*expected, *weights):
        there = shape(weights, name)
        here = shape(expected, name)
        if there != here:
            raise UserError(
                f"{source} holds another model: {name} is {there} there and {here} here; use weights of this network"
            )
        if expected[name].is_floating_point() and not weights[name].to(expected[name].dtype).isfinite().all():
            raise UserError(f"{source}: {name} contains NaN or infinity; use another file")
    model.load_state_dict(weights)
