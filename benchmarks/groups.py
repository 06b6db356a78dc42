"""Batch-norm groups of one direction of time, or of both: losses, and whether embeddings encode the direction."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
import tyro
from torch import Tensor

from benchmarks.gpu.step import BANDS, DATA, tree_of
from benchmarks.timing import Measurements, in_turns, machine
from gdt.common.errors import exit_with_message
from gdt.pipeline.groups import take_rank
from gdt.pipeline.leaves import Clip, Leaves
from gdt.pipeline.loader import Batch
from gdt.pipeline.tree import BatchPlan
from gdt.train.kernels import Kernels
from gdt.train.learner import Learner
from gdt.train.loss import gdt_loss
from gdt.train.settings import SIZES, Optimization, Pretrain

VIDEOS = 16
WAYS = ("whole batch", "groups of one direction", "groups")
_TESTED = 8
"""Batches of the evaluation."""


def settings(row: str, way: str, seed: int, steps: int) -> Pretrain:
    """A small network without dropout, so that losses in training and evaluation are comparable."""
    base = SIZES["tiny"][1]
    network = replace(
        base.network, stem=8, stem_middle=8, widths=(8, 16), audio_stem=8, audio_widths=(8, 16), hidden=32,
        embedding=16, dropout=0.0,
    )  # fmt: skip
    return replace(
        base, preset=row, seed=seed, batch_size=VIDEOS, steps=steps, epochs=0, device="cpu", threads=1,
        precision="float32", clip=Clip(frames=4, size=8, mel_frames=16), network=network,
        bn_group_size=0 if way == "whole batch" else VIDEOS,
        optimization=Optimization("sgd", lr=0.02, base_batch_size=0, warmup_epochs=0),
    )  # fmt: skip


def sort_by_direction(plan: BatchPlan) -> BatchPlan:
    """The plan sorted so that every group of `VIDEOS` leaves is all forward or all reversed."""
    return plan.take(np.lexsort((plan.columns["video"], plan.columns["time_reversal"], plan.leaves.modality)))


def batch_of(plan: BatchPlan, run: Pretrain, noise: np.random.Generator) -> Batch:
    """A batch of videos that differ in texture and spectrum, and grow brighter and louder at the same pace."""
    own = np.random.default_rng(run.seed)
    textures = own.normal(size=(VIDEOS, 3, 1, run.clip.size, run.clip.size))
    spectra = own.normal(size=(VIDEOS, 1, BANDS, 1))

    def ramp(positions: np.ndarray) -> np.ndarray:
        return 4 * positions / positions.max() - 2

    def made(leaves: Leaves, content: np.ndarray, rising: np.ndarray) -> Tensor:
        x = content[leaves.video] + rising
        return torch.from_numpy(x + noise.normal(size=x.shape)).float()

    video, audio = plan.leaves.of("video"), plan.leaves.of("audio")
    inputs = {
        "video": made(video, textures, ramp(video.frames)[:, None, :, None, None]),
        "audio": made(audio, spectra, ramp(audio.mel_frames)[:, None, None, :]),
    }
    table = {name: torch.from_numpy(values) for name, values in plan.columns.items()}
    return Batch(inputs, table, table, plan, [])


def train(row: str, way: str, seed: int, steps: int) -> dict[str, float]:
    """Train a row in one way; measure the last ten losses, and new batches in evaluation.

    "right": how often an embedding lies closer to that of the other modality in its own direction than to the reversed
    one. "moved": distance between embeddings of a clip and of its reverse; small if row f succeeds.
    """
    torch.set_num_threads(1)
    run = settings(row, way, seed, steps)
    tree, noise = tree_of(run), np.random.default_rng([1, seed])
    learner = Learner(run, tree, DATA, torch.device("cpu"), 1, Kernels(torch.float32))
    losses, tested, right, moved = [], [], [], []
    for step in range(steps):
        plan = tree.plan(step, 0)
        plan = sort_by_direction(plan) if way == WAYS[1] else take_rank(plan, 0, 1, run.bn_group_size or 0)
        losses.append(float(learner.step(step, batch_of(plan, run, noise)).loss))
    model = learner.model.eval()
    for step in range(steps, steps + _TESTED):
        batch = batch_of(sort_by_direction(tree.plan(step, 0)), run, noise)
        with torch.no_grad():
            z = model(batch.inputs)
        tested.append(float(gdt_loss(z, batch.table, run.composition.factors, run.temperature)))
        by_leaf = z.view(2, 2, VIDEOS, -1)  # [modality, direction, video, d]
        similar = torch.einsum("rvd,svd->vrs", by_leaf[0], by_leaf[1])
        for other in (similar.flip(2), similar.flip(1)):
            closer = similar.diagonal(dim1=1, dim2=2) > other.diagonal(dim1=1, dim2=2)
            right.append(float(closer.float().mean()))
        moved.append(float((by_leaf[:, 0] - by_leaf[:, 1]).norm(dim=-1).mean()))
    found = {"loss in training": losses[-10:], "loss in evaluation": tested, "right": right, "moved": moved}
    return {f"{way}, {name}": float(np.mean(values)) for name, values in found.items()}


def main(rows: tuple[str, ...] = ("i", "f"), steps: int = 200, seeds: int = 3) -> None:
    """Measure what batch-norm groups that hold one direction of time cost.

    Args:
        rows: Rows of table 1 with video, audio and both directions.
        steps: Steps of training.
        seeds: Number of seeds.

    """
    print(machine(), flush=True)
    for row in rows:
        found = Measurements()
        for seed in range(seeds):
            for name, values in in_turns(1, *(partial(train, row, way, seed, steps) for way in WAYS)).items():
                found.setdefault(name, []).extend(values)
        print(f"\nrow {row}, {VIDEOS} videos, {steps} steps, {seeds} seeds")
        for name in found:
            found.show(name, "")


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.groups"))
