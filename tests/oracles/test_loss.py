"""Equation 1 and its gradient against losses of other libraries, for the compositions where they are the same.

float64, temperature 0.07, odd numbers of videos; values to 1e-9 relative, gradients to 1e-9 of their length.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gdt.pipeline.composition import Factor
from gdt.pipeline.leaves import Clip
from gdt.pipeline.notation import parse
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.tree import BatchPlan, Tree
from gdt.train.loss import gdt_loss
from tests.oracles import library
from tests.train.test_loss import tensors

pytestmark = pytest.mark.oracles
TEMPERATURE = 0.07
TWO_VIEWS = "video:d time_shift:i:1 modality:i:1 augmentation:i:2"
THREE_VIEWS = "video:d time_shift:i:1 modality:i:1 augmentation:i:3"
CROSS_MODAL = "video:d time_shift:i:1 modality:i:2:differs augmentation:i:1"
Loss = Callable[[Tensor], Tensor]


def planned(factors: str, videos: int) -> tuple[tuple[Factor, ...], BatchPlan]:
    composition = parse(factors, videos)
    tree = Tree(composition, VideoPool(np.arange(20), np.full(20, 40), 30), Clip(), 40)
    return composition.factors, tree.plan(0, 0)


def embeddings(n: int) -> Tensor:
    """Float64 [n, 7] of length 1."""
    numbers = torch.randn(n, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return functional.normalize(numbers, dim=1)


def with_gradient(loss: Loss, z: Tensor) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    value = loss(z)
    value.backward()
    assert z.grad is not None
    # along z, libraries that normalise once more have no gradient
    tangent = z.grad - (z.grad * z).sum(1, keepdim=True) * z
    return value.detach(), tangent.detach()


def require_equal(plan: BatchPlan, factors: tuple[Factor, ...], other: Loss) -> None:
    z = embeddings(len(plan))
    value, gradient = with_gradient(lambda x: gdt_loss(x, tensors(plan), factors, TEMPERATURE), z)
    expected, expected_gradient = with_gradient(other, z)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    assert (gradient - expected_gradient).norm() < 1e-9 * expected_gradient.norm()


@pytest.mark.parametrize("videos", [2, 5, 11])
@pytest.mark.parametrize(("factors", "name"), [(TWO_VIEWS, "NTXentLoss"), (THREE_VIEWS, "SupConLoss")])
def test_views_of_videos_equal_pytorch_metric_learning(factors: str, name: str, videos: int) -> None:
    """With three views, other positives are in the denominator, as in SupCon and not in NT-Xent."""
    losses = library("pytorch_metric_learning.losses")
    loss = getattr(losses, name)(temperature=TEMPERATURE)
    parsed, plan = planned(factors, videos)
    require_equal(plan, parsed, lambda z: loss(z, torch.from_numpy(plan.columns["video"])))


@pytest.mark.parametrize("videos", [2, 5, 11])
def test_two_views_equal_lightly(videos: int) -> None:
    loss = library("lightly.loss").NTXentLoss(temperature=TEMPERATURE)
    factors, plan = planned(TWO_VIEWS, videos)
    order = torch.from_numpy(np.argsort(plan.columns["video"], kind="stable"))
    require_equal(plan, factors, lambda z: loss(z[order[::2]], z[order[1::2]]))


def clip_loss(z: Tensor, plan: BatchPlan) -> Tensor:
    """CLIP's loss between the video and the audio leaves: open_clip's, or its formula where that is not to be had."""
    order = np.lexsort([plan.columns["video"], plan.columns["modality"]])
    video, audio = z[torch.from_numpy(order)].chunk(2)
    try:
        from open_clip.loss import ClipLoss
    except Exception:  # needs torchvision, whose compiled part may not fit
        similarity = video @ audio.T / TEMPERATURE
        pair = torch.arange(len(video))
        return (functional.cross_entropy(similarity, pair) + functional.cross_entropy(similarity.T, pair)) / 2
    value: Tensor = ClipLoss()(video, audio, 1 / TEMPERATURE)
    return value


@pytest.mark.parametrize("videos", [2, 5, 11])
def test_cross_modal_pairs_equal_open_clip(videos: int) -> None:
    factors, plan = planned(CROSS_MODAL, videos)
    require_equal(plan, factors, lambda z: clip_loss(z, plan))
