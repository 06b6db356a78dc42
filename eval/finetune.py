"""Finetuning of a video network on labels (table 4, section A.3.6), with the recipe of the paper or of its code."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.common.files import write_lines, writing
from gdt.common.streams import Stream, generator, seed_sequence
from gdt.eval.extract import outputs
from gdt.eval.metrics import Metric
from gdt.eval.retrieval import top_k
from gdt.pipeline.clips import ClipSampling, ResizedCrop, augmented, random_clips, uniform_plans
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import Augmentation, centred
from gdt.pipeline.tree import BatchPlan
from gdt.train.checkpoint import Damaged, Trained, load_checked
from gdt.train.models.gdt import autocast
from gdt.train.weights import FINETUNED_ON, inputs_of

if TYPE_CHECKING:
    from gdt.eval.settings import Downstream

STATE, WEIGHTS, METRICS = "finetune.pt", "finetuned.pt", "finetune.jsonl"
"""Files of a run: the state to resume from, the finetuned weights, and loss and accuracy per epoch."""


@dataclass(frozen=True)
class Recipe:
    """How to finetune and test."""

    epochs: int = 12
    warmup: float = 2.0
    """Epochs over which the learning rate rises linearly from `first_lr` to `lr`."""
    warmup_by_epoch: bool = False
    """Whether the learning rate rises once per epoch; else with every batch."""
    first_lr: float = 0.0025
    lr: float = 0.02
    """Learning rate of the classifier."""
    trunk_share: float = 1.0
    """Learning rate of the trunk relative to the classifier's."""
    drops: tuple[float, ...] = (6.0, 10.0)
    """Epochs, from 0, at which the learning rate is multiplied by `drop`."""
    drop: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-3
    batch: int = 32
    """Clips per batch."""
    clips: int = 10
    """Random clips per training video and epoch."""
    clip: Clip = field(default_factory=lambda: Clip(frames=32))
    augmentation: Augmentation = field(default_factory=Augmentation)
    resized: ResizedCrop | None = None
    jittered: float = 1.0
    """Share of clips with colour jitter."""
    late_jitter: bool = False
    """Colour jitter after normalisation."""
    short_side: int = 160
    """Short side of stored frames that the recipe is meant for, pixels; 0: any."""
    test_clips: int = 10
    """Uniform clips per test video."""
    test_crops: int = 1
    """Crops per test clip, spread along its longer side."""
    augmented_test: bool = False
    """Whether test crops have a random scale and colour jitter; else the smallest scale without jitter."""
    to_the_end: bool = True
    """Whether the last test clip ends with the video; else clip k of n starts at k/n of the possible starts."""
    averaged: Literal["softmax", "logits"] = "softmax"
    """Scores that are averaged over the clips of a video."""

    def lr_at(self, epoch: float) -> float:
        """Learning rate of the classifier at an epoch, which may be fractional (section A.3.6)."""
        passed = int(epoch) if self.warmup_by_epoch else epoch
        risen = min(1.0, passed / self.warmup) if self.warmup else 1.0
        fallen = self.drop ** sum(epoch >= start for start in self.drops)
        return (self.first_lr + (self.lr - self.first_lr) * risen) * fallen

    def describe(self) -> dict[str, str]:
        """Everything that could change a number, as text for logs and records."""
        a, low, high = self.augmentation, *self.augmentation.scale
        shape = f"random crops of frames of {low} to {high} pixels"
        if self.resized:
            areas, ratios = (f"{x:.3g} to {y:.3g}" for x, y in (self.resized.area, self.resized.ratio))
            shape = f"random-resized crops of area {areas} and ratio {ratios}"
        drops = " and ".join(f"{epoch:g}" for epoch in self.drops)
        starts = "to the end" if self.to_the_end else "at 0, 1/n, 2/n ..."
        rise = ", once per epoch" if self.warmup_by_epoch else ""
        tested = f"{low} to {high} pixels, with jitter" if self.augmented_test else f"{low} pixels, no jitter"
        return {
            "epochs": f"{self.epochs} (the last is tested)",
            "lr": f"{self.first_lr:g} to {self.lr:g} over {self.warmup:g} epochs{rise}, x {self.drop:g} at epochs "
            f"{drops}",
            "trunk": f"lr x {self.trunk_share:g}",
            "batch": f"{self.batch} clips, incomplete batches dropped",
            "optimizer": f"SGD, momentum {self.momentum:g}, weight decay {self.weight_decay:g}",
            "clips": f"{self.clips} random per video and epoch, {self.clip}, {shape}",
            "flip": f"{a.flip:g}",
            "colour": f"brightness {a.brightness:g}, contrast {a.contrast:g}, saturation {a.saturation:g}, "
            f"hue {a.hue:g} in {self.jittered:.0%} of the clips{', after normalisation' if self.late_jitter else ''}",
            "test": f"{self.test_clips} clips {starts} x {self.test_crops} crops of frames of {tested}, average of "
            f"{self.averaged}",
        }

    def spread_over(self, epochs: int) -> Recipe:
        """The same schedule, scaled to another number of epochs."""
        scale = epochs / self.epochs
        return replace(self, epochs=epochs, warmup=self.warmup * scale, drops=tuple(d * scale for d in self.drops))


