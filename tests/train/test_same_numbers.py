"""The same losses and gradients on any number of ranks and with any micro-batches, with dropout and batch norm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gdt.pipeline.colour import Pixels
from gdt.pipeline.groups import take_rank
from gdt.pipeline.leaves import MODALITIES, Clip
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.text import Words
from gdt.pipeline.transformations.base import Source
from gdt.pipeline.tree import Tree
from gdt.train.distributed import leave_without_teardown
from gdt.train.learner import Learner
from gdt.train.settings import SIZES, Optimization, Pretrain
from tests.train.drawn import draw
from tests.train.test_checkpoint import DATA

VIDEOS, STEPS = 8, 3
PRESETS = ("a", "e", "l", "m")
Curve = dict[str, torch.Tensor]


class Way(NamedTuple):
    """A way to compute a run."""

    bn_group_size: int
    micro_batch_size: int = 0
    recompute: bool = False


WAYS = {
    1: [Way(0), Way(0, recompute=True), Way(2), Way(2, 4), Way(2, 2), Way(2, 2, recompute=True)],
    2: [Way(0), Way(0, recompute=True), Way(2), Way(2, 2)],
    4: [Way(0), Way(2), Way(2, 2)],
}
"""Ways by number of ranks."""


def settings(shards: Path, preset: str, way: Way) -> Pretrain:
    base = SIZES["tiny"]
    return replace(
        base, preset=preset, shards=shards, batch_size=VIDEOS, steps=STEPS, device="cpu", threads=1,
        precision="float32", clip=Clip(frames=4, stride=6, size=16), bn_group_size=way.bn_group_size,
        network=replace(base.network, stem=4, stem_middle=4, widths=(4, 8), audio_stem=4, audio_widths=(4, 8),
                        hidden=32, embedding=16, dropout=0.3),
        loading=replace(base.loading, damaged="skip" if preset == "m" else "stop"),
        augmentation=replace(base.augmentation, scale=(20, 28)), micro_batch_size=way.micro_batch_size,
        optimization=Optimization("sgd", lr=1e-3, base_batch_size=0, warmup_epochs=0),
    )  # fmt: skip


Leaves = dict[str, tuple[torch.Tensor, ...]]
"""Inputs of the leaves of a batch by modality, in the order of the tree."""


def loaded(shards: Path, preset: str) -> list[Leaves]:
    """Leaves of every step."""
    asked, index = settings(shards, preset, Way(0)), Index.open(shards)
    found = []
    with Loader(index, asked.tree(index).plans(0, STEPS), asked.clip, torch.device("cpu")) as loader:
        for batch in loader:
            pixels = batch.inputs["video"]
            leaves = {"video": tuple(x.clone() for x in (pixels.crops, pixels.matrix, pixels.offset))}
            if "audio" in batch.inputs:
                leaves["audio"] = (batch.inputs["audio"].double(),)
            found.append(leaves)
    return found


def curve(shards: Path, steps: list[Leaves], preset: str, way: Way, rank: int = 0, world: int = 1) -> Curve:
    """Losses and gradients of every step and the final running statistics, in float64.

    In float32, rounding would flip the sign of some inputs of ReLUs, and gradients would jump.
    """
    asked = settings(shards, preset, way)
    tree = asked.tree(Index.open(shards))
    trainer = Learner(asked, tree, DATA, torch.device("cpu"), world)
    trainer.model.double()
    trainer.model.video_network.base.recomputed = 2 if way.recompute else 0
    found: dict[str, list[torch.Tensor]] = {"loss": [], "top1": [], "gradient": []}
    for step, (plan, leaves) in enumerate(zip(tree.plans(0, STEPS), steps, strict=True)):
        part, inputs = take_rank(plan, rank, world, way.bn_group_size), {}
        for modality, held in leaves.items():
            of_modality = np.flatnonzero(plan.leaves.modality == MODALITIES.index(modality))
            chosen = np.searchsorted(of_modality, part.columns["leaf"][np.isin(part.columns["leaf"], of_modality)])
            rows = tuple(values[chosen] for values in held)
            inputs[modality] = Pixels(*rows) if modality == "video" else rows[0]
        table, joined = (
            {name: torch.from_numpy(values) for name, values in columns.items()}
            for columns in (part.columns, part.joined or part.columns)
        )
        usable = None
        if preset == "m":
            usable = (part.columns["video"] % 3 > 0) & (part.columns["leaf"] % 5 > 0)
            table["usable"] = torch.from_numpy(usable.astype(np.int64))
        metrics = trainer.step(step, Batch(inputs, table, joined, part, [], usable))
        found["loss"].append(metrics.loss)
        found["top1"].append(metrics.top1)
        found["gradient"].append(torch.cat([p.grad.flatten() for p in trainer.model.parameters()]))
    state = trainer.model.state_dict()
    running = torch.cat([value.flatten() for name, value in state.items() if "running" in name])
    counted = torch.stack([value for name, value in state.items() if "tracked" in name])
    return {name: torch.stack(values) for name, values in found.items()} | {"running": running, "counted": counted}


def _rank(rank: int, folder: str) -> None:
    """Run this process as one of 4 ranks, then of 2, then alone; imports take longer than the runs."""
    torch.set_num_threads(1)
    steps = torch.load(f"{folder}/steps.pt", weights_only=True)
    for world in sorted(WAYS, reverse=True):
        if rank < world:
            if world > 1:
                dist.init_process_group("gloo", init_method=f"file://{folder}/{world}", rank=rank, world_size=world)
            every = [(preset, way) for preset, way in product(PRESETS, WAYS[world])]
            curves = [curve(Path(folder, "shards"), steps[preset], preset, way, rank, world) for preset, way in every]
            torch.save(curves, f"{folder}/{world}-{rank}.pt")
            if world > 1:
                dist.barrier()
                dist.destroy_process_group()
    leave_without_teardown()


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int, Way, int], Curve]:
    """Curves by preset, number of ranks, way and rank."""
    folder = tmp_path_factory.mktemp("drawn")
    shards, _ = draw(folder, VIDEOS + 1)
    torch.save({preset: loaded(shards, preset) for preset in PRESETS}, folder / "steps.pt")
    found = {}
    mp.spawn(_rank, (str(folder),), nprocs=max(WAYS))
    for world in WAYS:
        for rank in range(world):
            every = product(PRESETS, WAYS[world])
            several = torch.load(folder / f"{world}-{rank}.pt", weights_only=True)
            for (preset, way), one in zip(every, several, strict=True):
                found[preset, world, way, rank] = one
    return found


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("bn_group_size", [0, 2])
def test_ranks_and_micro_batches_do_not_change_results(
    curves: dict[tuple[str, int, Way, int], Curve], preset: str, bn_group_size: int
) -> None:
    one = curves[preset, 1, Way(bn_group_size), 0]
    compared = 0
    for (name, world, way, rank), other in curves.items():
        if name == preset and way.bn_group_size == bn_group_size:
            compared += 1
            difference = (other["loss"] - one["loss"]).abs().max(), (other["gradient"] - one["gradient"]).abs().max()
            assert max(difference) < 1e-8, (world, way, rank, difference)
            assert torch.allclose(other["running"], one["running"], rtol=1e-8, atol=1e-10), (world, way, rank)
            assert torch.equal(other["counted"], torch.full_like(one["counted"], STEPS))
            assert torch.equal(other["top1"], one["top1"])
    assert compared == (2 + 2 * 2 + 4 if bn_group_size == 0 else 4 + 2 * 2 + 2 * 4)


@pytest.mark.parametrize("way", [Way(0), Way(4), Way(4, 4, recompute=True)])
def test_unusable_leaves_are_left_out_of_batch_norm(way: Way) -> None:
    torch.set_num_threads(1)
    asked = settings(Path("unused"), "three", way)
    asked = replace(asked, network=replace(asked.network, word_dimensions=5))
    tree = Tree(asked.composition, Source(np.arange(VIDEOS), np.full(VIDEOS, 40), 30), asked.clip, 40)
    part = take_rank(tree.plan(0, 0), 0, 1, way.bn_group_size)
    table = {name: torch.from_numpy(values) for name, values in part.columns.items()}
    modality, n = part.leaves.modality, len(part) // 3
    some = part.columns["leaf"] % 5 > 0
    some[np.flatnonzero(modality == 2)[:4]] = False  # also all leaves of a group

    def step(usable: np.ndarray | None, factor: float) -> dict[str, torch.Tensor]:
        """Loss, gradients and running statistics; the content of `some` is multiplied."""
        learner = Learner(asked, tree, DATA, torch.device("cpu"))
        learner.model.double()
        learner.model.video_network.base.recomputed = 2 if way.recompute else 0
        draw, clip = torch.Generator().manual_seed(0), asked.clip
        shapes = (3, clip.frames, clip.size, clip.size), (1, 40, clip.mel_frames), (clip.words, 5)
        video, audio, text = (torch.randn(n, *shape, generator=draw, dtype=torch.float64) for shape in shapes)
        for number, values in enumerate((video, audio, text)):
            values[torch.from_numpy(~some[modality == number])] *= factor
        mask = torch.ones(n, clip.words, dtype=torch.bool)
        inputs = {"video": video, "audio": audio, "text": Words(text, mask, np.zeros((n, clip.words), np.int64))}
        column = {} if usable is None else {"usable": torch.from_numpy(usable.astype(np.int64))}
        loss = learner.gradient(0, Batch(inputs, table | column, table, part, [], usable)).loss
        gradients = {name: p.grad for name, p in learner.model.named_parameters() if p.grad is not None}
        return gradients | {"loss": loss} | {f"state {name}": v for name, v in learner.model.state_dict().items()}

    one, other = step(some, 1), step(some, -3)
    for name in one:
        assert torch.allclose(one[name], other[name], rtol=1e-10, atol=1e-12), name
    every, plain = step(np.ones(len(part), bool), 1), step(None, 1)
    assert all(torch.equal(every[name], plain[name]) for name in every)
    assert not torch.isclose(every["loss"], one["loss"])


def _unusable(
    preset: str, way: Way, unusable: Callable[[np.ndarray], np.ndarray], **sizes: Any
) -> tuple[Learner, Batch]:
    """A learner and a batch of 8 videos whose leaves at `unusable`(modality of each) are unusable stand-ins."""
    torch.set_num_threads(1)
    asked = replace(settings(Path("unused"), preset, way), **sizes)
    asked = replace(asked, network=replace(asked.network, word_dimensions=5))
    asked = replace(asked, loading=replace(asked.loading, damaged="skip"))
    tree = Tree(asked.composition, Source(np.arange(VIDEOS), np.full(VIDEOS, 40), 30), asked.clip, 40)
    part = take_rank(tree.plan(0, 0), 0, 1, way.bn_group_size)
    usable, clip, draw = np.ones(len(part), bool), asked.clip, torch.Generator().manual_seed(0)
    usable[unusable(part.leaves.modality)] = False
    shapes = {
        "video": (3, clip.frames, clip.size, clip.size),
        "audio": (1, 40, clip.mel_frames),
        "text": (clip.words, 5),
    }
    inputs: dict[str, Any] = {}
    for modality in asked.composition.modalities:
        own = part.leaves.modality == MODALITIES.index(modality)
        values = torch.randn(own.sum(), *shapes[modality], generator=draw)
        values[torch.from_numpy(~usable[own])] = 0.2
        inputs[modality] = values
    if "text" in inputs:
        n, words = inputs["text"].shape[:2]
        mask = torch.ones(n, words, dtype=torch.bool)
        inputs["text"] = Words(inputs["text"].double(), mask, np.zeros((n, words), np.int64))
    table = {name: torch.from_numpy(values) for name, values in part.columns.items()}
    column = {"usable": torch.from_numpy(usable.astype(np.int64))}
    learner = Learner(asked, tree, DATA, torch.device("cpu"))
    return learner, Batch(inputs, table | column, table, part, [], usable)


@pytest.mark.parametrize("bn_group_size", [2, 4, 0])
def test_gradients_are_finite_if_no_leaf_of_a_group_counts(bn_group_size: int) -> None:
    tiny = SIZES["tiny"]
    sizes = {"network": tiny.network, "augmentation": tiny.augmentation, "clip": Clip(frames=4, stride=4, size=32)}
    learner, batch = _unusable(
        "e", Way(bn_group_size), lambda m: np.flatnonzero(m == 0)[: bn_group_size or None], **sizes
    )
    before = {name: value.clone() for name, value in learner.model.state_dict().items() if "running" in name}
    learner.gradient(0, batch)
    gradients = {name: p.grad for name, p in learner.model.named_parameters()}
    assert all(g is not None and g.isfinite().all() for g in gradients.values())
    state = learner.model.state_dict()
    assert all(state[name].isfinite().all() for name in before)
    if not bn_group_size:  # no video counts, so no term of the loss
        assert not any(g.any() for g in gradients.values())
        assert all(torch.equal(state[name], before[name]) for name in before if name.startswith(("video", "mlp_v")))


@pytest.mark.parametrize(("recomputed", "modality", "passes"), [(0, 2, 1), (2, 2, 1), (0, 0, 1), (2, 0, 2)])
def test_leaves_are_embedded_twice_only_if_recomputation_needs_the_mask(
    recomputed: int, modality: int, passes: int
) -> None:
    found = []
    for way in (Way(4), Way(4, 4)):
        learner, batch = _unusable("text-b", way, lambda m: np.flatnonzero(m == modality)[:1])
        model = learner.model.double()
        batch.inputs["video"] = batch.inputs["video"].double()
        model.video_network.base.recomputed = recomputed
        calls, embed = Counter[str](), model.embed
        model.embed = lambda name, *rest, calls=calls, embed=embed: (calls.update([name]), embed(name, *rest))[1]
        learner.gradient(0, batch)
        found.append((calls, torch.cat([p.grad.flatten() for p in model.parameters()])))
    (once, one), (twice, other) = found
    groups = batch.inputs["video"].shape[0] // 4
    assert once == {"video": passes * groups, "text": passes * groups}
    assert twice == {"video": 2 * groups, "text": 2 * groups}
    assert torch.allclose(one, other, rtol=1e-9, atol=1e-12) and one.any()
