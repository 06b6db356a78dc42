"""The training step alone, on a fixed batch on the device, in different ways."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu.convolutions import fold_convolutions
from benchmarks.gpu.device import as_graph, cudnn_settings, on_gpu, peak_memory, seconds, synchronize, use_side_stream
from benchmarks.gpu.settings import IDEAS, PLAIN, PREDICTED, Settings, Way
from benchmarks.gpu.table import Rows, Values, read
from gdt.pipeline.colour import Pixels, affine
from gdt.pipeline.groups import take_rank
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Statistics
from gdt.pipeline.transformations.base import Source
from gdt.pipeline.tree import BatchPlan, Tree
from gdt.train.checkpoint import Data
from gdt.train.cost import memory, peak_flops, training_flops
from gdt.train.kernels import Kernels, candidate_kernels
from gdt.train.metrics import mark
from gdt.train.models.gdt import GDT
from gdt.train.padding import pad_widths
from gdt.train.settings import Optimization, Pretrain
from gdt.train.step import Gradient, Metrics, StepConfig
from gdt.train.trial import Trial, choose_kernels

BANDS = 40
DATA = Data("drawn", Statistics.from_numbers([110.0] * 3 + [60.0] * 3 + [0.0, 1.0], "benchmark"))
"""A data set that is never read."""
_TOLERANCE = 0.05
"""Relative difference of the loss after a few steps between ways that compute the same, with bfloat16."""


def run_settings(settings: Settings, row: str, leaves: int) -> Pretrain:
    """Settings of pretraining a row of table 1 with this many video clips per step."""
    size = settings.size
    base = Pretrain(
        preset=row, clip=size.clip, augmentation=size.augmentation, network=size.network, epochs=0, steps=1000,
        device=settings.device, optimization=Optimization(lr=1e-3, base_batch_size=0, warmup_epochs=0),
        threads=int(settings.device == "cpu"),
    )  # fmt: skip
    return replace(base, batch_size=leaves // base.composition.clips_per_video)


def tree_of(run: Pretrain) -> Tree:
    """The sampling tree over videos that are never read."""
    videos = run.composition.batch_size
    return Tree(run.composition, Source(np.arange(videos), np.full(videos, 300), 30), run.clip, BANDS, run.seed)


def batch_of(plan: BatchPlan, run: Pretrain, device: torch.device) -> Batch:
    """The batch of a plan with random bytes; those of a leaf are the same on any number of ranks."""
    clip, inputs = run.clip, dict[str, Any]()
    for modality in plan.leaves.modalities:
        own = plan.leaves.of(modality)
        leaves = plan.columns["leaf"][plan.leaves.modality == MODALITIES.index(modality)]
        rngs = [np.random.Generator(np.random.Philox([leaf, run.seed])) for leaf in leaves.tolist()]
        if modality == "video":
            shape = (clip.frames, clip.size, clip.size, 3)
            crops = np.stack([one.integers(0, 256, shape, np.uint8) for one in rngs])
            # a colour per clip tells clips apart, as the mean over random pixels does not
            crops = crops // 4 + np.stack([one.integers(0, 192, (1, 1, 1, 3), np.uint8) for one in rngs])
            matrix, offset = affine(own.draws, DATA.statistics.pixel_mean, DATA.statistics.pixel_std)
            inputs[modality] = Pixels(torch.from_numpy(crops).to(device), matrix.to(device), offset.to(device))
        else:
            bank = np.stack([one.standard_normal((1, BANDS, clip.mel_frames), np.float32) for one in rngs])
            inputs[modality] = torch.from_numpy(bank).to(device)
    table, joined = (
        {name: torch.from_numpy(values).to(device) for name, values in columns.items()}
        for columns in (plan.columns, plan.joined or plan.columns)
    )
    return Batch(inputs=inputs, table=table, joined=joined, plan=plan, damaged=[])


class Step:
    """Gradient and update on one batch, computed in one way."""

    def __init__(self, way: Way, run: Pretrain, device: torch.device) -> None:
        # a group is one leaf of every video
        bn_group_size = 0 if way.one_forward else run.composition.batch_size
        micro_batch_size = bn_group_size if way.cached else 0
        precision = torch.bfloat16 if way.bfloat16 else torch.float32
        if run.threads:
            torch.set_num_threads(run.threads)
        model = model_of(way, run, device)
        if way.side_stream:
            use_side_stream(model, device)
        Kernels(precision, way.channels_last, way.compiled, way.budget).apply(model)
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
        with cudnn_settings(self.way.cudnn_benchmark):
            metrics = self._compute()
            self.optimizer.step()
        if self.way.waits:
            metrics.loss.item()
        return metrics

    def warm_up(self, steps: int) -> float:
        """Warm up; return the loss of the first step."""
        losses = [self().loss.clone() for _ in range(max(1, steps))]
        if self.way.graph:
            with cudnn_settings(self.way.cudnn_benchmark):
                self._compute = as_graph(self._compute, self._device)
        return float(losses[0])

    def trunk_times(self) -> tuple[float, float]:
        """Milliseconds of the video trunk's forward pass, and from the start of its backward pass to the step's end."""
        marks: list[Any] = []

        def note(*given: Any) -> None:
            marks.append(mark(self._device))

        def done(trunk: nn.Module, given: Any, features: Tensor) -> None:
            note()
            features.register_hook(note)

        trunk = self.model.video_network
        hooks = trunk.register_forward_pre_hook(note), trunk.register_forward_hook(done)
        with cudnn_settings(self.way.cudnn_benchmark):
            self.gradient(0, self.batch)
        note()
        for hook in hooks:
            hook.remove()
        begun, embedded, back, end = marks
        end.synchronize()
        return begun.elapsed_time(embedded), back.elapsed_time(end)


def _raise(text: str) -> None:
    """Fail; training would halve its micro-batches instead, and another configuration would be timed."""
    raise MemoryError(text)


def model_of(way: Way, run: Pretrain, device: torch.device) -> GDT:
    """A model with the same weights for every way."""
    torch.manual_seed(run.seed)
    model = GDT(run.network, run.composition.modalities).to(device)
    model.video_network.base.recomputed = way.recomputed
    if way.padded:
        pad_widths(model)
    if way.folded:
        fold_convolutions(model)
    return model


def measure(settings: Settings, device: torch.device, way: Way, leaves: int) -> dict[str, float | str]:
    """Clips/s, MFU, memory, and the losses of the first and the last step.

    `GiB counted` is the planned memory of activations alone, before compilation.
    """
    run = run_settings(settings, "l", leaves)
    step = Step(way, run, device)
    began = time.perf_counter()
    loss = step.warm_up(settings.size.warm)
    warm = time.perf_counter() - began
    last: list[Metrics] = []

    def take_step() -> None:
        last[:] = [step()]

    taken = seconds(take_step, settings.size.steps, device)
    values: dict[str, float | str] = {"clips/s": leaves / taken, "ms": 1000 * taken}
    stated, what = peak_flops(device), (run.network, run.clip, BANDS, run.composition.modalities)
    if stated is not None:
        values["MFU %"] = 100 * leaves * sum(training_flops(*what).values()) / taken / stated
    of_leaf = memory(*what, torch.bfloat16 if way.bfloat16 else torch.float32, way.recomputed, way.budget < 1)
    values |= {"GiB": peak_memory(device), "GiB counted": leaves * sum(one.peak for one in of_leaf.values()) / 2**30}
    if way.one_forward and not way.graph:
        values["forward ms"], values["backward ms"] = step.trunk_times()
    return values | {"warm-up s": warm, "loss": loss, "last loss": float(last[0].loss)}


def longest_kernels(settings: Settings, device: torch.device, way: Way) -> Values:
    """The 20 longest kernels of one step, a line each: milliseconds, share of the step, calls, name."""
    step = Step(way, run_settings(settings, "l", settings.size.leaves_of_ideas), device)
    step.warm_up(settings.size.warm)
    activity = torch.profiler.ProfilerActivity.CUDA if on_gpu(device) else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profile:
        step()
        synchronize(device)
    taken = {one: one.self_device_time_total if on_gpu(device) else one.self_cpu_time_total
             for one in profile.key_averages()}  # fmt: skip
    total = sum(taken.values())
    longest = sorted(taken, key=lambda one: -taken[one])[:20]
    lines = [
        f"{taken[one] / 1000:.2f} ms, {100 * taken[one] / total:.1f} %, {one.count} x {one.key[:100]}"
        for one in longest
    ]
    return {"ms": total / 1000, "is": "\n".join(lines)}


# ----------------------------------------------------------------------------------------------------------- sections


def kernels(settings: Settings, rows: Rows, device: torch.device) -> None:
    """The kernels that a run would choose here."""

    def choose() -> Values:
        notes: list[str] = []
        cuda, size = on_gpu(device), settings.size
        candidates = candidate_kernels(torch.bfloat16 if cuda else torch.float32, compiled=cuda)
        trial = Trial(size.network, size.clip, size.leaves_of_ideas)
        with cudnn_settings(benchmark=True):
            found = choose_kernels(candidates, trial, device, notes.append)
        kept = {"bfloat16": found.precision == torch.bfloat16, "channels_last": found.channels_last,
                "compiled": found.compiled, "padded": found.padded}  # fmt: skip
        return {name: "yes" if value else "no" for name, value in kept.items()} | {"is": "; ".join(notes)}

    rows("chosen: the first with correct results", choose)


def best_way(settings: Settings, rows: Rows) -> Way:
    """The way that training computes: the kernels of the section `kernels`, or the default."""
    for row in read(rows.path):
        if row.section == "kernels" and row.values:
            names = ("bfloat16", "channels_last", "compiled", "padded")
            return Way(**{name: row.values[name] == "yes" for name in names})
    return Way() if settings.device == "cuda" else Way(bfloat16=False, compiled=False)


def step(settings: Settings, rows: Rows, device: torch.device) -> None:
    """The best way over batch sizes, and the plain way."""
    way, size, found = best_way(settings, rows), settings.size, dict[int, float]()
    for leaves in size.leaves:
        if values := rows(f"best way, {leaves} clips", partial(measure, settings, device, way, leaves)):
            found[leaves] = float(values["clips/s"])
    most = size.leaves_of_ideas
    for leaves in sorted({most, *(n for n in size.leaves if n < most)}, reverse=True):
        if plain := rows(f"plain way, {leaves} clips", partial(measure, settings, device, PLAIN, leaves)):
            break
    if plain and found:
        fastest = max(found, key=lambda n: found[n])
        gain = {n: found[n] / float(plain["clips/s"]) for n in (fastest, leaves) if n in found}
        note = f"{PREDICTED['step']}; best way with {fastest} clips, the fastest, over plain way with {leaves}"
        gains = {"gain predicted": PREDICTED["plain"], "gain measured": gain[fastest], "is": note}
        rows("best over plain way", lambda: gains | {"at equal clips": gain.get(leaves, "not measured")})
    rows.part("kernels")("20 longest", partial(longest_kernels, settings, device, way))


def ideas(settings: Settings, rows: Rows, device: torch.device) -> None:
    """Each idea alone, as a change of the best way."""
    base, leaves = best_way(settings, rows), settings.size.leaves_of_ideas
    measure_base = partial(measure, settings, device, base, leaves)
    first = rows(f"best way, {leaves} clips", measure_base)

    def measure_idea(name: str) -> Values:
        idea, way = IDEAS[name], IDEAS[name].apply(base)
        if way == base:
            return {"is": "the best way does this already"}
        gain: dict[str, float | str] = {"gain predicted": idea.predicted}
        found = measure(settings, device, way, leaves)
        if first:
            gain["gain measured"] = float(found["clips/s"]) / float(first["clips/s"])
            off = abs(float(found["last loss"]) / float(first["last loss"]) - 1)
            if idea.same and not off < _TOLERANCE:
                gain["is"] = f"NOT THE SAME: its last loss is off by {100 * off:.0f} %"
        return gain | found | {"why": idea.why}

    for name in settings.ideas:
        rows(name, partial(measure_idea, name))
    rows("best way, once more", measure_base)  # shows the noise
