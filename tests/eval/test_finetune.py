"""Finetuning: recipes, training and test clips, accuracy, resuming."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdt.common.errors import UserError
from gdt.eval.export import Export, export
from gdt.eval.finetune import METRICS, PAPER, PUBLISHED, STATE, WEIGHTS, Finetuning, Recipe, Task, short_side_note, tiny
from gdt.pipeline.clips import ResizedCrop, uniform_clips
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.sources.video import regions
from gdt.pipeline.transformations.augmentation import EVALUATION
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import GDT
from gdt.train.settings import SIZES, Pretrain
from gdt.train.weights import KINETICS
from tests.pipeline.test_loader import CPU

TINY = SIZES["tiny"][1]


@pytest.fixture
def trained() -> Trained:
    torch.manual_seed(0)
    return Trained(GDT(TINY.network, ["video"]).eval(), TINY, 600, KINETICS)


@pytest.fixture
def task(index: Index) -> Task:
    train, test = (np.flatnonzero(index.split == split) for split in ("train", "test"))
    classes = sorted(set(index.label))
    train_target, test_target = (np.array([classes.index(x) for x in index.label[v]]) for v in (train, test))
    return Task(index, train, train_target, test, test_target, tuple(classes))


def quick(trained: Trained, recipe: Recipe = PAPER, **changes: Any) -> Recipe:
    return replace(tiny(recipe, trained).spread_over(3), **({"clips": 2, "test_clips": 2, "batch": 16} | changes))


@pytest.mark.parametrize(
    ("recipe", "clip", "own", "rates"),
    [
        (PAPER, (32, 1, 112), (1.0, 1.0, False, 1, "softmax", True, False, None, 160),
         {0: 0.0025, 1: 0.01125, 2: 0.02, 5.99: 0.02, 6: 1e-3, 9.99: 1e-3, 10: 5e-5, 11.99: 5e-5}),
        (PUBLISHED, (32, 1, 128),
         (0.1, 0.8, True, 3, "logits", False, True, ResizedCrop((0.14, 1.0), (3 / 4, 4 / 3)), 240),
         {0: 0.0025, 0.99: 0.0025, 1: 0.01125, 1.99: 0.01125, 2: 0.02, 6.99: 0.02, 7: 1e-3, 10.99: 1e-3, 11: 5e-5}),
    ],
)  # fmt: skip
def test_recipes_have_the_numbers_of_the_paper_and_of_its_code(
    recipe: Recipe, clip: tuple[int, ...], own: tuple[Any, ...], rates: dict[float, float]
) -> None:
    assert (recipe.epochs, recipe.batch, recipe.weight_decay, recipe.momentum) == (12, 32, 5e-3, 0.9)
    assert (recipe.clips, recipe.test_clips) == (10, 10)
    assert (recipe.clip.frames, recipe.clip.stride, recipe.clip.size) == clip
    r, a = recipe, recipe.augmentation
    assert (
        r.trunk_share, r.jittered, r.late_jitter, r.test_crops, r.averaged, r.to_the_end, r.augmented_test, r.resized,
        r.short_side,
    ) == own  # fmt: skip
    assert recipe is PAPER or (a.brightness, a.contrast, a.saturation, a.hue, a.flip) == (0.4, 0.4, 0.4, 0.0, 0.5)
    assert a.scale == (128, 160)
    assert [recipe.lr_at(epoch) for epoch in rates] == pytest.approx([*rates.values()])


def test_schedules_scale_with_the_epochs() -> None:
    half = PAPER.spread_over(6)
    assert half.epochs == 6
    for epoch in (0, 0.5, 1, 2.9, 3, 4.9, 5, 5.9):
        assert half.lr_at(epoch) == pytest.approx(PAPER.lr_at(2 * epoch))
    # the published recipe rises at the start of an epoch, whatever their number
    for epochs, rates in ((24, [0.0025, 0.006875, 0.01125, 0.015625, 0.02]), (6, [0.0025, 0.02]), (3, [0.0025, 0.02])):
        scaled = PUBLISHED.spread_over(epochs)
        assert [scaled.lr_at(epoch) for epoch in range(len(rates))] == pytest.approx(rates)
        assert [scaled.lr_at(epoch + 0.9) for epoch in range(len(rates) - 1)] == pytest.approx(rates[:-1])


@pytest.mark.parametrize(("recipe", "share"), [(PAPER, 1.0), (PUBLISHED, 0.1)])
def test_learning_rates_of_trunk_and_classifier_follow_the_recipe(
    trained: Trained, task: Task, tmp_path: Path, recipe: Recipe, share: float
) -> None:
    run = Finetuning(trained, task, quick(trained, recipe), 0, 1, CPU, tmp_path)
    seen = []
    run.optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append([group["lr"] for group in optimizer.param_groups])
    )
    run.run("x")
    assert len(seen) == 3 * run.batches == 9
    expected = [run.recipe.lr_at(step / 3) for step in range(9)]
    assert [head for head, _ in seen] == pytest.approx(expected)
    assert [trunk for _, trunk in seen] == pytest.approx([share * rate for rate in expected])
    of_head, of_trunk = ({id(p) for p in group["params"]} for group in run.optimizer.param_groups)
    assert of_head == {id(p) for p in run.model.classifier.parameters()}
    assert of_head | of_trunk == {id(p) for p in run.model.parameters()} and not of_head & of_trunk
    assert all(group["weight_decay"] == 5e-3 and group["momentum"] == 0.9 for group in run.optimizer.param_groups)


@pytest.mark.parametrize("recipe", [PAPER, PUBLISHED])
def test_clips_follow_the_recipe(trained: Trained, task: Task, tmp_path: Path, recipe: Recipe) -> None:
    """At full size; plans are cheap."""
    run = Finetuning(trained, task, recipe, 0, 1, CPU, tmp_path)
    assert run.batches == len(task.train) * 10 // 32
    plan = next(run.plans(0))
    assert plan.leaves.frames.shape == (32, 32) and (np.diff(plan.leaves.frames, axis=1) == 1).all()
    assert ("height" in plan.leaves.draws) == (recipe is PUBLISHED)
    test = next(run.test_plans())
    assert (test.leaves.video[: 10 * recipe.test_crops] == task.test[0]).all()
    assert (test.leaves.video[10 * recipe.test_crops] == task.test[1]) or len(test) == 10 * recipe.test_crops
    assert set(test.leaves.draws["left"].tolist()) == ({0.5} if recipe is PAPER else {0.0, 0.5, 1.0})
    assert (test.leaves.draws["top"] == 0.5).all() and not test.leaves.draws["flip"].any()
    assert "height" not in test.leaves.draws
    for leaves in (plan.leaves, test.leaves):
        assert ("late_jitter" in leaves.draws) == (recipe is PUBLISHED)
    if recipe is PAPER:
        assert all((test.leaves.draws[name] == 1).all() for name in ("brightness", "contrast", "saturation"))
        assert set(test.leaves.draws["scale"].tolist()) == {128.0}


def test_test_clips_of_the_published_recipe_have_random_scales_and_jitter(
    trained: Trained, task: Task, tmp_path: Path
) -> None:
    """Each crop of each clip its own, the same in every run of a seed."""
    many = replace(task, test=np.repeat(task.test, 30), test_target=np.repeat(task.test_target, 30))
    run, again, other = (Finetuning(trained, many, PUBLISHED, seed, 1, CPU, tmp_path) for seed in (0, 0, 1))
    plans = list(run.test_plans())
    draws = {name: np.concatenate([plan.leaves.draws[name] for plan in plans]) for name in plans[0].leaves.draws}
    n = len(draws["scale"])
    assert n == 12 * 30 * 30
    counts = np.bincount(draws["scale"].astype(int))
    assert len(counts) == 161 and not counts[:128].any()
    assert np.abs(counts[128:] - n / 33).max() < 4.5 * np.sqrt(n / 33)
    jittered = draws["brightness"] != 1
    assert abs(jittered.mean() - 0.8) < 4 * np.sqrt(0.16 / n)
    for name in ("brightness", "contrast", "saturation"):
        factors = draws[name][jittered]
        assert factors.min() < 0.61 and factors.max() > 1.39 and abs(factors.std() - 0.4 / np.sqrt(3)) < 0.01
    for plan, same, different in zip(plans, again.test_plans(), other.test_plans(), strict=True):
        assert np.array_equal(plan.leaves.draws["scale"], same.leaves.draws["scale"])
        assert not np.array_equal(plan.leaves.draws["scale"], different.leaves.draws["scale"])


@pytest.mark.parametrize(("short_side", "share"), [(240, 0.12), (160, 0.55)])
def test_smaller_stored_frames_enlarge_more_crops_of_the_published_recipe(
    trained: Trained, task: Task, tmp_path: Path, short_side: int, share: float
) -> None:
    """Of videos of 240x320, such as those of UCF-101."""
    n = len(task.index)
    sizes = {"height": np.full(n, short_side), "width": np.full(n, short_side * 4 // 3)}
    stored = replace(task.index, **sizes, settings=task.index.settings | {"short_side": short_side})
    recipe = replace(PUBLISHED, clips=250, batch=3000)
    run = Finetuning(trained, replace(task, index=stored), recipe, 0, 1, CPU, tmp_path)
    begin, end = regions(stored, next(run.plans(0)).leaves, recipe.clip.size)
    pixels = np.abs(end - begin).prod(1)
    assert (pixels < 128**2).mean() == pytest.approx(share, abs=0.03)
    note = short_side_note(recipe, stored)
    assert not note if short_side == 240 else "short side of 160 pixels; the recipe is meant for 240" in note
    assert not short_side_note(PAPER, stored) and not short_side_note(tiny(PUBLISHED, trained), stored)
    # videos that are smaller themselves
    assert not short_side_note(recipe, replace(stored, height=np.full(n, 120)))


@pytest.mark.parametrize("averaged", ["softmax", "logits"])
def test_accuracy_equals_counting(trained: Trained, task: Task, tmp_path: Path, averaged: Any) -> None:
    recipe = quick(trained, test_crops=2, test_clips=3, averaged=averaged)
    run = Finetuning(trained, task, recipe, 0, 0, CPU, tmp_path)
    torch.manual_seed(1)
    torch.nn.init.normal_(run.model.classifier.weight, std=3.0)
    found = run.test("x")
    augmentation = replace(EVALUATION, scale=(36, 36))
    run.model.eval()
    right = right_clips = 0
    for video, target in zip(task.test, task.test_target, strict=True):
        plan = uniform_clips(task.index, np.array([video]), 3, TINY.clip, augmentation, 2)
        with Loader(task.index, [plan], TINY.clip, CPU, Loading(threads=1)) as loader, torch.inference_mode():
            (batch,) = loader
            scores = run.model(batch.inputs["video"].floats()).double().numpy()
        right_clips += (scores.argmax(1) == target).sum()
        share = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) if averaged == "softmax" else scores
        right += share.mean(0).argmax() == target
    assert found["finetune top-1"].value == pytest.approx(100 * right / 12) and found["finetune top-1"].answers == 12
    assert found["clip top-1"].value == pytest.approx(100 * right_clips / 72)
    assert (
        found["finetune top-1"].chance == pytest.approx(100 / 3) and "finetune top-5" not in found
    )  # of three classes


def test_a_stopped_run_resumes_with_the_same_numbers(
    trained: Trained, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = quick(trained)
    whole = Finetuning(trained, task, recipe, 5, 2, CPU, tmp_path / "whole").run("x")
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    real = Finetuning._save_epoch

    def stopped(self: Finetuning, epoch: int, loss: float, right: int) -> None:
        real(self, epoch, loss, right)
        if epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Finetuning, "_save_epoch", stopped)
    with pytest.raises(KeyboardInterrupt):
        Finetuning(trained, task, recipe, 5, 2, CPU, tmp_path / "cut").run("x")
    assert (tmp_path / "cut" / STATE).is_file()
    monkeypatch.setattr(Finetuning, "_save_epoch", real)
    again = Finetuning(trained, task, recipe, 5, 2, CPU, tmp_path / "cut")
    steps = []
    again.optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    assert again.run("x") == whole and len(steps) == again.batches  # one epoch of three
    one, other = (torch.load(tmp_path / name / WEIGHTS, weights_only=True) for name in ("whole", "cut"))
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    assert (tmp_path / "whole" / METRICS).read_text() == (tmp_path / "cut" / METRICS).read_text()
    assert [json.loads(line)["epoch"] for line in (tmp_path / "cut" / METRICS).read_text().splitlines()] == [0, 1, 2]
    assert one["learned"] == ["", 2] and one["classes"] == list(task.classes)
    # the pretrained weights are not changed
    assert all(torch.equal(value, before[name]) for name, value in trained.model.state_dict().items())
    # a run that was stopped in its test is not trained again
    monkeypatch.setattr(Finetuning, "test", lambda self, name: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Finetuning(trained, task, recipe, 5, 2, CPU, tmp_path / "tested").run("x")
    monkeypatch.undo()
    last = Finetuning(trained, task, recipe, 5, 2, CPU, tmp_path / "tested")
    last.optimizer.register_step_pre_hook(lambda *_: pytest.fail("it is trained again"))
    assert last.run("x") == whole


@pytest.mark.parametrize("how", ["cut", "bit", "other recipe"])
def test_a_run_starts_again_if_its_state_does_not_fit(
    trained: Trained, task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    recipe = quick(trained)
    whole = Finetuning(trained, task, recipe, 0, 0, CPU, tmp_path / "whole").run("x")
    other = Finetuning(trained, task, replace(recipe, lr=0.01) if how == "other recipe" else recipe, 0, 0, CPU,
                       tmp_path / "run")  # fmt: skip
    (tmp_path / "run").mkdir()
    other._save_epoch(0, 1.0, 0)
    path = tmp_path / "run" / STATE
    data = bytearray(path.read_bytes())
    if how == "bit":
        data[len(data) // 2] ^= 4
    path.write_bytes(data[: len(data) // 2] if how == "cut" else data)
    assert Finetuning(trained, task, recipe, 0, 0, CPU, tmp_path / "run").run("x") == whole
    assert "is damaged or of another recipe; finetuning restarts" in capsys.readouterr().out


def test_finetuned_weights_keep_their_metadata_when_read_and_exported(
    trained: Trained, task: Task, tmp_path: Path
) -> None:
    run = Finetuning(trained, replace(task, data="0a1b"), quick(trained), 0, 2, CPU, tmp_path)
    run._save_weights()
    export(Export(tmp_path / WEIGHTS, tmp_path / "x.safetensors"))
    for path in (tmp_path / WEIGHTS, tmp_path / "x.safetensors"):
        again = load_model(path)
        assert again.settings == TINY and again.statistics.to_numbers() == KINETICS.to_numbers()
        assert again.foreign.finetuned_on == ("0a1b", 2) and again.foreign.kind == "finetuned weights"
        weights = run.model.base.state_dict()
        found = again.model.video_network.base.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in found.items())


def test_models_and_videos_that_cannot_be_finetuned_are_refused(trained: Trained, task: Task, tmp_path: Path) -> None:
    few = replace(task, train=task.train[:5], train_target=task.train_target[:5])
    sound = Trained(GDT(TINY.network, ["audio"]), Pretrain(), 0, KINETICS)
    for model, of, message in (
        (trained, few, "5 training videos give fewer clips than a batch of 32; set --clips-per-epoch to 7"),
        (sound, task, "trained without video"),
    ):
        with pytest.raises(UserError, match=message):
            Finetuning(model, of, quick(trained, batch=32), 0, 0, CPU, tmp_path)