PAPER = Recipe()
"""Section A.3.6: one learning rate for the whole network, 32 frames of 112x112, softmax averaged over ten clips."""
PUBLISHED = Recipe(
    warmup_by_epoch=True, trunk_share=0.1, drops=(7.0, 11.0), clip=Clip(frames=32, size=128), resized=ResizedCrop(),
    jittered=0.8, late_jitter=True, short_side=240, test_crops=3, augmented_test=True, to_the_end=False,
    averaged="logits",
)  # fmt: skip
"""The published script, with its mistakes: jitter after normalisation, and jitter and random scales in the test."""
RECIPES = {"paper": PAPER, "published": PUBLISHED}


def tiny(recipe: Recipe, trained: Trained) -> Recipe:
    """A recipe for small networks without a GPU: clips as in pretraining, 4 per video and epoch."""
    settings = trained.settings
    hue = 0.0 if recipe.late_jitter else settings.augmentation.hue  # late jitter ignores the hue
    augmentation = replace(recipe.augmentation, scale=settings.augmentation.scale, hue=hue)
    return replace(recipe, clip=settings.clip, augmentation=augmentation, clips=4, short_side=0)


def build_recipe(settings: Downstream, trained: Trained) -> Recipe:
    """The recipe that a model is finetuned with."""
    recipe = RECIPES[settings.recipe]
    if settings.size == "tiny":
        recipe = tiny(recipe, trained)
    if settings.epochs:
        recipe = recipe.spread_over(settings.epochs)
    if settings.lr:
        recipe = replace(recipe, lr=settings.lr, first_lr=recipe.first_lr * settings.lr / recipe.lr)
    return replace(recipe, clips=settings.clips_per_epoch or recipe.clips, test_clips=settings.clips)


def short_side_note(recipe: Recipe, index: Index) -> str:
    """A note if the stored frames were shrunk below the short side that the recipe is meant for; otherwise empty."""
    stored = int(index.settings.get("short_side", recipe.short_side))
    largest = int(np.minimum(index.height, index.width).max(initial=0))
    if stored >= recipe.short_side or largest < stored - 1:  # the videos themselves may be smaller
        return ""
    return (
        f"note: {index.folder} has frames with a short side of {stored} pixels; the recipe is meant for "
        f"{recipe.short_side}, so more of its crops are enlarged; 'make preprocess' with "
        f'ARGS="--short-side {recipe.short_side}" into a new folder avoids that'
    )


class Classifier(nn.Module):
    """A trunk with a linear layer, named as in the published finetuned checkpoints."""

    def __init__(self, base: nn.Module, dim: int, classes: int) -> None:
        super().__init__()
        self.base = base
        self.classifier = nn.Linear(dim, classes)
        nn.init.orthogonal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.base(x))
        return scores


