"""What a pass takes, also of networks that ask for values or are compiled by torch.jit."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from gdt.pipeline.leaves import Clip
from gdt.train.flops import max_leaves, training_flops
from gdt.train.models.gdt import GDT
from gdt.train.models.inspection import check_network
from gdt.train.models.network import Architecture
from gdt.train.models.own import Maker
from tests.train.own_networks import Plain

CLIP = Clip(frames=16, stride=1, size=32)


class Layer(nn.Module):
    """Patches, and a layer on their sequence; with `asks`, an error where tensors have no values."""

    def __init__(self, layer: Callable[[], nn.Module], asks: bool) -> None:
        super().__init__()
        self.patches = nn.Conv3d(3, 16, 8, 8)
        self.layer = layer()
        self.asks = asks

    def forward(self, x: Tensor) -> Tensor:
        if self.asks and float(x.abs().sum()) < 0:
            return x
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = self.layer(x, x, x)[0] if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)
        return x[0] if isinstance(x, tuple) else x


def model_of(make: Callable[[], nn.Module]) -> GDT:
    maker = Maker("mine", make)
    recorded = check_network("video", maker, CLIP)
    return GDT(Architecture(video=recorded), ("video",), {"video": maker})


@pytest.mark.parametrize(
    "layer",
    [
        nn.Identity,
        partial(nn.MultiheadAttention, 16, 2, batch_first=True),
        partial(nn.TransformerEncoderLayer, 16, 2, 32, batch_first=True),
        partial(nn.LSTM, 16, 16, batch_first=True),
    ],
    ids=["convolution", "attention", "transformer", "lstm"],
)
def test_a_network_that_asks_for_values_takes_what_it_takes_without(layer: Callable[[], nn.Module]) -> None:
    asking, other = (model_of(partial(Layer, layer, asks)) for asks in (True, False))
    flops = training_flops(other, CLIP)
    assert training_flops(asking, CLIP) == flops and flops["video"] > 0
    assert max_leaves(asking, CLIP) == max_leaves(other, CLIP) < max_leaves(other, Clip(frames=8, stride=1, size=16))


def test_a_network_compiled_by_jit_takes_what_it_takes_without() -> None:
    def make() -> nn.Module:
        return nn.Sequential(*Plain())

    scripted = model_of(lambda: torch.jit.script(make()))
    plain = model_of(make)
    assert training_flops(scripted, CLIP) == training_flops(plain, CLIP)
    assert max_leaves(scripted, CLIP) == max_leaves(plain, CLIP)  # by what goes in and out
