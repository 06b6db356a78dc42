"""Networks: sizes, shapes and parameter names of the paper and the published weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gdt.common.errors import UserError
from gdt.train import portable
from gdt.train.checkpoint import load_model
from gdt.train.models.backbone import Backbone
from gdt.train.models.gdt import GDT, load_weights
from gdt.train.models.network import BACKBONES, Network
from gdt.train.pretrain import pretrain
from gdt.train.run import parse_arguments, to_json
from gdt.train.settings import SIZES
from gdt.train.weights import FINETUNED_ON, SETTINGS, STATISTICS

TINY = SIZES["tiny"]


def test_r2plus1d_18_has_the_names_and_size_of_torchvisions() -> None:
    state = GDT(Network()).video_network.base.state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    # 31,505,325 parameters with the classifier of 512 * 400 + 400 that this trunk leaves off
    assert sum(p.numel() for p in GDT(Network()).video_network.parameters()) == 31_505_325 - 205_200
    assert shapes["stem.0.weight"] == (45, 3, 1, 7, 7)
    assert shapes["stem.3.weight"] == (64, 45, 3, 1, 1)
    assert shapes["layer1.0.conv1.0.0.weight"] == (144, 64, 1, 3, 3)
    assert shapes["layer2.0.conv1.0.0.weight"] == (230, 64, 1, 3, 3)
    assert shapes["layer2.0.downsample.0.weight"] == (128, 64, 1, 1, 1)
    assert shapes["layer4.1.conv2.0.3.weight"] == (512, 921 + 231, 3, 1, 1)
    assert len([name for name in shapes if not name.endswith("num_batches_tracked")]) == 5 * 37


class Flat(Backbone):
    """One convolution."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.dim = network.widths[-1]
        self.only = nn.Conv3d(3, self.dim, 3, stride=2, padding=1)

    def parts(self) -> list[list[nn.Module]]:
        return [[self.only]]


def test_a_custom_video_network_is_a_class_and_a_line(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKBONES, "flat", "tests.train.test_models.Flat")
    network = replace(TINY.network, backbone="flat", widths=(6,))
    settings = replace(TINY, shards=shards, out=tmp_path, preset="e", batch_size=4, steps=2, network=network)
    trained_path = pretrain(settings)
    trained = load_model(trained_path)
    portable.write(tmp_path / "x.safetensors", trained)
    # as finetuning writes it, with the parameter names of this network
    state = {f"base.{name}": value for name, value in trained.model.video_network.base.state_dict().items()}
    state |= {"classifier.weight": torch.zeros(3, 6), "classifier.bias": torch.zeros(3)}
    more = {STATISTICS: trained.statistics.to_numbers(), SETTINGS: to_json(trained.settings), FINETUNED_ON: ["x", 1]}
    torch.save({"state_dict": state} | more, tmp_path / "finetuned.pt")
    for found in map(load_model, (tmp_path / "x.safetensors", tmp_path / "finetuned.pt", trained_path)):
        assert isinstance(found.model.video_network.base, Flat)
        assert found.model.video_network(torch.randn(2, 3, 8, 32, 32)).shape == (2, 6)
    with pytest.raises(UserError, match=r"unknown --network\.backbone 'round'; (available|did you mean)"):
        replace(network, backbone="round")
    words = ["--size", "tiny", "--network.backbone", "flat", "--network.widths", "6"]
    assert parse_arguments(words).network.widths == (6,)


def test_audio_resnet_has_nine_layers() -> None:
    model = GDT(Network()).audio_network.base
    weights = [name for name, p in model.named_parameters() if p.dim() == 4 and "downsample" not in name]
    assert len(weights) == 9
    assert model.conv1.weight.shape == (64, 1, 7, 7)
    assert model(torch.randn(2, 1, 40, 99)).shape == (2, 512)


def test_convolutions_are_initialised_as_in_the_release() -> None:
    torch.manual_seed(0)
    weights = {name: p.detach() for name, p in GDT(Network()).named_parameters() if p.dim() > 2}
    stem = weights.pop("audio_network.base.conv1.weight")
    # uniform in ±1/7, torch's default for 49 inputs: sd 0.0825; 0.081 in one draw of the release's
    assert 0.99 / 7 < stem.abs().max() <= 1 / 7 and math.isclose(stem.std(), 1 / 7 / math.sqrt(3), rel_tol=0.03)
    quarters = torch.histc(stem, 4, -1 / 7, 1 / 7) / stem.numel()
    assert torch.allclose(quarters, torch.full((4,), 0.25), atol=0.03)
    for name, p in weights.items():
        sd = math.sqrt(2 / (p.shape[0] * p[0, 0].numel()))  # normal, He et al. over the outputs
        assert math.isclose(p.std(), sd, rel_tol=0.06) and p.abs().max() > 2.5 * sd, name


def test_heads_have_the_published_names() -> None:
    names = {name for name in GDT(Network()).state_dict() if name.startswith("mlp_")}
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    parts = ["2.weight", *(f"4.{part}" for part in norm), "8.weight", "8.bias"]
    assert names == {f"mlp_{m}.block_forward.{part}" for m in "va" for part in parts}


def test_shapes_and_unit_length() -> None:
    model = GDT(TINY.network).eval()
    clips = torch.randn(3, 3, 8, 32, 32)
    embeddings = model({"video": clips, "audio": torch.randn(2, 1, 40, 99)})
    assert embeddings.shape == (5, 128) and embeddings.dtype == torch.float32
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(5), atol=1e-5)
    maps = model.video_network.base.maps(clips)
    assert torch.allclose(maps.mean((2, 3, 4)), model.video_network(clips), atol=1e-6)


def test_weights_of_another_model_are_refused_with_the_differences() -> None:
    tiny = GDT(TINY.network)
    weights = {f"module.{name}": value for name, value in tiny.state_dict().items()}
    load_weights(tiny, weights, "x.pt")  # the prefix of data-parallel training is removed
    with pytest.raises(UserError, match=r"x.pt holds another model: it has no"):
        load_weights(
            GDT(TINY.network, ["video", "audio"]),
            GDT(TINY.network, ["video"]).state_dict(),
            "x.pt",
        )
    with pytest.raises(UserError, match="instead of"):
        load_weights(
            tiny, GDT(Network(stem=16, stem_middle=16, widths=(16, 32, 64, 256), depth=1, slim=True)).state_dict(), "x"
        )
