"""Finetuning: recipe, training and test clips, accuracy, resuming."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gdt.common.errors import UserError
from gdt.eval.export import export
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.settings import Downstream, Export
from gdt.eval.subjects import FINETUNED, EvalSet, Subject
from gdt.eval.training import EPOCHS, Classifier, Finetuning, Recipe
from gdt.pipeline.clips import uniform_clips
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import EVALUATION
from gdt.train.checkpoint import load_model
from gdt.train.models.gdt import GDT
from gdt.train.record import Record
from gdt.train.settings import SIZES, RunSettings
from gdt.train.trained import Trained
from gdt.train.weights import KINETICS
from tests.pipeline.test_loader import CPU

TINY = RunSettings.of(SIZES["tiny"])
Task = tuple[Index, Fold]


@pytest.fixture
def trained() -> Trained:
    torch.manual_seed(0)
    return Trained(GDT(TINY.network, ["video"]).eval(), Record(TINY, KINETICS, step=600))


@pytest.fixture
def task(index: Index) -> Task:
    """Shards and a fold."""
    train, test = (np.flatnonzero(index.split == split) for split in ("train", "test"))
    return index, Fold(2, train, test, index.label[train].astype(str), index.label[test].astype(str))


def finetuning(trained: Trained, task: Task, recipe: Recipe, folder: Path, seed: int = 0) -> Finetuning:
    """A finetuning in a folder."""
    index, fold = task
    subject, eval_set = Subject("mine", "mine.pt", trained, False), EvalSet("mine", index, "0a1b", "test")
    job = Job(subject, PROTOCOLS["finetune"], fold, Downstream(seed=seed), eval_set, None, CPU, folder)
    run = Finetuning(job, fold, recipe)
    run.path = folder / FINETUNED
    return run


def quick(trained: Trained, **changes: Any) -> Recipe:
    recipe = Finetuning.recipe_of(Downstream(epochs=3, clips_per_epoch=2, clips=2), trained)
    return replace(recipe, **({"batch": 16} | changes))


def test_the_recipe_has_the_numbers_of_the_paper() -> None:
    recipe, a = Recipe(), Recipe().augmentation
    assert (recipe.epochs, recipe.batch, recipe.weight_decay, recipe.momentum) == (12, 32, 5e-3, 0.9)
    assert (recipe.clips, recipe.test_clips) == (10, 10)
    assert (recipe.clip.frames, recipe.clip.stride, recipe.clip.size) == (32, 1, 112)
    assert (a.brightness, a.contrast, a.saturation, a.hue, a.flip) == (0.4, 0.4, 0.4, 0.0, 0.5)
    assert a.scale == (128, 160)
    rates = {0: 0.0025, 1: 0.01125, 2: 0.02, 5.99: 0.02, 6: 1e-3, 9.99: 1e-3, 10: 5e-5, 11.99: 5e-5}
    assert [recipe.lr_at(epoch) for epoch in rates] == pytest.approx([*rates.values()])
    half = recipe.spread_over(6)
    assert half.epochs == 6 and [half.lr_at(epoch / 2) for epoch in rates] == pytest.approx([*rates.values()])


def test_clips_follow_the_recipe(trained: Trained, task: Task, tmp_path: Path) -> None:
    """At full size; plans are cheap."""
    run = finetuning(trained, task, Recipe(), tmp_path)
    assert run.batches == len(task[1].gallery) * 10 // 32
    plan = next(run.plans(0))
    assert plan.leaves.frames.shape == (32, 32) and (np.diff(plan.leaves.frames, axis=1) == 1).all()
    test = next(run.test_plans()).leaves
    assert (test.video[:10] == task[1].queries[0]).all() and test.video[10] == task[1].queries[1]
    neutral = {"left": 0.5, "top": 0.5, "flip": 0, "brightness": 1, "contrast": 1, "saturation": 1, "scale": 128}
    assert all((test.draws[name] == value).all() for name, value in neutral.items())


def test_accuracy_equals_counting(trained: Trained, task: Task, tmp_path: Path) -> None:
    run = finetuning(trained, task, quick(trained, test_clips=3), tmp_path)
    torch.manual_seed(1)
    torch.nn.init.normal_(run.model.classifier.weight, std=3.0)
    found = run.test()
    augmentation = replace(EVALUATION, scale=(36, 36))
    run.model.eval()
    right = right_clips = 0
    for video, target in zip(task[1].queries, run.test_target, strict=True):
        plan = uniform_clips(run.index, np.array([video]), 3, TINY.clip, augmentation)
        with Loader(run.index, [plan], run.inputs, CPU) as loader, torch.inference_mode():
            (batch,) = loader
            scores = run.model(batch.inputs["video"].floats()).double().numpy()
        right_clips += (scores.argmax(1) == target).sum()
        share = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        right += share.mean(0).argmax() == target
    of_videos, of_clips = found["finetune top-1"], found["clip top-1"]
    assert of_videos.metric.value == pytest.approx(100 * right / 12) and of_videos.metric.answers == 12
    assert of_clips.metric.value == pytest.approx(100 * right_clips / 36)
    assert of_videos.answers.sum() == right and of_clips.answers.sum() == pytest.approx(right_clips / 3)
    assert of_videos.metric.chance == pytest.approx(100 / 3) and "finetune top-5" not in found  # of three classes


class Dropping(Classifier):
    """With dropout before the classifier."""

    def __init__(self, base: nn.Module, dim: int, classes: int) -> None:
        super().__init__(base, dim, classes)
        self.classifier.register_forward_pre_hook(lambda part, given: functional.dropout(given[0], 0.3, part.training))


def test_a_stopped_run_resumes_with_the_same_numbers(
    trained: Trained, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gdt.eval.training.Classifier", Dropping)
    recipe = quick(trained)
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    uninterrupted = finetuning(trained, task, recipe, tmp_path / "whole", seed=5)
    rates = []
    uninterrupted.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    whole = uninterrupted.run()
    assert rates == pytest.approx([recipe.lr_at(step / 3) for step in range(9)])
    (group,) = uninterrupted.optimizer.param_groups
    assert {id(p) for p in group["params"]} == {id(p) for p in uninterrupted.model.parameters()}
    assert group["weight_decay"] == 5e-3 and group["momentum"] == 0.9
    real = Finetuning._save_epoch

    def stopped(self: Finetuning, epoch: int, loss: float, right: int) -> None:
        real(self, epoch, loss, right)
        if epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Finetuning, "_save_epoch", stopped)
    with pytest.raises(KeyboardInterrupt):
        finetuning(trained, task, recipe, tmp_path / "cut", seed=5).run()
    record = load_model(tmp_path / "cut" / FINETUNED).record
    assert (record.step, record.steps) == (6, 9)
    monkeypatch.setattr(Finetuning, "_save_epoch", real)
    again = finetuning(trained, task, recipe, tmp_path / "cut", seed=5)
    steps = []
    again.optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    assert again.run() == whole and len(steps) == again.batches  # one epoch of three
    one, other = (torch.load(tmp_path / name / FINETUNED, weights_only=True) for name in ("whole", "cut"))
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    assert (tmp_path / "whole" / EPOCHS).read_text() == (tmp_path / "cut" / EPOCHS).read_text()
    assert [json.loads(line)["epoch"] for line in (tmp_path / "cut" / EPOCHS).read_text().splitlines()] == [0, 1, 2]
    learned = json.loads(one["record"])["origin"]["finetuned_on"]
    assert len(learned) == 2 * len(task[1].gallery) and one["classes"] == sorted(set(task[0].label))
    # the pretrained weights are not changed
    assert all(torch.equal(value, before[name]) for name, value in trained.model.state_dict().items())
    # a run that was stopped in its test is not trained again
    monkeypatch.setattr(Finetuning, "test", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        finetuning(trained, task, recipe, tmp_path / "tested", seed=5).run()
    monkeypatch.undo()
    monkeypatch.setattr("gdt.eval.training.Classifier", Dropping)
    last = finetuning(trained, task, recipe, tmp_path / "tested", seed=5)
    last.optimizer.register_step_pre_hook(lambda *_: pytest.fail("it is trained again"))
    assert last.run() == whole
    # a damaged one is
    last.path.write_bytes(last.path.read_bytes()[:-1000])
    assert finetuning(trained, task, recipe, tmp_path / "tested", seed=5).run() == whole
    assert "; finetuning restarts from the first epoch" in capsys.readouterr().out


def test_a_gradient_of_nan_ends_a_run_and_keeps_its_last_epoch(trained: Trained, task: Task, tmp_path: Path) -> None:
    """At the last step, whose loss is finite."""
    run = finetuning(trained, task, quick(trained), tmp_path)
    done: list[int] = []

    def spoil(gradient: Tensor) -> Tensor:
        done.append(1)
        return gradient * (torch.nan if len(done) == 3 * run.batches else 1)

    run.model.classifier.bias.register_hook(spoil)
    with pytest.raises(UserError, match=r"loss is [\d.]+ and the norm of its gradient nan in epoch 2, at --lr 0.02"):
        run.run()
    assert torch.load(tmp_path / FINETUNED, weights_only=True)["epoch"] == 2
    assert all(value.isfinite().all() for value in run.model.state_dict().values())


@pytest.mark.parametrize("fault", [MemoryError(), UserError("cannot read it (Input/output error)")])
def test_a_state_that_the_machine_cannot_read_is_not_started_again(
    trained: Trained, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    run = finetuning(trained, task, quick(trained), tmp_path)
    run._save_epoch(0, 1.0, 0)
    monkeypatch.setattr("gdt.eval.training.load_checked", Mock(side_effect=fault))
    with pytest.raises(type(fault)):
        run.run()


def test_finetuned_weights_keep_metadata_when_read_and_exported(trained: Trained, task: Task, tmp_path: Path) -> None:
    run = finetuning(trained, task, quick(trained), tmp_path)
    run.save(run.recipe.epochs)
    gallery = task[1].gallery
    export(Export(tmp_path / "x.safetensors", ckpt=tmp_path / FINETUNED))
    for path in (tmp_path / FINETUNED, tmp_path / "x.safetensors"):
        again = load_model(path)
        assert again.settings == TINY and again.inputs.statistics == KINETICS
        learned = {*again.origin.finetuned_on}
        known = (("mine", "x"), len(gallery)), (("copied", "0a1b"), len(gallery)), (("others", "x"), 0)
        for (dataset, fingerprint), count in known:
            names = EvalSet(dataset, task[0], fingerprint, "test").names(np.arange(len(task[0])))
            assert sum(not learned.isdisjoint(pair) for pair in names) == count
        assert again.origin.kind == "finetuned weights"
        weights = run.model.base.state_dict()
        found = again.model.video_network.base.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in found.items())


def test_models_and_videos_that_cannot_be_finetuned_are_refused(trained: Trained, task: Task, tmp_path: Path) -> None:
    index, fold = task
    few = index, replace(fold, gallery=fold.gallery[::4][:5], gallery_label=fold.gallery_label[::4][:5])
    longer = replace(TINY, size="paper", clip=replace(TINY.clip, mel_frames=199))
    for fps, stride in ((10, 1), (30, 1), (50, 2)):
        paper = Trained(trained.model, Record(longer, KINETICS, fps))
        clip = Finetuning.recipe_of(Downstream(modalities=("audio",)), paper).clip
        assert (clip.frames, clip.stride, clip.mel_frames) == (32, stride, 199)
    sound = Trained(GDT(TINY.network, ["audio"]), Record(TINY, KINETICS))
    for model, of, message in (
        (trained, few, "5 training videos give fewer clips than a batch of 32; set --clips-per-epoch to 7"),
        (sound, task, "trained without video"),
    ):
        with pytest.raises(UserError, match=message):
            finetuning(model, of, quick(trained, batch=32), tmp_path)
