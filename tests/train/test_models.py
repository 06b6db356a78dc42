"""Networks: sizes, shapes and parameter names of the paper and the published weights."""

import copy
import math

import pytest
import torch

from gdt.train.models.gdt import GDT
from gdt.train.models.network import Architecture, Network
from gdt.train.models.r2plus1d import Factorised, R2Plus1D
from gdt.train.settings import SIZES, RunSettings
from tests.conftest import few

TINY = RunSettings.of(SIZES["tiny"])


def test_convolutions_are_initialised_as_in_the_release() -> None:
    torch.manual_seed(0)
    weights = {name: p.detach() for name, p in GDT(Architecture()).named_parameters() if p.dim() > 2}
    stem = weights.pop("audio_network.base.conv1.weight")
    # uniform in ±1/7, torch's default for 49 inputs: sd 0.0825; 0.081 in one draw of the release's
    assert 0.99 / 7 < stem.abs().max() <= 1 / 7 and math.isclose(stem.std(), 1 / 7 / math.sqrt(3), rel_tol=0.03)
    quarters = torch.histc(stem, 4, -1 / 7, 1 / 7) / stem.numel()
    assert torch.allclose(quarters, torch.full((4,), 0.25), atol=0.03)
    for name, p in weights.items():
        sd = math.sqrt(2 / (p.shape[0] * p[0, 0].numel()))  # normal, He et al. over the outputs
        assert math.isclose(p.std(), sd, rel_tol=0.06) and p.abs().max() > 2.5 * sd, name


def test_shapes_and_unit_length() -> None:
    model = GDT(TINY.network).eval()
    clips = torch.randn(3, 3, 8, 32, 32)
    embeddings = model({"video": clips, "audio": torch.randn(2, 1, 40, 99)})
    assert embeddings.shape == (5, 128) and embeddings.dtype == torch.float32
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(5), atol=1e-5)
    maps = model.video_network.base.maps(clips)
    assert torch.allclose(maps.mean((2, 3, 4)), model.video_network(clips), atol=1e-6)


@pytest.mark.parametrize("compiled", few([False, True]))
def test_padded_channels_change_nothing(compiled: bool) -> None:
    """Outputs, gradients and running statistics, and the weights keep their names and shapes."""
    torch.manual_seed(0)
    plain = R2Plus1D(Network(stem=8, stem_middle=5, widths=(8, 12), depth=1)).double()
    padded = copy.deepcopy(plain)
    for part in padded.modules():
        if isinstance(part, Factorised):
            part.multiple = 8
    if compiled:
        padded.compile(dynamic=False)
    clips = torch.randn(4, 3, 5, 16, 16, dtype=torch.float64)
    for network in (plain, padded):
        network(clips).square().sum().backward()
    for one, other in zip(plain.parameters(), padded.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-10, atol=1e-12 * float(one.grad.abs().max()))
    states = zip(plain.state_dict().items(), padded.state_dict().items(), strict=True)
    assert all(a == b and torch.allclose(one, other, rtol=1e-12) for (a, one), (b, other) in states)
    assert torch.allclose(plain.eval()(clips), padded.eval()(clips), rtol=1e-12)
    channels = {part[0].out_channels for part in plain.modules() if isinstance(part, Factorised)}
    assert any(number % 8 for number in channels)
