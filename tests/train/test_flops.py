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


class Asking(nn.Sequential):
    """An error where tensors have no values."""

    def forward(self, x: Tensor) -> Tensor:
        assert float(x.abs().sum()) >= 0
        return super().forward(x)


class Recurrent(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


def model_of(make: Callable[[], nn.Module]) -> GDT:
    maker = Maker("mine", make)
    recorded = check_network("video", maker, CLIP)
    return GDT(Architecture(video=recorded), ("video",), {"video": maker})


@pytest.mark.parametrize(
    ("wrapped", "layer"),
    [
        (torch.jit.script, nn.Identity),
        (Asking, nn.Identity),
        (Asking, partial(nn.TransformerEncoderLayer, 32, 2, 32, batch_first=True)),
        (Asking, partial(Recurrent, 32, 16, batch_first=True)),
    ],
    ids=["compiled", "convolution", "transformer", "lstm"],
)
def test_such_a_network_takes_what_it_takes_without(
    wrapped: Callable[[nn.Module], nn.Module], layer: Callable[[], nn.Module]
) -> None:
    def make() -> nn.Module:
        return nn.Sequential(*Plain(), layer())

    plain, other = model_of(make), model_of(lambda: wrapped(make()))
    flops = training_flops(plain, CLIP)
    assert training_flops(other, CLIP) == flops and flops["video"] > 0
    assert max_leaves(other, CLIP) == max_leaves(plain, CLIP) < 2**31 - 1
