"""The gradient of a step in groups, against a direct computation, and over ranks."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdt.common.errors import UserError
from gdt.pipeline.groups import take_rank
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.train.experiment import compose, fitted, fitted_clip, resolve
from gdt.train.health import effective_rank
from gdt.train.loss import gdt_loss
from gdt.train.models.gdt import GDT
from gdt.train.settings import SIZES, RunSettings
from gdt.train.step import Gradient
from tests.conftest import few
from tests.golden import subject


def first_batch(run: RunSettings) -> Batch:
    index = Index.open(run.shard_folder)
    experiment = resolve(run, index, torch.device("cpu"))
    plan = take_rank(experiment.tree.plan(0, 0), 0, 1, run.group_size)
    with Loader(index, [plan], experiment.inputs, torch.device("cpu"), words=experiment.words) as loader:
        return next(iter(loader))


def model_of(run: RunSettings, dropout: float = 0.0) -> GDT:
    torch.manual_seed(0)
    words = 10 if "text" in compose(run).modalities else 0
    network = replace(run.network, dropout=dropout, word_dimensions=words)
    return GDT(network, compose(run).modalities).double()


def gradient(run: RunSettings, batch: Batch, dropout: float = 0.0, cache: Any = "on", room: int = 0) -> tuple[GDT, Any]:
    """A model after the gradient of a batch, and the metrics; `room`: groups whose activations fit into memory."""
    model = model_of(run, dropout)
    step = Gradient(model, replace(run, seed=3, gradient_cache=cache), compose(run).factors)
    step.memory.held, step.memory.room = dict.fromkeys(batch.inputs, 1.0), float(room)
    return model, step(10, batch)  # a step that measures the rank


def gradients(model: GDT) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", ["a", "l", "three"])
def test_a_step_is_that_of_a_plain_loop_over_groups(drawn: tuple[Path, Path], name: str) -> None:
    """Loss, gradient, rank and running statistics, without dropout; leaves without words do not count."""
    run = subject.in_float64(name, *drawn, group_size=4)
    batch = first_batch(run)
    if name == "three":
        batch.table["usable"][-35:] = 0
    model, metrics = gradient(run, batch)
    plain = model_of(run).train()
    parts, means = [], []
    stem = plain.video_network.base.stem[1]
    stem.momentum = 1.0
    for modality, inputs in batch.inputs.items():
        for first in range(0, len(inputs), 4):
            parts.append(plain.embed(modality, inputs[first : first + 4]))
            if modality == "video":
                means.append(stem.running_mean.clone())
    loss = gdt_loss(torch.cat(parts), batch.table, compose(run).factors, run.temperature)
    loss.backward()
    assert metrics.loss == pytest.approx(loss.item(), rel=1e-12)
    assert torch.allclose(gradients(model), gradients(plain), rtol=1e-9, atol=1e-12)
    sizes, usable = [*map(len, batch.inputs.values())], batch.table.get("usable", torch.ones(len(batch.plan))).bool()
    kept = [part[used] for part, used in zip(torch.cat(parts).detach().split(sizes), usable.split(sizes), strict=True)]
    assert metrics.rank == pytest.approx(min(map(effective_rank, kept)), rel=1e-9)
    assert metrics.gradient_norm == pytest.approx(gradients(plain).norm().item(), rel=1e-9)
    moved = model.video_network.base.stem[1]
    assert torch.allclose(moved.running_mean, 0.1 * torch.stack(means).mean(0), rtol=1e-9)
    assert moved.num_batches_tracked == 1 and moved.momentum == 0.1
    next(plain.parameters()).data.mul_(math.nan)
    assert math.isnan(Gradient(plain, run, compose(run).factors)(0, batch).loss)  # which has no rank


@pytest.mark.parametrize("ways", few([(("on", 0),), (("auto", 0),), (("auto", 3),), (("auto", 99),)]))
@pytest.mark.parametrize("name", few(["e", "three"]))
def test_cached_gradients_are_those_of_one_pass_with_dropout(
    drawn: tuple[Path, Path], name: str, ways: tuple[str, int]
) -> None:
    run = subject.in_float64(name, *drawn, group_size=3)
    batch = first_batch(run)
    (cached, one), (kept, other) = gradient(run, batch, 0.5, *ways), gradient(run, batch, 0.5, "off")
    assert one == pytest.approx(other, rel=1e-12)
    assert torch.allclose(gradients(cached), gradients(kept), rtol=1e-9, atol=1e-13)
    states = zip(cached.state_dict().items(), kept.state_dict().values(), strict=True)
    assert all(torch.allclose(value, same) for (_, value), same in states)


def test_dropout_differs_between_groups_steps_and_seeds(drawn: tuple[Path, Path]) -> None:
    run = subject.in_float64("e", *drawn, group_size=6)
    batch, losses = first_batch(run), []
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        learn = Gradient(model_of(run, 0.5), replace(run, seed=seed), compose(run).factors)
        losses.append(learn(step, batch).loss)
        groups = list(learn._groups(batch))
        assert [group.number for group in groups] == [0, 1, 2, 3]
        with torch.no_grad():  # the same leaves with the seed of another group
            one, other = (learn._embed(step, groups[0]._replace(number=number)) for number in (0, 1))
        assert not torch.allclose(one, other)
    assert len(set(losses)) == 3


@pytest.mark.parametrize("world", few([2, 4]))
def test_ranks_have_the_numbers_of_one_process_with_dropout(
    drawn: tuple[Path, Path], tmp_path: Path, world: int
) -> None:
    """Half of the clips have no words, unequally many on each rank."""
    run = subject.in_float64("three", *drawn, group_size=3)
    run = replace(run, network=replace(run.network, dropout=0.3), clip=replace(run.clip, words_seconds=0.35))
    alone = subject.train(replace(run, out=tmp_path / "alone"))
    (together,) = subject.train_on_ranks([replace(run, out=tmp_path / "run")], tmp_path, world)
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-10)
    assert together["moved"] == pytest.approx(alone["moved"], rel=1e-10)
    one, other = (torch.load(tmp_path / name / "checkpoint.pt")["model"] for name in ("alone", "run"))
    assert all(torch.allclose(one[name], other[name], rtol=1e-9, atol=1e-12) for name in one if "running_" in name)


@pytest.mark.parametrize(
    ("videos", "memory", "expected"),
    [(600, 80, (512, 64)), (600, 24, (512, 32)), (600, 16, (512, 16)), (600, 0, (512, 64)), (100, 80, (64, 64)),
     (48, 80, (48, 48)), (48, 24, (48, 24)), (5, 80, (5, 5))],
)  # fmt: skip
def test_batch_and_group_are_lowered_to_videos_and_memory(videos: int, memory: int, expected: tuple[int, int]) -> None:
    assert fitted(SIZES["paper"], 0, None, videos, round(memory * 1e9)) == expected
    assert fitted(SIZES["paper"], 0, 0, videos, 0) == (min(512, videos), 0)
    assert fitted(SIZES["tiny"], 0, None, videos, 0) == (min(16, videos), 0)


@pytest.mark.parametrize(
    ("fps", "seconds", "expected"),
    [
        (30, 3, (16, 4, 199)),
        (25, 3, (16, 3, 199)),
        (10, 3, (16, 1, 199)),
        (30, 1.2, (16, 2, 107)),
        (5, 1.2, (5, 1, 107)),
    ],
)
def test_a_clip_fits_the_frame_rate_and_the_videos(
    index: Index, fps: int, seconds: float, expected: tuple[int, int, int]
) -> None:
    shorter = np.where(np.arange(len(index)) == 0, 0.1, seconds)  # one of many
    videos = replace(index, fps=fps, frame_count=np.int64(shorter * fps), mel_count=np.int64(shorter * 100))
    clip = fitted_clip(SIZES["small"], videos)
    assert (clip.frames, clip.stride, clip.mel_frames) == expected
    mine = replace(SIZES["small"], clip=replace(SIZES["small"].clip, stride=7, size=32))
    assert fitted_clip(mine, videos) == replace(clip, stride=7, size=32)
    assert fitted_clip(SIZES["small"], index, earlier=RunSettings.of(mine)) == replace(mine.clip, size=48)


@pytest.mark.parametrize("memory", [16, 24, 80])
def test_any_number_of_videos_has_a_default_batch(memory: int) -> None:
    for videos in range(2, 700):
        batch, group = fitted(SIZES["paper"], 0, None, videos, round(memory * 1e9))
        assert videos >= batch > videos - 64 or batch == 512
        assert batch % group == 0 and (8 <= group <= 64 or group == batch)


def test_a_batch_without_groups_is_refused_with_those_that_have_some() -> None:
    with pytest.raises(UserError, match=r"97 videos do not make groups of 8 to 64; set --batch-size to 96 or 98, or "):
        fitted(SIZES["paper"], 97, None, 100, 0)
    with pytest.raises(UserError, match=r"groups of 8 to 32; set --batch-size to 52, or --group-size to 0"):
        fitted(SIZES["paper"], 53, None, 53, round(24e9))
