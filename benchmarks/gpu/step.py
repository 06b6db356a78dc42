"""The step alone: a fixed batch of bytes on the device, no loader; the same for every way to compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.convolutions import folded, padded
from benchmarks.gpu.device import as_graph, most_held, numbers, on_gpu, seconds, side_stream
from benchmarks.gpu.settings import IDEAS, PLAIN, PREDICTED, Settings, Way
from benchmarks.gpu.table import Rows, Values, read
from gdt.pipeline.colour import Pixels, affine
from gdt.pipeline.groups import take_rank
from gdt.pipeline.loader import Batch
from gdt.pipeline.transformations.base import Source
from gdt.pipeline.tree import BatchPlan, Tree
from gdt.train.cost import memory, peak_flops, training_flops
from gdt.train.kernels import Kernels, candidate_kernels, choose_kernels
from gdt.train.models.gdt import GDT
from gdt.train.settings import Optimization, Pretrain
from gdt.train.step import Gradient, Metrics, StepConfig

BANDS = 40
_MEAN, _STD = np.full(3, 110.0), np.full(3, 60.0)
_ALIKE = 0.05
"""Share by which the loss of another way to compute the same may be off after a few steps; bfloat16 rounds."""


def run_settings(settings: Settings, row: str, leaves: int) -> Pretrain:
    """Of pretraining on a row of table 1 with so many video clips per step."""
    size = settings.size
    base = Pretrain(
        preset=row, clip=size.clip, augmentation=size.augmentation, network=size.network, epochs=0, steps=1000,
        device=settings.device, optimization=Optimization(lr=1e-3, base_batch_size=0, warmup_epochs=0),
        threads=int(settings.device == "cpu"),
    )  # fmt: skip
    return replace(base, batch_size=leaves // base.composition.clips_per_video)


def tree_of(run: Pretrain) -> Tree:
    """Over videos that nobody reads, each of some seconds."""
    videos = run.batch_size
    return Tree(run.composition, Source(np.arange(videos), np.full(videos, 300), 30), run.clip, BANDS, run.seed)


def batch_of(plan: BatchPlan, run: Pretrain, device: torch.device) -> Batch:
    """The batch of a plan with bytes instead of videos: those of a leaf are the same on any number of ranks."""
    clip, inputs = run.clip, dict[str, Any]()
    for modality in plan.leaves.modalities:
        own = plan.leaves.of(modality)
        leaves = plan.columns["leaf"][plan.leaves.modality == (0 if modality == "video" else 1)]
        drawn = [np.random.Generator(np.random.Philox([leaf, run.seed])) for leaf in leaves.tolist()]
        if modality == "video":
            shape = (clip.frames, clip.size, clip.size, 3)
            crops = np.stack([one.integers(0, 256, shape, np.uint8) for one in drawn])
            # something that tells clips apart, as the mean over so many random pixels does not
            crops = crops // 4 + np.stack([one.integers(0, 192, (1, 1, 1, 3), np.uint8) for one in drawn])
            matrix, offset = affine(own.draws, _MEAN, _STD)
            inputs[modality] = Pixels(torch.from_numpy(crops).to(device), matrix.to(device), offset.to(device))
        else:
            bank = np.stack([one.standard_normal((1, BANDS, clip.mel_frames), np.float32) for one in drawn])
            inputs[modality] = torch.from_numpy(bank).to(device)
    table, joined = (
        {name: torch.from_numpy(values).to(device) for name, values in columns.items()}
        for columns in (plan.columns, plan.joined or plan.columns)
    )
    return Batch(inputs=inputs, table=table, joined=joined, plan=plan, damaged=[])


class Step:
    """Gradient and update of one batch, computed in some way."""

    def __init__(self, way: Way, run: Pretrain, device: torch.device) -> None:
        # the first leaf of every video is a group, and so on
        bn_group_size = 0 if way.one_forward else run.batch_size
        micro_batch_size = bn_group_size if way.cached else 0
        precision = torch.bfloat16 if way.bfloat16 else torch.float32
        if run.threads:
            torch.set_num_threads(run.threads)
        model = model_of(way, run, device)
        if way.side_stream:
            side_stream(model, device)
        Kernels(precision, way.channels_last, way.compiled).apply(model)
        how = StepConfig(run.composition.factors, run.temperature, run.seed, precision, bn_group_size, micro_batch_size)
        self.batch = batch_of(take_rank(tree_of(run).plan(0, 0), 0, 1, bn_group_size), run, device)
        if not way.bytes:
            self.batch.inputs["video"] = self.batch.inputs["video"].floats().contiguous()
        self.model, self.gradient = model, Gradient(model, how, say=_raise)
        o = run.optimization
        self.optimizer = torch.optim.SGD(
            model.parameters(), o.lr, o.momentum, weight_decay=o.weight_decay, fused=way.fused
        )
        self.way, self._device = way, device
        self._compute: Callable[[], Metrics] = lambda: self.gradient(0, self.batch)

    def __call__(self) -> Metrics:
        with numbers(self.way.cudnn_benchmark):
            metrics = self._compute()
            self.optimizer.step()
        if self.way.waits:
            metrics.loss.item()
        return metrics

    def settle(self, steps: int) -> float:
        """Take the steps in which kernels are chosen; returns the loss of the first."""
        losses = [self().loss.clone() for _ in range(max(1, steps))]
        if self.way.graph:
            with numbers(self.way.cudnn_benchmark):
                self._compute = as_graph(self._compute, self._device)
        return float(losses[0])


def _raise(text: str) -> None:
    """Where chunks would become smaller, a measurement would be of another way."""
    raise MemoryError(text)


def model_of(way: Way, run: Pretrain, device: torch.device) -> GDT:
    """A model with the same weights for every way, not yet laid out."""
    torch.manual_seed(run.seed)
    model = GDT(run.network, run.composition.modalities).to(device)
    model.video_network.base.recomputed = way.recomputed
    if way.padded:
        padded(model)
    if way.folded:
        folded(model)
    return model


def measured(settings: Settings, device: torch.device, way: Way, leaves: int) -> dict[str, float | str]:
    """Clips/s, share of the peak, memory, and the losses of the first step and of the last.

    `GiB counted` is what planning a run counts of activations alone, before anything is compiled.
    """
    run = run_settings(settings, "l", leaves)
    step = Step(way, run, device)
    loss = step.settle(settings.size.warm)
    last: list[Metrics] = []

    def take() -> None:
        last[:] = [step()]

    taken = seconds(take, settings.size.steps, device)
    found: dict[str, float | str] = {"clips/s": leaves / taken, "ms": 1000 * taken}
    stated, what = peak_flops(device), (run.network, run.clip, BANDS, run.composition.modalities)
    if stated is not None:
        found["MFU %"] = 100 * leaves * sum(training_flops(*what).values()) / taken / stated
    of_leaf = memory(*what, torch.bfloat16 if way.bfloat16 else torch.float32, way.recomputed)
    found |= {"GiB": most_held(device), "GiB counted": leaves * sum(of_leaf.values()) / 2**30}
    return found | {"loss": loss, "last loss": float(last[0].loss)}


# ----------------------------------------------------------------------------------------------------------- sections


def kernels(settings: Settings, rows: Rows, device: torch.device) -> None:
    """What a run would compute with, found as a run finds it."""

    def chosen() -> Values:
        said: list[str] = []
        cuda, size = on_gpu(device), settings.size
        candidates = candidate_kernels(torch.bfloat16 if cuda else torch.float32, compiled=cuda)
        with numbers(benchmark=True):
            found = choose_kernels(candidates, size.network, size.clip, size.leaves_of_ideas, 0, device, said.append)
        kept = {"bfloat16": found.precision == torch.bfloat16, "channels_last": found.channels_last,
                "compiled": found.compiled}  # fmt: skip
        return {name: "yes" if value else "no" for name, value in kept.items()} | {"is": "; ".join(said)}

    rows("the first that are right", chosen)


def best(settings: Settings, rows: Rows) -> Way:
    """The way that training computes: with the kernels that were found right, or what comes first where none were."""
    for row in read(rows.path):
        if row.section == "kernels" and row.values:
            names = ("bfloat16", "channels_last", "compiled")
            return Way(**{name: row.values[name] == "yes" for name in names})
    return Way() if settings.device == "cuda" else Way(bfloat16=False, compiled=False)


def step(settings: Settings, rows: Rows, device: torch.device) -> None:
    """The best way over sizes, and the plain way."""
    way, size, found = best(settings, rows), settings.size, dict[int, float]()
    for leaves in size.leaves:
        if values := rows(f"best way, {leaves} clips", partial(measured, settings, device, way, leaves)):
            found[leaves] = float(values["clips/s"])
    most = size.leaves_of_ideas
    for leaves in sorted({most, *(n for n in size.leaves if n < most)}, reverse=True):
        if plain := rows(f"plain way, {leaves} clips", partial(measured, settings, device, PLAIN, leaves)):
            break
    if plain and found:
        fastest = max(found, key=lambda n: found[n])
        gain = {n: found[n] / float(plain["clips/s"]) for n in (fastest, leaves) if n in found}
        told = f"{PREDICTED['step']}; best way of {fastest} clips, the fastest, over plain way of {leaves}"
        gains = {"gain predicted": PREDICTED["plain"], "gain measured": gain[fastest], "is": told}
        rows("best over plain way", lambda: gains | {"at equal clips": gain.get(leaves, "not measured")})


def ideas(settings: Settings, rows: Rows, device: torch.device) -> None:
    """Each idea switched over on its own, from the best way."""
    base, leaves = best(settings, rows), settings.size.leaves_of_ideas
    best_way = partial(measured, settings, device, base, leaves)
    first = rows(f"best way, {leaves} clips", best_way)

    def measure(name: str) -> Values:
        idea, way = IDEAS[name], IDEAS[name].of(base)
        if way == base:
            return {"is": "the best way here does so already"}
        said: dict[str, float | str] = {"gain predicted": idea.predicted}
        found = measured(settings, device, way, leaves)
        if first:
            said["gain measured"] = float(found["clips/s"]) / float(first["clips/s"])
            off = abs(float(found["last loss"]) / float(first["last loss"]) - 1)
            if idea.same and not off < _ALIKE:
                said["is"] = f"NOT THE SAME: its last loss is off by {100 * off:.0f} %"
        return said | found | {"why": idea.why}

    for name in settings.ideas:
        rows(name, partial(measure, name))
    rows("best way, once more", best_way)  # how far the first one can be relied on