@dataclass(frozen=True)
class Task:
    """Training and test videos with their classes."""

    index: Index
    """Shards, normalised as the weights expect."""
    train: np.ndarray
    """Rows of the index, int64 [n]."""
    train_target: np.ndarray
    """Their classes, int64 [n]."""
    test: np.ndarray
    test_target: np.ndarray
    """-1 for a class without training videos."""
    classes: tuple[str, ...]
    data: str = ""
    """Fingerprint of the shards."""


class Finetuning:
    """A finetuning run, resumed from its last epoch with the same numbers (bit for bit on a CPU)."""

    def __init__(
        self, trained: Trained, task: Task, recipe: Recipe, seed: int, fold: int, device: torch.device, folder: Path
    ) -> None:
        if not hasattr(trained.model, "video_network"):
            raise UserError(
                "the model was trained without video, so it cannot be finetuned; set --ckpt to one with a video network"
            )
        self.recipe, self.task, self.device, self.folder = recipe, task, device, folder
        self._metadata = inputs_of(trained) | {"classes": list(task.classes), FINETUNED_ON: [task.data, fold]}
        self._seeds = (seed, fold)
        self._training = ClipSampling(
            recipe.clips, recipe.batch, recipe.augmentation, recipe.resized, recipe.jittered, recipe.late_jitter
        )
        self.batches = self._training.batches(len(task.train))
        if not self.batches:
            raise UserError(
                f"{len(task.train)} training videos give fewer clips than a batch of {recipe.batch}; set "
                f"--clips-per-epoch to {-(-recipe.batch // len(task.train))} or more"
            )
        torch.manual_seed(int(seed_sequence(Stream.FINETUNING, *self._seeds, 1 << 20).generate_state(1)[0]))
        base = copy.deepcopy(trained.model.video_network.base)  # other folds start from the same weights
        model = Classifier(base, base.dim, len(task.classes)).to(device)
        self.model = model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        groups = [
            {"params": list(model.classifier.parameters()), "share": 1.0},
            {"params": list(model.base.parameters()), "share": recipe.trunk_share},
        ]
        self.optimizer = torch.optim.SGD(groups, recipe.first_lr, recipe.momentum, weight_decay=recipe.weight_decay)

    def run(self, name: str) -> dict[str, Metric]:
        """Train to the last epoch, save the weights, and return the metrics of `test`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        first = self._resume()
        total = self.recipe.epochs * self.batches
        bar = tqdm(total=total, initial=first * self.batches, unit="step", desc=name, mininterval=0.5)
        with Loader(self.task.index, self.plans(first), self.recipe.clip, self.device, Loading()) as loader, bar:
            batches = iter(loader)
            for epoch in range(first, self.recipe.epochs):
                losses, right = [], 0
                for number in range(self.batches):
                    batch = next(batches)
                    loss, correct = self._step(epoch + number / self.batches, batch.inputs, batch.table["target"])
                    losses.append(loss)
                    right += correct
                    bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
                    bar.update()
                self._save_epoch(epoch, float(np.mean(losses)), right)
        metrics = self.test(name)
        self._save_weights()
        return metrics

    def test(self, name: str) -> dict[str, Metric]:
        """Top-1 and top-5 accuracy of videos, whose clips are averaged, and of clips."""
        recipe, task = self.recipe, self.task
        per_video = recipe.test_clips * recipe.test_crops

        def scored(batch: Batch) -> list[Tensor]:
            scores = self._scores(batch.inputs).unflatten(0, (-1, per_video))
            return [(scores.softmax(2) if recipe.averaged == "softmax" else scores).mean(1), scores.flatten(0, 1)]

        self.model.eval()
        bar = tqdm(total=len(task.test), unit="video", desc=f"{name}, test", mininterval=0.5, leave=False)
        videos, clips = outputs(task.index, self.test_plans(), recipe.clip, self.device, scored, bar, per_video)
        of_videos = top_k(videos, task.test_target, (1, 5))
        of_clips = top_k(clips, np.repeat(task.test_target, per_video), (1, 5))
        # the clips of a video are not independent: they count as one answer in the interval
        clip_wise = {f"clip top-{k}": m._replace(answers=len(task.test)) for k, m in of_clips.items()}
        return {f"finetune top-{k}": metric for k, metric in of_videos.items()} | clip_wise

    def plans(self, first: int) -> Iterator[BatchPlan]:
        """Training clips of epoch `first` and later."""
        task, recipe = self.task, self.recipe
        for epoch in range(first, recipe.epochs):
            seeds = (*self._seeds, epoch)
            yield from random_clips(task.index, task.train, task.train_target, recipe.clip, self._training, seeds)

    def test_plans(self) -> Iterator[BatchPlan]:
        """Test clips, at the smallest training scale without jitter, unless the recipe augments them."""
        task, recipe = self.task, self.recipe
        plans = uniform_plans(
            task.index, task.test, recipe.test_clips, recipe.clip, centred(recipe.augmentation.scale[0]),
            recipe.test_crops, recipe.to_the_end, crops_per_plan=2 * recipe.batch,
        )  # fmt: skip
        if not recipe.augmented_test:
            return plans
        drawn = replace(self._training, augmentation=replace(recipe.augmentation, flip=0.0), resized=None)
        return augmented(task.index, plans, drawn, generator(Stream.FINETUNING_TEST, *self._seeds))

    def _step(self, epoch: float, inputs: Mapping[str, Any], target: Tensor) -> tuple[float, int]:
        lr = self.recipe.lr_at(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["share"]
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        scores = self._scores(inputs)
        loss = functional.cross_entropy(scores, target)
        loss.backward()
        self.optimizer.step()
        value = float(loss.detach())
        if not np.isfinite(value):
            raise UserError(f"the loss is {value} in epoch {int(epoch)}; lower --lr (now {self.recipe.lr:g})")
        return value, int((scores.detach().argmax(1) == target).sum())

    def _scores(self, inputs: Mapping[str, Any]) -> Tensor:
        """Scores of clips, float32 [n, classes]."""
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        with autocast(self.device):
            scores: Tensor = self.model(inputs["video"].floats(dtype)).float()
        return scores

    def _save_epoch(self, epoch: int, loss: float, right: int) -> None:
        """Log an epoch and save the state to resume from."""
        row = {"epoch": epoch, "loss": loss, "top-1": 100 * right / (self.batches * self.recipe.batch)}
        path = self.folder / METRICS
        before = path.read_text(errors="replace").splitlines(keepends=True)[:epoch] if path.is_file() else []
        write_lines(path, [*before, json.dumps(row) + "\n"])
        state = {
            "recipe": serialization.to_json(self.recipe), "epoch": epoch + 1,
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip
        self._write(STATE, state)

    def _save_weights(self) -> None:
        """Save the finetuned weights, which --ckpt reads."""
        weights = {name: value.cpu() for name, value in self.model.state_dict().items()}
        self._write(WEIGHTS, {"model": weights, "epoch": self.recipe.epochs} | self._metadata)

    def _write(self, name: str, state: dict[str, Any]) -> None:
        path = self.folder / name
        try:
            with writing(path) as file:
                torch.save(state, file)
        except OSError as error:
            raise UserError(
                f"{path} cannot be written ({error.strerror}); check the free disk space, then run the same command "
                "again to resume"
            ) from error

    def _resume(self) -> int:
        """Load the saved state and return the next epoch; 0 if there is no state or it does not match."""
        path = self.folder / STATE
        if not path.is_file():
            return 0
        state = None
        with contextlib.suppress(Damaged, UserError, MemoryError):
            state = load_checked(path)
        if not isinstance(state, dict) or state.get("recipe") != serialization.to_json(self.recipe):
            print(f"{path} is damaged or of another recipe; finetuning restarts from the first epoch")
            return 0
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["epoch"])
