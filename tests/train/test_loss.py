"""Equation 1 against a loop in float64, forward and gradient; and across ranks."""

import itertools
import math
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional

import gdt
from gdt.common.errors import UserError
from gdt.pipeline import presets
from gdt.pipeline.composition import Factor, contrast, weight
from gdt.pipeline.groups import take_rank
from gdt.pipeline.leaves import Clip
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.tree import BatchPlan, Tree
from gdt.train.distributed import leave_without_teardown
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
    """Equation 1 as printed, divided by the number of positive pairs."""
    total, pairs = torch.zeros((), dtype=torch.float64), 0
    for a in range(len(z)):
        for b in range(len(z)):
            if c[a, b] * w[a, b]:
                denominator = sum(w[a, k] * torch.exp(z[a] @ z[k] / RHO) for k in range(len(z)))
                total = total - torch.log(torch.exp(z[a] @ z[b] / RHO) / denominator)
                pairs += 1
    return total / pairs


@pytest.mark.parametrize("unusable", [0, 2])
@pytest.mark.parametrize("preset", [*presets.TABLE_1, "text-f", "three"])
def test_equals_the_triple_loop_forward_and_backward(preset: str, unusable: int) -> None:
    """Also without some leaves, such as those in which nothing is said."""
    factors, plan = planned(preset, 3)
    usable = np.ones(len(plan), bool)
    usable[np.random.default_rng(0).choice(len(plan), unusable, replace=False)] = False
    c, w = (f(factors, plan.columns, plan.columns).astype(int) for f in (contrast, weight))
    z, y = embed(len(plan)), embed(len(plan))
    table = tensors(plan) | {"usable": torch.from_numpy(usable.astype(np.int64))}
    slow, fast = triple_loop(z, c, w * np.outer(usable, usable)), gdt_loss(y, table, factors, RHO)
    slow.backward()
    fast.backward()
    assert math.isclose(slow.item(), fast.item(), rel_tol=1e-12)
    assert torch.allclose(z.grad, y.grad, rtol=1e-9, atol=1e-12) and not y.grad[~usable].any()


@pytest.mark.parametrize("preset", ["a", "e", "l"])
def test_all_or_no_leaves_may_be_usable(preset: str) -> None:
    factors, plan = planned(preset, 4)
    y, table = embed(len(plan)), tensors(plan)
    everything = gdt_loss(y, table | {"usable": torch.ones(len(plan), dtype=torch.int64)}, factors, RHO)
    assert everything.item() == gdt_loss(y, table, factors, RHO).item()
    nothing = gdt_loss(y, table | {"usable": torch.zeros(len(plan), dtype=torch.int64)}, factors, RHO)
    nothing.backward()
    assert nothing.item() == 0 and not y.grad.any()


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


def _rank(rank: int, world: int, folder: str, names: tuple[str, ...]) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world, timeout=timedelta(minutes=5)
    )
    torch.set_num_threads(1)
    results = {preset: _shared(rank, world, preset) for preset in names}
    torch.save(results, f"{folder}/{world}-{rank}.pt")
    dist.barrier()  # no rank exits while another still communicates
    leave_without_teardown()


def _shared(rank: int, world: int, preset: str) -> dict[str, torch.Tensor]:
    """Losses and gradient of one rank's share of a batch."""
    factors, plan = planned(preset, 10)
    share = take_rank(plan, rank, world)
    layer = torch.nn.Linear(5, 7, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(layer.weight, 0.1)
    layer.weight.data[:, 0] = torch.linspace(-1, 1, 7)
    replica = torch.nn.parallel.DistributedDataParallel(layer) if world > 1 else layer
    inputs = torch.randn(len(plan), 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    z = functional.normalize(replica(inputs[share.columns["leaf"]]), dim=1)
    loss = gdt_loss(z, tensors(share), factors, RHO)
    loss.backward()
    table = tensors(share)
    usable = table["leaf"] % 5 > 0
    with torch.no_grad():
        without = gdt_loss(z, table | {"usable": usable.long()}, factors, RHO)
    return {"loss": loss.detach(), "gradient": layer.weight.grad, "without": without}


def test_two_ranks_equal_one_process_with_the_joined_batch(tmp_path: Path) -> None:
    names = ("a", "e", "l")
    mp.spawn(_rank, (2, str(tmp_path), names), nprocs=2)
    for rank, preset in itertools.product(range(2), names):
        one, part = _shared(0, 1, preset), torch.load(tmp_path / f"2-{rank}.pt", weights_only=True)[preset]
        assert math.isclose(part["loss"].item(), one["loss"].item(), rel_tol=1e-12)
        assert math.isclose(part["without"].item(), one["without"].item(), rel_tol=1e-12)
        assert torch.allclose(part["gradient"], one["gradient"], rtol=1e-9, atol=1e-13)
