"""Whether one rank and two compute the same losses, and the speed of batch norm over ranks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._dynamo.utils import counters

from benchmarks.gpu.convolutions import WRONG
from benchmarks.gpu.device import cudnn_settings, on_gpu, reset, seconds
from benchmarks.gpu.settings import PREDICTED, Settings
from benchmarks.gpu.step import DATA, batch_of, run_settings, tree_of
from benchmarks.gpu.table import Rows, Values
from gdt.common.errors import UserError, first_line
from gdt.pipeline.groups import take_rank
from gdt.train.distributed import leave_without_teardown
from gdt.train.kernels import PRECISIONS, Kernels
from gdt.train.learner import Learner
from gdt.train.norm import synchronise

TOLERANCE = 1e-3
"""Relative difference of losses; float32 without TF32, sums in another order."""
STEPS = 4


def ranks(settings: Settings, rows: Rows, device: torch.device) -> None:
    rows("one rank and two", partial(compare, settings, device))


def compare(settings: Settings, device: torch.device) -> Values:
    """Losses of a few steps of row l on one and two ranks, with batch norm over groups and over the whole batch.

    Raises UserError where they differ.
    """
    one = _losses(settings, 0, 1, device)
    reset(device)
    two: dict[str, list[float]] = on_ranks(_losses, settings, 2)
    pairs = {norm: list(zip(one[norm], two[norm], strict=True)) for norm in one}
    off = {norm: max(abs(a - b) / abs(a) for a, b in steps) for norm, steps in pairs.items()}
    report = "; ".join(f"{norm}: {', '.join(f'{a:.6f} {b:.6f}' for a, b in steps)}" for norm, steps in pairs.items())
    if not max(off.values()) < TOLERANCE:
        raise UserError(f"losses of one rank and two differ by {off}, more than {TOLERANCE}; {report}")
    backend = "NCCL, a GPU each" if _have_gpus(settings, 2) else "gloo, both on one device"
    return {f"off, {norm}": value for norm, value in off.items()} | {
        "tolerance": TOLERANCE,
        "is": f"{backend}; {report}",
    }


def synchronised(settings: Settings, device: torch.device) -> Values:
    """Steps with batch norm over the whole batch of two ranks, or of one where there is one GPU, and graph breaks."""
    return on_ranks(_steps, settings, min(2, torch.cuda.device_count()) if on_gpu(device) else 2)


def _steps(settings: Settings, rank: int, world: int, device: torch.device) -> Values:
    """Compiled in bfloat16; on a CPU only traced, in float32."""
    gpu, leaves = on_gpu(device), settings.size.leaves_of_ideas
    run = replace(
        run_settings(settings, "l", leaves * world), bn_group_size=0, precision="bfloat16" if gpu else "float32"
    )
    tree = tree_of(run)
    learner = Learner(run, tree, DATA, device, world, Kernels(PRECISIONS[run.precision], compiled=gpu))
    if world == 1:
        synchronise(learner.model)
    if not gpu:
        torch.set_num_threads(1)
        learner.model.video_network.base.compile(backend="eager", dynamic=False)
    batch = batch_of(take_rank(tree.plan(0, 0), rank, world), run, device)
    with cudnn_settings(benchmark=True):
        for _ in range(settings.size.warm):
            learner.step(0, batch)
        taken = seconds(lambda: learner.step(0, batch), settings.size.steps, device)
    breaks, graphs = counters["graph_break"], counters["stats"]["unique_graphs"]
    values = {"predicted clips/s": PREDICTED["steps"]["batch norm over ranks"], "clips/s": leaves / taken,
              "ms": 1000 * taken, "graphs": graphs, "graph breaks": sum(breaks.values())}  # fmt: skip
    if breaks or graphs != 1:
        why = first_line(ValueError(next(iter(breaks), "the graph is compiled again in later steps")))
        return values | {"is": f"{WRONG}: not one graph: {why}"}
    return values | {"is": f"{world} ranks, clips/s of each"}


def on_ranks(compute: Callable[[Settings, int, int, torch.device], Any], settings: Settings, world: int) -> Any:
    """What `compute` returns on rank 0, given settings, rank, number of ranks and device."""
    with tempfile.TemporaryDirectory(prefix="gdt-ranks-") as name:
        mp.spawn(_rank, (compute, settings, world, name), nprocs=world)
        return json.loads(Path(name, "result.json").read_text())


def _have_gpus(settings: Settings, world: int) -> bool:
    """Whether each rank has its own."""
    return settings.device == "cuda" and torch.cuda.device_count() >= world


def _rank(rank: int, compute: Callable[..., Any], settings: Settings, world: int, folder: str) -> None:
    own = _have_gpus(settings, world)
    device = torch.device("cuda", rank if own else 0) if settings.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if own else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    result = compute(settings, rank, world, device)
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result))
    dist.barrier()
    leave_without_teardown()


def _losses(settings: Settings, rank: int, world: int, device: torch.device) -> dict[str, list[float]]:
    """Losses per step, with batch norm over groups and over the whole batch."""
    found: dict[str, list[float]] = {}
    videos = settings.size.ranks_videos
    if device.type == "cpu":
        torch.set_num_threads(1)
    for norm, bn_group_size in (("groups", videos // 2), ("the whole batch", 0)):
        run = replace(
            run_settings(settings, "l", 8), batch_size=videos, bn_group_size=bn_group_size, precision="float32",
            steps=STEPS,
        )  # fmt: skip
        tree = tree_of(run)
        with cudnn_settings(benchmark=False, exact=True):
            trainer = Learner(run, tree, DATA, device, world, Kernels(torch.float32))
            # a new epoch per step
            plans = [take_rank(tree.plan(step, 0), rank, world, bn_group_size) for step in range(STEPS)]
            batches = (batch_of(plan, run, device) for plan in plans)
            found[norm] = [float(trainer.step(step, batch).loss) for step, batch in enumerate(batches)]
    return found
