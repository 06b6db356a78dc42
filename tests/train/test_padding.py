"""Padded widths: the same updates and checkpoints, and zeros that stay zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.train import checkpoint
from gdt.train.kernels import Kernels
from gdt.train.learner import Learner
from gdt.train.models.r2plus1d import middle_channels
from gdt.train.padding import pad_widths
from gdt.train.settings import Optimization, Pretrain
from tests.train.test_checkpoint import DATA
from tests.train.test_trainer import CPU, TINY

PLAIN, PADDED = Kernels(torch.float64), Kernels(torch.float64, padded=True)
WIDTHS = (6, 10)
MIDDLE = {"stem.0": 13, "layer1.0.conv1.0.0": middle_channels(8, 6), "layer2.0.conv2.0.0": middle_channels(10, 10)}
"""Output widths of some convolutions, all to be padded."""


@pytest.fixture(scope="module", params=["sgd", "adamw"])
def settings(request: pytest.FixtureRequest, shards: Path) -> Pretrain:
    network = replace(TINY.network, stem=8, stem_middle=13, widths=WIDTHS, slim=False, dropout=0.3)
    optimization = Optimization(request.param, lr=0.01, base_batch_size=0, warmup_epochs=0, weight_decay=0.1)
    return replace(
        TINY, shards=shards, batch_size=4, device="cpu", precision="float64", preset="e", network=network,
        optimization=optimization,
    )  # fmt: skip


@pytest.fixture(scope="module")
def batches(settings: Pretrain, index: Index) -> list[Batch]:
    tree = settings.tree(index)
    with Loader(index, tree.plans(0, 4), settings.clip, CPU) as loader:
        return list(loader)


def learner(settings: Pretrain, index: Index, kernels: Kernels, batches: list[Batch], begin: int = 0) -> Learner:
    """A learner after these batches."""
    one = Learner(settings, settings.tree(index), DATA, CPU, kernels=kernels)
    for step, batch in enumerate(batches, begin):
        one.step(step, batch)
    return one


def tensors(state: Any, name: str = "") -> dict[str, Tensor]:
    if isinstance(state, Tensor):
        return {name: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return {found: value for key, each in items for found, value in tensors(each, f"{name}.{key}").items()}


def assert_near(found: Learner, expected: Learner) -> None:
    """Weights, running statistics and the optimizer's state, with the original shapes."""
    states = [tensors([one.model.state_dict(), one.optimizer.state_dict()]) for one in (found, expected)]
    assert states[0].keys() == states[1].keys() and len(states[0]) > 100
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value, rtol=1e-7, atol=1e-9, msg=name)


def test_updates_are_the_same_and_checkpoints_fit_both_ways(
    settings: Pretrain, index: Index, batches: list[Batch], tmp_path: Path
) -> None:
    plain, padded = (learner(settings, index, kernels, batches) for kernels in (PLAIN, PADDED))
    for name, width in MIDDLE.items():
        convolution = padded.model.video_network.base.get_submodule(name)
        assert len(convolution.weight) == -(-width // 8) * 8 > width
        assert len(convolution.weight.grad[width:].flatten()) and not convolution.weight.grad[width:].any()
        assert not convolution.weight[width:].any()
    assert_near(padded, plain)
    path = tmp_path / checkpoint.NAME
    for first, then in ((PLAIN, PADDED), (PADDED, PLAIN)):
        checkpoint.write(path, learner(settings, index, first, batches[:2]).state(2))
        resumed = learner(settings, index, then, [])
        resumed.resume(checkpoint.read(path))
        for step in (2, 3):
            resumed.step(step, batches[step])
        assert_near(resumed, plain)


def test_the_optimizer_saves_no_padding(settings: Pretrain, index: Index, batches: list[Batch]) -> None:
    """Saving does not change its state, either."""
    padded = learner(settings, index, PADDED, batches[:1])
    before = padded.digest()
    parameters = list(padded.model.parameters())
    states = padded.optimizer.state_dict()["state"]
    own = dict(padded.model.state_dict())
    shapes = [own[name].shape for name, _ in padded.model.named_parameters()]
    for k, shape in enumerate(shapes):
        assert {value.shape for value in states[k].values() if isinstance(value, Tensor) and value.dim()} == {shape}
        held = padded.optimizer.state[parameters[k]]
        assert all(
            value.shape == parameters[k].shape for value in held.values() if isinstance(value, Tensor) and value.dim()
        )
    assert padded.digest() == before


def test_widths_of_multiples_of_8_are_left_alone() -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv3d(3, 16, 1), nn.BatchNorm3d(16), nn.ReLU(), nn.Conv3d(16, 5, 1)))
    before = list(model.parameters())
    assert not pad_widths(model)
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
