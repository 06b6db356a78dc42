"""Batch norm compiles into one graph, over two ranks, too, with the results of eager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch._dynamo.utils import counters

from gdt.train.distributed import leave_without_teardown
from gdt.train.models.gdt import GDT
from gdt.train.norm import RunningStatistics, allow_masks, synchronise
from gdt.train.settings import SIZES

SMALL = replace(SIZES["tiny"].network, stem=4, stem_middle=3, widths=(4,))
MASKS = [[True, False, True, True], [True, True, False, False], [False] * 4]
"""Rows that count, by step; rank 1 has those of the next step."""


def _trained(masks: Sequence[Tensor | None], recomputed: int, backend: str) -> list[Tensor]:
    """Features, gradients and statistics of a step of the synchronised video trunk per mask, compiled by a backend."""
    torch.manual_seed(0)
    model = synchronise(GDT(SMALL, ("video",)).train())
    trunk = model.video_network
    trunk.base.recomputed = recomputed
    if backend:
        trunk.base.compile(dynamic=False, fullgraph=True, backend=backend)
    statistics, found = RunningStatistics({"video": [trunk]}), []
    random = torch.Generator().manual_seed(dist.get_rank())
    for mask in masks:
        trunk.zero_grad()
        with statistics.step(shared=False):
            statistics.set_mask("video", mask)
            features = trunk(torch.randn(4, 3, 4, 16, 16, generator=random))
            statistics.add("video")
            (features.square().sum(1) * torch.arange(1.0, 5.0)).sum().backward()
        gradients = [p.grad for p in trunk.parameters() if p.grad is not None]
        found += [features.detach(), *gradients, *(buffer.clone() for buffer in trunk.buffers())]
    return found


def _rank(rank: int, folder: str, backend: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    masks = [torch.tensor(MASKS[(step + rank) % len(MASKS)]) for step in range(len(MASKS))]
    for several, recomputed in (([None, None, *masks, None], 0), (masks, 2)):
        graphs = counters["stats"]["unique_graphs"]
        eager, compiled = (_trained(several, recomputed, name) for name in ("", backend))
        # one graph with a mask and one without, for all steps
        assert counters["stats"]["unique_graphs"] - graphs == len({mask is None for mask in several})
        for one, other in zip(eager, compiled, strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(one.abs().max()))
    dist.barrier()
    leave_without_teardown()


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_the_synchronised_trunk_compiles_into_one_graph_with_the_results_of_eager(backend: str, tmp_path: Path) -> None:
    mp.spawn(_rank, (str(tmp_path), backend), nprocs=2)


def test_steps_do_not_compile_again() -> None:
    """One graph for each of: with and without a gradient, with and without a mask, and for evaluation."""
    trunk = allow_masks(GDT(SMALL, ("video",))).video_network
    torch.compiler.reset()  # other tests may have compiled the same code
    trunk.base.compile(dynamic=False, fullgraph=True, backend="eager")
    statistics, graphs = RunningStatistics({"video": [trunk]}), counters["stats"]["unique_graphs"]
    for mask in (None, *map(torch.tensor, MASKS), None):
        trunk.eval()
        with torch.no_grad():
            trunk(torch.randn(4, 3, 4, 16, 16))
        trunk.train()
        with statistics.step(shared=True):
            for gradient in (False, True, True):
                statistics.set_mask("video", mask)
                with torch.set_grad_enabled(gradient):
                    trunk(torch.randn(4, 3, 4, 16, 16))
                statistics.add("video")
    assert counters["stats"]["unique_graphs"] - graphs == 5 < torch._dynamo.config.recompile_limit
