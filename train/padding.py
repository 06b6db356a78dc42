"""Zero channels that bring the inner widths of factorised convolutions to multiples of 8, as tensor cores need.

The added channels are zero and stay zero: both convolutions have zero weights for them, and batch norm has zero weight
and bias, so that they have no gradient. State dicts of the model and its optimizer have the original widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

MULTIPLE = 8
Shapes = dict[Tensor, torch.Size]
"""Original shapes of padded parameters."""


def pad_widths(model: nn.Module) -> Shapes:
    """Pad a model in place, before its optimizer is created; returns the original shapes of what it padded."""
    shapes: Shapes = {}
    for sequence in [module for module in model.modules() if isinstance(module, nn.Sequential)]:
        match list(sequence):
            case [nn.Conv3d() as space, _BatchNorm() as norm, nn.ReLU(), nn.Conv3d() as time, *_]:
                if added := -space.out_channels % MULTIPLE:
                    shapes |= _pad(space, 0, added) | _pad(norm, 0, added) | _pad(time, 1, added)
                    space.out_channels = norm.num_features = time.in_channels = space.out_channels + added
    return shapes


def keep_original_shapes(optimizer: torch.optim.Optimizer, shapes: Shapes) -> None:
    """Make the optimizer of a padded model save and load its state with the original shapes."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    padded = {k: (one.shape, shapes[one]) for k, one in enumerate(parameters) if one in shapes}

    def resize(optimizer: Any, state: dict[str, Any], save: bool) -> dict[str, Any]:
        values = dict(state["state"])
        for k, (larger, shape) in padded.items():
            if k in values:
                old, new = (larger, shape) if save else (shape, larger)
                values[k] = {name: _crop_or_pad(value, old, new) for name, value in values[k].items()}
        return state | {"state": values}

    optimizer.register_state_dict_post_hook(partial(resize, save=True))
    optimizer.register_load_state_dict_pre_hook(partial(resize, save=False))


def _pad(layer: nn.Module, dim: int, added: int) -> Shapes:
    """Pad one dimension of the parameters and running statistics of a layer."""
    tensors = {name: value for name, value in layer.state_dict(keep_vars=True).items() if value.dim()}
    shapes = {name: value.shape for name, value in tensors.items()}
    larger = {name: torch.Size([*shape[:dim], shape[dim] + added, *shape[dim + 1 :]]) for name, shape in shapes.items()}
    for name, value in tensors.items():
        value.data = _crop_or_pad(value.data, shapes[name], larger[name])

    def resize(
        state: dict[str, Any], prefix: str, old: Mapping[str, torch.Size], new: Mapping[str, torch.Size]
    ) -> None:
        for name in shapes:
            if prefix + name in state:
                state[prefix + name] = _crop_or_pad(state[prefix + name], old[name], new[name])

    layer.register_state_dict_post_hook(lambda _, state, prefix, __: resize(state, prefix, larger, shapes))
    layer.register_load_state_dict_pre_hook(lambda _, state, prefix, *__: resize(state, prefix, shapes, larger))
    return {value: shapes[name] for name, value in tensors.items()}


def _crop_or_pad(value: Any, old: torch.Size, new: torch.Size) -> Any:
    """Crop or zero-pad the end of each dimension of a tensor of shape `old`; returns anything else unchanged."""
    if not isinstance(value, Tensor) or value.shape != old:
        return value
    sides = [side for was, now in zip(reversed(old), reversed(new), strict=True) for side in (0, now - was)]
    return functional.pad(value, sides)
