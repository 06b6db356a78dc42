"""Networks against the libraries that they come from."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gdt.pipeline.leaves import Clip
from gdt.train.models.gdt import GDT
from gdt.train.models.inspection import check_network
from gdt.train.models.network import Architecture
from gdt.train.models.own import makers
from tests.oracles import library
from tests.train import own_networks

pytestmark = pytest.mark.oracles
CLIP = Clip(frames=own_networks.CLIP[1], size=own_networks.CLIP[2], mel_frames=own_networks.BANK[2])


def taken(modality: str, make: Callable[[], nn.Module]) -> GDT:
    """A model with a network that is given as users do."""
    (maker,) = makers({modality: [make]})[modality]
    recorded = check_network(modality, maker, CLIP)
    network = Architecture(video=recorded) if modality == "video" else Architecture(audio=recorded)
    torch.manual_seed(1)
    return GDT(network, (modality,), {modality: maker}).eval()


def copied(model: GDT, modality: str, net: nn.Module) -> nn.Module:
    """The library's network with the weights of the model's."""
    state = model.get_submodule(f"{modality}_network.base.net").state_dict()
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected and len(missing) <= 2  # its classifier
    return net.eval()


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).norm() < 1e-5 * theirs.norm())


@torch.no_grad()
def test_a_network_of_transformers_gives_the_features_of_its_forward() -> None:
    library("transformers.models.videomae.modeling_videomae")
    model = taken("video", own_networks.videomae)
    net = copied(model, "video", own_networks.videomae())
    clips = torch.randn(2, *own_networks.CLIP)
    assert close(model.video_network(clips), net(clips).last_hidden_state.mean(1))


@torch.no_grad()
def test_a_network_of_timm_gives_the_features_of_its_forward() -> None:
    make = partial(library("timm").create_model, "resnet10t", in_chans=1)
    model = taken("audio", make)
    net: Any = copied(model, "audio", make())
    banks = torch.randn(2, *own_networks.BANK)
    assert close(model.audio_network(banks), net.forward_head(net.forward_features(banks), pre_logits=True))


@torch.no_grad()
def test_the_papers_video_network_is_torchvisions() -> None:
    net = library("torchvision.models.video").r2plus1d_18(weights=None)
    torch.manual_seed(0)
    model = GDT(Architecture(), ("video",)).eval()
    missing, unexpected = net.load_state_dict(model.video_network.base.state_dict(), strict=False)
    assert not unexpected and set(missing) == {"fc.weight", "fc.bias"}
    net.fc = nn.Identity()
    clips = torch.randn(2, 3, 8, 64, 64)
    assert close(model.video_network(clips), net.eval()(clips))
