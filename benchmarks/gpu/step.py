"""The step alone: a fixed batch of bytes on the device, no loader; the same for every way to compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu import ideas
from benchmarks.gpu.device import Processor
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.table import Values
from benchmarks.gpu.ways import Way
from gdt.pipeline.colour import Pixels, affine
from gdt.pipeline.groups import shared
from gdt.pipeline.loader import Batch
from gdt.pipeline.transformations.base import Source
from gdt.pipeline.tree import BatchPlan, Tree
from gdt.train.cost import arithmetic, memory, peak
from gdt.train.kernels import Kernels
from gdt.train.models.gdt import GDT
from gdt.train.settings import Optimization, Pretrain
from gdt.train.step import Figures, Gradient, How

BANDS = 40
_MEAN, _STD = np.full(3, 110.0), np.full(3, 60.0)
_AGREE = 1e-3
"""Of features computed in float32 in two ways, relative to their length."""


def run_settings(settings: Settings, row: str, leaves: int) -> Pretrain:
    """Of pretraining on a row of table 1 with so many video clips per step."""
    base = Pretrain(
        preset=row, clip=settings.clip, augmentation=settings.augmentation, network=settings.network, epochs=0,
        steps=1000, device=settings.device, optimization=Optimization(rate=1e-3, per_videos=0, warmup_epochs=0),
        threads=settings.threads or int(settings.device == "cpu"),
    )  # fmt: skip
    return replace(base, videos_per_batch=leaves // base.composition.clips_per_video)


def tree_of(run: Pretrain) -> Tree:
    """Over videos that nobody reads, each of some seconds."""
    videos = run.videos_per_batch
    return Tree(run.composition, Source(np.arange(videos), np.full(videos, 300), 30), run.clip, BANDS, run.seed)


def batch_of(plan: BatchPlan, run: Pretrain, device: torch.device) -> Batch:
    """The batch of a plan with bytes instead of videos: those of a leaf are the same on any number of ranks."""
    clip, leaf = run.clip, plan.columns["leaf"]
    inputs: dict[str, Any] = {}
    for modality in plan.leaves.modalities:
        own = plan.leaves.of(modality)
        numbers = leaf[plan.leaves.modality == (0 if modality == "video" else 1)]
        drawn = [np.random.Generator(np.random.Philox([n, run.seed])) for n in numbers.tolist()]
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
    table = {name: torch.from_numpy(values).to(device) for name, values in plan.columns.items()}
    joined = table
    if plan.joined is not None:
        joined = {name: torch.from_numpy(values).to(device) for name, values in plan.joined.items()}
    return Batch(inputs=inputs, table=table, joined=joined, plan=plan, damaged=[])


class Step:
    """Gradient and update of one batch, computed in some way."""

    def __init__(
        self, way: Way, run: Pretrain, device: Processor, batch: Batch | None = None, norm_leaves: int = 0,
        chunk_leaves: int = 0,
    ) -> None:  # fmt: skip
        """`batch` is that of the first plan, which is made where it is not given."""
        if not way.one_forward:
            norm_leaves = run.videos_per_batch  # the first leaf of every video is a group, and so on
        composition, numbers = run.composition, torch.bfloat16 if way.bfloat16 else torch.float32
        if run.threads:
            torch.set_num_threads(run.threads)
        model = model_of(way, run, device)
        if way.side_stream:
            ideas.side_stream(model, device)
        Kernels(numbers, way.channels_last, way.compiled).apply(model)
        how = How(composition.factors, run.temperature, run.seed, numbers, norm_leaves, chunk_leaves)
        self.batch = batch or batch_of(shared(tree_of(run).plan(0, 0), 0, 1, norm_leaves), run, device.device)
        self.model, self.gradient = model, Gradient(model, how, say=_raise)
        o = run.optimization
        self.optimizer = torch.optim.SGD(
            model.parameters(), o.rate, o.momentum, weight_decay=o.weight_decay, fused=way.fused
        )
        self.way, self._device = way, device
        self._compute: Callable[[], Figures] = lambda: self.gradient(0, self.batch)

    def __call__(self) -> Figures:
        with self._device.numbers(self.way.cudnn_benchmark):
            figures = self._compute()
            self.optimizer.step()
        return figures

    def settle(self, steps: int) -> float:
        """Take the steps in which kernels are chosen; returns the loss of the first."""
        losses = [self().loss.clone() for _ in range(max(1, steps))]
        if self.way.graph:
            with self._device.numbers(self.way.cudnn_benchmark):
                self._compute = self._device.graph(self._compute)
        return float(losses[0])


def _raise(text: str) -> None:
    """Where chunks would become smaller, a measurement would be of another way."""
    raise MemoryError(text)


def model_of(way: Way, run: Pretrain, device: Processor) -> GDT:
    """A model with the same weights for every way, not yet laid out."""
    torch.manual_seed(run.seed)
    model = GDT(run.network, run.composition.modalities).to(device.device)
    model.video_network.base.recomputed = way.recomputed
    if way.padded:
        ideas.padded(model)
    if way.folded:
        ideas.folded(model)
    return model


def measured(step: Step, run: Pretrain, device: Processor, settings: Settings) -> Values:
    """Clips/s, share of the peak, memory, and the losses of the first step and of the last.

    `GiB counted` is what planning a run counts of activations alone, before anything is compiled.
    """
    loss = step.settle(settings.warm)
    last: list[Figures] = []

    def take() -> None:
        last[:] = [step()]

    seconds = device.seconds(take, settings.steps)
    clips = run.videos_per_batch * run.composition.clips_per_video
    found: dict[str, float | str] = {"clips/s": clips / seconds, "ms": 1000 * seconds}
    stated, what = peak(device.device), (run.network, run.clip, BANDS, run.composition.modalities)
    if stated is not None:
        found["MFU %"] = 100 * clips * sum(arithmetic(*what).values()) / seconds / stated
    of_leaf = memory(*what, torch.bfloat16 if step.way.bfloat16 else torch.float32, step.way.recomputed)
    found |= {"GiB": device.most(), "GiB counted": clips * sum(of_leaf.values()) / 2**30}
    return found | {"loss": loss, "last loss": float(last[0].loss)}


def disagreement(way: Way, run: Pretrain, device: Processor, leaves: int = 4) -> float:
    """By how much the features of some leaves differ from those of the plain model, relative to their length, both in
    full float32. Raises AssertionError where that is more than rounding.
    """
    batch = batch_of(shared(tree_of(run).plan(0, 0), 0, 1), run, device.device)
    clips: Tensor = batch.inputs["video"].part(0, leaves).floats()
    with device.numbers(benchmark=False, exact=True), torch.no_grad():
        plain, other = (model_of(one, run, device).train().video_network(clips) for one in (Way(), way))
    off = float((plain - other).norm() / plain.norm())
    if not off < _AGREE:
        raise AssertionError(f"its features differ by {off:.2g} of their length from those of the plain network")
    return off


def plain_step(run: Pretrain, device: Processor) -> Callable[[], float]:
    """The published code's way: float32, contiguous clips, eager, every branch and every view on its own, an optimiser
    that goes from parameter to parameter, and a host that waits for the loss of every step.

    It gets what torch gives everyone, TF32 and cuDNN's benchmark, and clips that are floats on the device already.
    """
    way = Way(bfloat16=False, channels_last=False, compiled=False, fused=False, one_forward=False)
    step = Step(way, run, device)
    step.optimizer = torch.optim.SGD(
        step.model.parameters(), run.optimization.rate, run.optimization.momentum, foreach=False,
        weight_decay=run.optimization.weight_decay,
    )  # fmt: skip
    step.batch.inputs["video"] = step.batch.inputs["video"].floats().contiguous()
    return lambda: step().loss.item()
