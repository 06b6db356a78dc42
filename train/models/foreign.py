"""Networks of the user's own as trunks of a model, and which of them a checkpoint needs.

A checkpoint holds the name of its network, and nothing that is imported. Whoever loads it gives the network again,
whose parameters must have the same names and shapes; what its code computes is up to its author.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from gdt.common.errors import UserError
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.layout import BANDS
from gdt.train.models.backbone import Backbone
from gdt.train.models.given import Maker, Makers
from gdt.train.models.network import Architecture, RecordedNetwork

Builders = Mapping[str, Callable[[], Backbone]]
"""Make the trunks of a model that are the user's own, by modality."""


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
            raise UserError(
                f"{maker.name} has no layer {name}, which was taken off {recorded.name}; give the same network"
            ) from error
    return Foreign(net, recorded.dim)


def input_shape(modality: str, clip: Clip) -> tuple[int, ...]:
    """Shape of an input, without the batch."""
    return (3, clip.frames, clip.size, clip.size) if modality == "video" else (1, BANDS, clip.mel_frames)


def chosen(network: Architecture, modalities: Collection[str], given: Makers, source: str) -> Builders:
    """Make the networks of the user's own of a checkpoint: of several for a modality, the one with the recorded name.

    Raises UserError if none is given, or none of several has that name.
    """
    builders: dict[str, Callable[[], Backbone]] = {}
    for modality in network.own.keys() & {*modalities}:
        recorded = network.own[modality]
        makers = given.get(modality, ())
        named = makers if len(makers) == 1 else [maker for maker in makers if maker.name == recorded.name]
        if not named:
            others = ", ".join(maker.name for maker in makers)
            raise UserError(
                f"the {modality} network of {source} is {recorded.name}, which is not "
                f"{f'among {others}' if others else 'imported by itself'}; "
                f"give the same with --{modality}-network (Python: {modality}_network=)"
            )
        builders[modality] = partial(build, named[0], recorded)
    return builders


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
