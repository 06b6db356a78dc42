"""One process and two: whether they compute the same losses."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.gpu.device import Processor, device_of
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.step import batch_of, run_settings, tree_of
from benchmarks.gpu.table import Values
from gdt.common.errors import UserError
from gdt.common.serialization import rebuilt, to_json
from gdt.pipeline.groups import shared
from gdt.pipeline.shards.index import Statistics
from gdt.train.checkpoint import Data
from gdt.train.distributed import leave_without_teardown
from gdt.train.kernels import Kernels
from gdt.train.learner import Learner

TOLERANCE = 1e-3
"""Of a loss, relative; float32 without TF32, sums in another order."""
STEPS = 4


def together(settings: Settings, gpus: int, seconds: float = 240.0) -> Values:
    """Losses of a few steps of row l by one and by two ranks, with batch norm over groups and over the whole batch.

    Raises UserError where they are not the same.
    """
    several = gpus > 1
    device = device_of(settings.device)
    one = _losses(settings, 0, 1, device.device)
    device.fresh()
    with tempfile.TemporaryDirectory(prefix="gdt-ranks-") as name:
        folder = Path(name)
        _run((str(folder), to_json(settings), several), time.monotonic() + seconds)
        two: dict[str, list[float]] = json.loads((folder / "losses.json").read_text())
    pairs = {norm: list(zip(one[norm], two[norm], strict=True)) for norm in one}
    off = {norm: max(abs(a - b) / abs(a) for a, b in steps) for norm, steps in pairs.items()}
    told = [f"{norm}: {', '.join(f'{a:.6f} {b:.6f}' for a, b in steps)}" for norm, steps in pairs.items()]
    if not max(off.values()) < TOLERANCE:
        raise UserError(f"losses of one rank and of two differ by {off}, more than {TOLERANCE}; {'; '.join(told)}")
    by = "NCCL, a GPU each" if several else "gloo, both on one device"
    return {**{f"off, {norm}": value for norm, value in off.items()}, "tolerance": TOLERANCE,
            "is": "; ".join([by, *told])}  # fmt: skip


def _run(arguments: tuple[object, ...], deadline: float) -> None:
    running = mp.spawn(_rank, arguments, nprocs=2, join=False)
    assert running is not None
    while not running.join(1.0):
        if time.monotonic() > deadline:
            for process in running.processes:
                process.kill()
            raise UserError("two ranks did not come to an end")


def _rank(rank: int, folder: str, told: str, several: bool) -> None:
    settings = rebuilt(Settings, json.loads(told))
    own = torch.device("cuda", rank) if several else device_of(settings.device).device
    if own.type == "cuda":
        torch.cuda.set_device(own)
    backend = "nccl" if several else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    losses = _losses(settings, rank, 2, own)
    if rank == 0:
        (Path(folder) / "losses.json").write_text(json.dumps(losses))
    dist.barrier()
    leave_without_teardown()


def _losses(settings: Settings, rank: int, world: int, device: torch.device) -> dict[str, list[float]]:
    """By what batch norm is over."""
    data = Data("drawn", Statistics.from_numbers([110.0] * 3 + [60.0] * 3 + [0.0, 1.0]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cpu" else threads)
    found: dict[str, list[float]] = {}
    with Processor(device).numbers(benchmark=False, exact=True):
        for norm, norm_leaves in (("groups", settings.ranks_videos // 2), ("the whole batch", 0)):
            run = replace(
                run_settings(settings, "l", 8), videos_per_batch=settings.ranks_videos, norm_leaves=norm_leaves,
                precision="float32", steps=STEPS,
            )  # fmt: skip
            tree = tree_of(run)
            trainer = Learner(run, tree, data, device, world, Kernels(torch.float32))
            found[norm] = []
            for step in range(STEPS):
                plan = shared(tree.plan(step, 0), rank, world, norm_leaves)  # an epoch has one batch
                found[norm].append(float(trainer.step(step, batch_of(plan, run, device)).loss))
    torch.set_num_threads(threads)
    return found
