"""What a pass takes, also of networks that ask for values."""

from functools import partial

import pytest
from torch import Tensor

from gdt.pipeline.leaves import Clip
from gdt.train.flops import max_leaves, training_flops
from gdt.train.models.foreign import build
from gdt.train.models.gdt import GDT
from gdt.train.models.given import Maker
from gdt.train.models.inspection import check_network
from gdt.train.models.network import Architecture
from tests.train.own_networks import Plain

CLIP = Clip(frames=16, stride=1, size=32)


class Asking(Plain):
    """Raises an error where tensors have no values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.abs().sum()) >= 0 else x


def model_of(kind: type[Plain]) -> GDT:
    maker = Maker(kind.__name__, kind)
    recorded = check_network("video", maker, CLIP)
    return GDT(Architecture(video=recorded), ("video",), {"video": partial(build, maker, recorded)})


@pytest.mark.parametrize("measure", [training_flops, max_leaves])
def test_a_network_that_asks_for_values_takes_what_it_takes_without(measure: object) -> None:
    assert callable(measure)
    assert measure(model_of(Asking), CLIP) == measure(model_of(Plain), CLIP)
    assert measure(model_of(Plain), CLIP) != measure(model_of(Plain), Clip(frames=32, stride=1, size=64))
