"""The cached gradient of a step against one pass of plain autograd with a loss of another library, with dropout."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gdt.common.randomness import Stream
from gdt.train.experiment import compose
from gdt.train.models.gdt import GDT
from gdt.train.step import Gradient, seed_torch
from tests.golden import subject
from tests.oracles import library
from tests.train.test_step import first_batch

pytestmark = pytest.mark.oracles
STEP = 3


def gradients(model: GDT) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_cached_gradients_equal_plain_autograd(drawn: tuple[Path, Path], dropout: float) -> None:
    """Row a, groups of 3 clips, float64: the loss to 1e-9 relative, the gradient to 1e-8 of its length."""
    loss = library("pytorch_metric_learning.losses").NTXentLoss()
    run = subject.in_float64("a", *drawn, group_size=3)
    loss.temperature = run.temperature
    network = replace(run.network, dropout=dropout)
    batch = first_batch(run)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(GDT(network, ("video",)).double().train())
    cached, plain = models

    metrics = Gradient(cached, replace(run, gradient_cache="on"), compose(run).factors)(STEP, batch)

    clips = batch.inputs["video"]
    parts = []
    for number in range(len(clips) // 3):
        seed_torch(Stream.DROPOUT, run.seed, STEP, number)
        parts.append(plain.embed("video", clips[3 * number : 3 * number + 3]))
    value = loss(torch.cat(parts), batch.table["video"])
    value.backward()
    assert metrics.loss == pytest.approx(value.item(), rel=1e-9)
    assert (gradients(cached) - gradients(plain)).norm() < 1e-8 * gradients(plain).norm()
