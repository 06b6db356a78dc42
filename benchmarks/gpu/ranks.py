"""One and two processes: whether they compute the same losses."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.gpu.device import device_of
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.step import batch_of, run_settings, tree_of
from benchmarks.gpu.table import Values
from pipeline.errors import UserError
from pipeline.groups import shared
from pipeline.serialization import rebuilt, to_json
from pipeline.shards.index import Statistics
from train.checkpoint import Data
from train.kernels import Kernels
from train.pretrain import Trainer
from train.run import leave_without_teardown
from train.settings import Pretrain

TOLERANCE = 1e-3
"""Of a loss, relative; float32 without TF32, sums in another order."""
STEPS = 4


def together(settings: Settings, gpus: int, norm_leaves: int, seconds: float = 240.0) -> Values:
    """Losses of a few steps of row l by one and by two ranks. Raises UserError where they are not the same."""
    several = gpus > 1
    with tempfile.TemporaryDirectory(prefix="gdt-ranks-") as name:
        folder = Path(name)
        losses = []
        for world in (1, 2):
            _run(world, (world, str(folder), to_json(settings), norm_leaves, several), time.monotonic() + seconds)
            losses.append(torch.load(folder / f"{world}.pt", weights_only=True).tolist())
    off = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
    told = ", ".join(f"{a:.6f} {b:.6f}" for a, b in zip(*losses, strict=True))
    if not off < TOLERANCE:
        raise UserError(f"losses of one rank and of two differ by {off:.2g}, more than {TOLERANCE}: {told}")
    by = "NCCL, a GPU each" if several else "gloo, one device"
    return {"off": off, "tolerance": TOLERANCE, "is": f"{by}: {told}"}


def _run(world: int, arguments: tuple[object, ...], deadline: float) -> None:
    running = mp.spawn(_rank, arguments, nprocs=world, join=False)
    assert running is not None
    while not running.join(1.0):
        if time.monotonic() > deadline:
            for process in running.processes:
                process.kill()
            raise UserError(f"{world} ranks did not come to an end")


def _rank(rank: int, world: int, folder: str, told: str, norm_leaves: int, several: bool) -> None:
    settings = rebuilt(Settings, json.loads(told))
    device = device_of(settings.device)
    own = torch.device("cuda", rank) if several and world > 1 else device.device
    if own.type == "cuda":
        torch.cuda.set_device(own)
    if world > 1:
        backend = "nccl" if several else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    run = replace(
        run_settings(settings, "l", 8), videos_per_batch=settings.ranks_videos, norm_leaves=norm_leaves,
        precision="float32", steps=STEPS, threads=1 if own.type == "cpu" else 0,
    )  # fmt: skip
    with device.numbers(benchmark=False, exact=True):
        losses = _losses(run, rank, world, own)
    if rank == 0:
        torch.save(torch.stack(losses), f"{folder}/{world}.pt")
    if world > 1:
        dist.barrier()
        leave_without_teardown()


def _losses(run: Pretrain, rank: int, world: int, device: torch.device) -> list[torch.Tensor]:
    tree = tree_of(run)
    data = Data("drawn", Statistics.from_numbers([110.0] * 3 + [60.0] * 3 + [0.0, 1.0]))
    if run.threads:
        torch.set_num_threads(run.threads)
    trainer = Trainer(run, tree, data, device, rank, world, Kernels(torch.float32))
    losses = []
    for step in range(STEPS):
        plan = shared(tree.plan(step, 0), rank, world, run.norm_leaves or 0)  # an epoch has one batch
        losses.append(trainer.step(step, batch_of(plan, run, device)).loss.cpu())
    return losses
