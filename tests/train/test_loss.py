"""Equation 1 against a loop in float64, forward and gradient; across ranks, in test_step.py."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import gdt
from gdt.common.errors import UserError
from gdt.pipeline import presets
from gdt.pipeline.composition import Factor, contrast, weight
from gdt.pipeline.leaves import Clip
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.tree import BatchPlan, Tree
from gdt.train.loss import gdt_loss, outcome
from tests.composed import composed

RHO = 0.07


def planned(preset: str, videos: int) -> tuple[tuple[Factor, ...], BatchPlan]:
    composition = composed(preset, videos)
    tree = Tree(composition, VideoPool(np.arange(20), np.full(20, 40), 30), Clip(), 40)
    return composition.factors, tree.plan(0, 0)


def tensors(plan: BatchPlan) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in plan.columns.items()}


def embed(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = functional.normalize(torch.randn(n, 7, generator=generator, dtype=torch.float64), dim=1)
    return x.requires_grad_()


def triple_loop(z: torch.Tensor, c: np.ndarray, w: np.ndarray) -> torch.Tensor:
    """Equation 1 as printed, divided by the number of positive pairs; 0 without any."""
    total, pairs = 0 * z.sum(), 0
    for a in range(len(z)):
        for b in range(len(z)):
            if c[a, b] * w[a, b]:
                denominator = sum(w[a, k] * torch.exp(z[a] @ z[k] / RHO) for k in range(len(z)))
                total = total - torch.log(torch.exp(z[a] @ z[b] / RHO) / denominator)
                pairs += 1
    return total / max(pairs, 1)


@pytest.mark.parametrize("unusable", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("preset", [*presets.TABLE_1, "text-f", "three"])
def test_equals_the_triple_loop_forward_and_backward(preset: str, unusable: int) -> None:
    """Also without a share of the leaves, such as those in which nothing is said."""
    factors, plan = planned(preset, 3)
    usable = np.ones(len(plan), bool)
    usable[np.random.default_rng(0).choice(len(plan), round(unusable * len(plan)), replace=False)] = False
    c, w = (f(factors, plan.columns, plan.columns).astype(int) for f in (contrast, weight))
    z, y = embed(len(plan)), embed(len(plan))
    table = tensors(plan) | {"usable": torch.from_numpy(usable.astype(np.int64))}
    slow, fast = triple_loop(z, c, w * np.outer(usable, usable)), gdt_loss(y, table, factors, RHO)
    slow.backward()
    fast.backward()
    assert math.isclose(slow.item(), fast.item(), rel_tol=1e-12)
    assert torch.allclose(z.grad, y.grad, rtol=1e-9, atol=1e-12) and not y.grad[~usable].any()


def test_float32_is_close_to_float64_even_under_autocast() -> None:
    factors, plan = planned("l", 8)
    z = embed(len(plan)).detach()
    with torch.autocast("cpu", torch.bfloat16):
        narrow = gdt_loss(z.float(), tensors(plan), factors, RHO)
    assert narrow.dtype == torch.float32
    assert math.isclose(narrow.item(), gdt_loss(z, tensors(plan), factors, RHO).item(), rel_tol=1e-5)


@pytest.mark.parametrize("preset", presets.TABLE_1)
def test_the_losses_of_chance_and_of_perfect_embeddings_are_told(preset: str) -> None:
    factors, plan = planned(preset, 4)
    table = tensors(plan)
    constant = torch.ones(len(plan), 1, dtype=torch.float64)
    said = outcome(constant, table, factors, RHO)
    assert said.chance.item() == pytest.approx(said.loss.item(), rel=1e-12)
    assert preset != "e" or said.chance.item() == pytest.approx(math.log(4))
    # leaves of a class are the same, and those of other classes infinitely far
    positive = torch.from_numpy(contrast(factors, plan.columns, plan.columns))
    perfect = torch.eye(len(plan), dtype=torch.float64)[positive.int().argmax(1)]
    best = outcome(perfect, table, factors, 0.01)
    assert best.loss.item() == pytest.approx(said.least.item(), abs=1e-9)
    assert best.chance.item() == said.chance.item()


def test_a_composition_in_words_gives_the_loss_of_its_plan_and_what_does_not_fit_is_refused() -> None:
    text = "video:d time_shift:d:2 modality:i:2:differs augmentation:i:1"
    composition = gdt.composition(text, batch_size=3)
    plan = gdt.tree(composition, starts=[40] * 7).plan(epoch=0, batch=1)
    z = embed(len(plan))
    c, w = (f(composition.factors, plan.columns, plan.columns).astype(int) for f in (contrast, weight))
    loss = gdt_loss(z, plan.columns, composition, RHO)
    assert math.isclose(loss.item(), triple_loop(z, c, w).item(), rel_tol=1e-12)
    without = {name: values for name, values in plan.columns.items() if name != "leaf"}
    wrong = {
        "is a text; pass gdt.composition": (z, plan.columns, text),
        "the table has no column 'leaf'": (z, without, composition),
        "there are 11 embeddings": (z[1:], plan.columns, composition),
        "must have length 1": (2 * z, plan.columns, composition),
        "pass \\[n, d\\], a row per leaf": (z[None], plan.columns, composition),
    }
    for words, arguments in wrong.items():
        with pytest.raises(UserError, match=words):
            gdt_loss(*arguments, RHO)
    with pytest.raises(UserError, match="a batch takes 3 videos but only 2 can be used"):
        gdt.tree(composition, starts=[40, 1, 40, 0])
