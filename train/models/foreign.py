"""Networks of the user's own as trunks of a model, and how those of a checkpoint are recognised.

A checkpoint holds what its network computes for fixed inputs, and nothing that is imported. Whoever loads it gives the
network again, which must have parameters of the same names and shapes and compute the same.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gdt.common.errors import UserError
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.layout import BANDS
from gdt.train.models.backbone import Backbone, load_weights
from gdt.train.models.given import Maker, Makers
from gdt.train.models.network import RecordedNetwork
from gdt.train.settings import RunSettings

_TOLERANCE = 1e-4
"""Largest difference of outputs that are the same, as a share of the largest output, in float32 on a CPU."""
Builders = Mapping[str, Callable[[], Backbone]]
"""Make the trunks of a model that are the user's own, by modality."""
Outputs = Sequence[Sequence[float]]
"""`outputs_of` in files."""


class Foreign(Backbone):
    """A network of the user's own, without its classifier."""

    def __init__(self, net: nn.Module, dim: int) -> None:
        super().__init__()
        self.net = net
        self.dim = dim

    def maps(self, x: Tensor) -> Tensor:
        """Its output as [n, dim, ...]; a network that is already pooled has one position."""
        # the loader's clips are channels-last, which .view() refuses
        return positions(self.net(x.contiguous()), len(x))


def build(maker: Maker, recorded: RecordedNetwork) -> Foreign:
    """A network of a checkpoint with new weights. Raises UserError if it is another one."""
    net = maker.make()
    for name in recorded.removed:
        try:
            net.set_submodule(name, nn.Identity(), strict=True)
        except AttributeError as error:
            raise UserError(f"has no layer {name}") from error
    return Foreign(net, recorded.dim)


def input_shape(modality: str, clip: Clip) -> tuple[int, ...]:
    """Shape of an input, without the batch."""
    return (3, clip.frames, clip.size, clip.size) if modality == "video" else (1, BANDS, clip.mel_frames)


def outputs_of(net: Backbone, modality: str, clip: Clip) -> Tensor:
    """What a network computes: its features of two fixed inputs in evaluation mode, float32 [2, dim], on the CPU."""
    shape = (2, *input_shape(modality, clip))
    fixed = torch.arange(math.prod(shape), dtype=torch.float64).mul(12.9898).sin().float().view(shape)
    net = copy.deepcopy(net).cpu().float().eval()
    with torch.random.fork_rng(()), torch.no_grad():
        torch.manual_seed(0)
        return net(fixed).float()


def same_outputs(now: Tensor, then: Outputs) -> bool:
    """Whether outputs are those of a checkpoint."""
    expected = torch.tensor(then)
    largest = float(expected.nan_to_num().abs().max())
    return now.shape == expected.shape and now.allclose(expected, 0, _TOLERANCE * largest, equal_nan=True)


def recognise(
    settings: RunSettings, weights: Mapping[str, Tensor], outputs: Mapping[str, Outputs], given: Makers, source: str
) -> Builders:
    """Make the networks of the user's own of a checkpoint with these weights: of the given ones, the first that fits.

    `outputs` are those of the checkpoint by modality, which earlier versions did not record. Raises UserError if none
    fits.
    """
    builders: dict[str, Callable[[], Backbone]] = {}
    for modality, recorded in settings.network.own.items():
        prefix = f"{modality}_network.base."
        trunk = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        if not trunk:
            continue
        reasons = list[str]()
        for maker in given.get(modality, ()):
            reason = _misfit(partial(build, maker, recorded), trunk, outputs.get(modality), modality, settings.clip)
            if not reason:
                builders[modality] = partial(build, maker, recorded)
                break
            reasons.append(f"{maker.name} {reason}; ")
        else:
            raise UserError(
                f"the {modality} network of {source} is {recorded.name}, which is not imported by itself; "
                f"{''.join(reasons)}give the same with --{modality}-network (Python: {modality}_network=)"
            )
    return builders


def _misfit(
    make: Callable[[], Foreign], weights: Mapping[str, Tensor], outputs: Outputs | None, modality: str, clip: Clip
) -> str:
    """Why a network is not the one that had these weights and outputs; empty if it is."""
    try:
        net = make()
        load_weights(net, weights, "the checkpoint")
    except UserError as error:
        return f"does not fit ({error})"
    if outputs is None or same_outputs(outputs_of(net, modality, clip), outputs):
        return ""
    return "computes something else with its weights"


def positions(output: Any, n: int, where: str = "the network") -> Tensor:
    """The output of a network on n inputs as [n, dim, ...]. Raises UserError if it has another form."""
    for name in ("last_hidden_state", "logits"):  # of transformers
        if isinstance(getattr(output, name, None), Tensor):
            output = getattr(output, name)
            break
    if not isinstance(output, Tensor) or not 2 <= output.dim() <= 5 or len(output) != n:
        form = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(
            f"{where} returns {form} instead of [n, features], [n, positions, features] or maps [n, features, ...]; "
            "give a callable whose network returns one of them"
        )
    if output.dim() == 2:
        return output[..., None]
    return output.transpose(1, 2) if output.dim() == 3 else output
