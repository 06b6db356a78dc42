"""Finetuning of a network on clips with labels (section A.3.6)."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from gdt.common.errors import Damaged, UserError
from gdt.common.files import writing
from gdt.common.randomness import Stream, seed_sequence
from gdt.eval.classification import classes_of, targets, top_k
from gdt.eval.extract import require_network
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job
from gdt.eval.metrics import Measured
from gdt.eval.settings import Downstream
from gdt.eval.subjects import FINETUNED
from gdt.pipeline.clips import ClipSampling, random_clips, uniform_plans
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import BatchPlan
from gdt.train.inference import over_clips
from gdt.train.models.gdt import as_floats, autocast
from gdt.train.run import keep_until
from gdt.train.step import require_finite, seed_torch
from gdt.train.tensors import load_checked
from gdt.train.trained import Trained
from gdt.train.weights import network_header

EPOCHS = "finetune.jsonl"
"""Loss and accuracy per epoch, beside the finetuned weights."""


@dataclass(frozen=True)
class Recipe:
    """How to finetune and test: one learning rate for the whole network, softmax averaged over the clips of a video."""

    epochs: int = 12
    warmup: float = 2.0
    """Epochs over which the learning rate rises linearly from `first_lr` to `lr`."""
    first_lr: float = 0.0025
    lr: float = 0.02
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
    test_clips: int = 10
    """Uniform clips per test video, centre crops at the smallest scale."""

    def lr_at(self, epoch: float) -> float:
        """Learning rate at an epoch, which may be fractional (section A.3.6)."""
        risen = min(1.0, epoch / self.warmup) if self.warmup else 1.0
        fallen = self.drop ** sum(epoch >= start for start in self.drops)
        return (self.first_lr + (self.lr - self.first_lr) * risen) * fallen

    def spread_over(self, epochs: int) -> Recipe:
        """The same schedule, scaled to another number of epochs."""
        scale = epochs / self.epochs
        return replace(
            self, epochs=epochs, warmup=self.warmup * scale, drops=tuple(drop * scale for drop in self.drops)
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
        """Clips to scores [n, classes]."""
        return self.classifier(self.base(x))


class Finetuning:
    """A run that trains the whole network, resumed from its last epoch with the same numbers (bit for bit on a CPU)."""

    @classmethod
    def recipe_of(cls, settings: Downstream, trained: Trained) -> Recipe:
        """The recipe for a model, as far as the settings leave it."""
        pretrained = trained.settings
        paper = pretrained.size == "paper"
        recipe = Recipe(clips=settings.clips_per_epoch or (10 if paper else 4), test_clips=settings.clips)
        # a network of the user's own may take no other clips than those of pretraining
        if paper and not getattr(trained.model.network, settings.modalities[0]):
            stride = max(1, round(trained.inputs.fps / 30))  # at 30 frames/s, 1
            recipe = replace(recipe, clip=Clip(frames=32, stride=stride, mel_frames=pretrained.clip.mel_frames))
        else:
            augmentation = Augmentation(scale=pretrained.augmentation.scale, hue=pretrained.augmentation.hue)
            recipe = replace(recipe, clip=pretrained.clip, augmentation=augmentation)
        if settings.epochs:
            recipe = recipe.spread_over(settings.epochs)
        if settings.lr:
            recipe = replace(recipe, lr=settings.lr, first_lr=recipe.first_lr * settings.lr / recipe.lr)
        return recipe

    def __init__(self, job: Job, fold: Fold, recipe: Recipe) -> None:
        """Trains on the gallery of a fold, the videos of the job that its model can use, and tests on its queries."""
        trained = job.subject.trained
        (modality,) = job.settings.modalities
        require_network(trained, modality)
        index = job.eval_set.index
        self.name = f"finetune {job.subject.name_on(fold)}"
        self.index = index
        self.fold = fold
        self.recipe = recipe
        self.inputs = Inputs(recipe.clip, recipe.augmentation, trained.inputs.statistics, trained.inputs.fps)
        self.device = job.device
        self.path = job.folder / FINETUNED
        self.modality = modality
        classes = classes_of(fold.gallery_label)
        self._train_target = targets(fold.gallery_label, classes)
        self.test_target = targets(fold.query_label, classes)
        learned = tuple(sorted(itertools.chain.from_iterable(job.eval_set.names(fold.gallery))))
        self._seeds = (job.settings.seed, fold.number)
        self._training = ClipSampling(recipe.clips, recipe.batch, recipe.augmentation)
        videos = len(fold.gallery)
        self.batches = self._training.batches(videos)
        if not self.batches:
            raise UserError(
                f"{videos} training videos give fewer clips than a batch of {recipe.batch}; set --clips-per-epoch to "
                f"{-(-recipe.batch // videos)} or more"
            )
        self._header = partial(network_header, trained, modality, learned, steps=recipe.epochs * self.batches)
        self._classes = classes.tolist()
        torch.manual_seed(int(seed_sequence(Stream.FINETUNING, *self._seeds, 1 << 20).generate_state(1)[0]))
        base = copy.deepcopy(trained.model.backbone(modality))  # other folds start from the same weights
        self.model = Classifier(base, base.dim, len(classes)).to(job.device)
        if modality == "video" and not trained.model.network.video:
            self.model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        parameters = self.model.parameters()
        self.optimizer = torch.optim.SGD(parameters, recipe.first_lr, recipe.momentum, weight_decay=recipe.weight_decay)

    def run(self) -> dict[str, Measured]:
        """Train to the last epoch, and return the metrics of `test`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        first = self._resume()
        total = self.recipe.epochs * self.batches
        bar = tqdm(total=total, initial=first * self.batches, unit="step", desc=self.name, mininterval=0.5)
        plans = self.plans(first)
        with Loader(self.index, plans, self.inputs, self.device) as loader, bar:
            batches = iter(loader)
            for epoch in range(first, self.recipe.epochs):
                losses = []
                right = 0
                for number in range(self.batches):
                    batch = next(batches)
                    loss, correct = self._step(epoch, number, batch.inputs, batch.table["target"])
                    losses.append(loss)
                    right += correct
                    bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
                    bar.update()
                self._save_epoch(epoch, float(np.mean(losses)), right)
        return self.test()

    def test(self) -> dict[str, Measured]:
        """Top-1 and top-5 accuracy of videos, whose clips are averaged, and of clips."""
        target = self.test_target
        per_video = self.recipe.test_clips
        videos, clips = self.scores()
        of_videos = top_k(videos, target, (1, 5))
        of_clips = top_k(clips, np.repeat(target, per_video), (1, 5))
        # the clips of a video are not independent: they count as one answer in the interval
        metrics = {f"finetune top-{k}": measured for k, measured in of_videos.items()}
        for k, measured in of_clips.items():
            answers = measured.answers.reshape(-1, per_video).mean(1)
            metrics[f"clip top-{k}"] = Measured(measured.metric._replace(answers=len(target)), answers)
        return metrics

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores of the test videos, means of softmax over their clips, and of all their clips: [n, classes] each."""
        recipe = self.recipe

        def scored(batch: Batch) -> list[Tensor]:
            scores = self._scores(batch.inputs).unflatten(0, (-1, recipe.test_clips))
            return [scores.softmax(2).mean(1), scores.flatten(0, 1)]

        self.model.eval()
        bar = tqdm(total=len(self.test_target), unit="video", desc=f"{self.name}, test", mininterval=0.5, leave=False)
        plans = self.test_plans()
        videos, clips = over_clips(self.index, plans, self.inputs, self.device, scored, bar, recipe.test_clips)
        return videos, clips

    def plans(self, first: int) -> Iterator[BatchPlan]:
        """Training clips of epoch `first` and later."""
        clip = self.recipe.clip
        target = self._train_target
        for epoch in range(first, self.recipe.epochs):
            seeds = (*self._seeds, epoch)
            yield from random_clips(self.index, self.fold.gallery, target, clip, self._training, seeds, self.modality)

    def test_plans(self) -> Iterator[BatchPlan]:
        recipe = self.recipe
        videos = self.fold.queries
        size = 2 * recipe.batch
        return uniform_plans(self.index, videos, recipe.test_clips, self.inputs, [self.modality], size)

    def _step(self, epoch: int, number: int, inputs: Mapping[str, Any], target: Tensor) -> tuple[float, int]:
        """Update the model with batch `number` of an epoch. Raises UserError if loss or gradient are not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr_at(epoch + number / self.batches)
        seed_torch(Stream.FINETUNING_DROPOUT, *self._seeds, epoch, number)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        scores = self._scores(inputs)
        loss = functional.cross_entropy(scores, target)
        loss.backward()
        norm = nn.utils.get_total_norm([value.grad for value in self.model.parameters() if value.grad is not None])
        value = float(loss.detach())
        require_finite(value, float(norm), f"in epoch {epoch}, at --lr {self.recipe.lr:g}")
        self.optimizer.step()
        return value, int((scores.detach().argmax(1) == target).sum())

    def _scores(self, inputs: Mapping[str, Any]) -> Tensor:
        """Scores of clips, float32 [n, classes]."""
        with autocast(self.device):
            return self.model(as_floats(inputs[self.modality])).float()

    def _save_epoch(self, epoch: int, loss: float, right: int) -> None:
        """Log an epoch, and save."""
        accuracy = 100 * right / (self.batches * self.recipe.batch)
        row = {"step": (epoch + 1) * self.batches, "epoch": epoch, "loss": loss, "top-1": accuracy}
        log = self.path.with_name(EPOCHS)
        keep_until(log, epoch * self.batches)
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.save(epoch + 1)

    def save(self, done: int) -> None:
        """Save the weights after some epochs, which --ckpt reads, and what the next epoch needs besides."""
        state = self._header(step=done * self.batches) | {
            "classes": self._classes,
            "epoch": done,
            "model": {name: value.cpu() for name, value in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict() if done < self.recipe.epochs else None,
        }
        with writing(self.path) as file:
            torch.save(state, file)

    def _resume(self) -> int:
        """Load the saved state, which its folder identifies, and return the next epoch; 0 without one."""
        if not self.path.is_file():
            return 0
        try:
            content = load_checked(self.path)
        except Damaged as damage:
            print(f"{self.path} is damaged ({damage}); finetuning restarts from the first epoch")
            return 0
        self.model.load_state_dict(content["model"])
        if content["optimizer"]:
            self.optimizer.load_state_dict(content["optimizer"])
        return int(content["epoch"])
