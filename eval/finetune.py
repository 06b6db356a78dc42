"""Finetuning a pretrained video network on labels (table 4, section A.5), by the paper's or the release's recipe."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from gdt.common.errors import UserError, first_line
from gdt.common.files import write_lines, writing
from gdt.eval.extract import outputs
from gdt.eval.metrics import Metric
from gdt.eval.retrieval import top_k
from gdt.pipeline.clips import ClipSampling, ResizedCrop, random_clips, uniform_plans
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import Augmentation, centred
from gdt.pipeline.tree import BatchPlan
from gdt.train.checkpoint import Damaged, Trained, load_checked
from gdt.train.models.gdt import autocast
from gdt.train.settings import to_json
from gdt.train.weights import LEARNED, SETTINGS, STATISTICS

STATE = "finetune.pt"
"""What a run that was stopped goes on from."""
WEIGHTS = "finetuned.pt"
METRICS = "finetune.jsonl"
_LATER = 1 << 20
"""Told from the seeds of epochs: that of the classifier's first weights."""


@dataclass(frozen=True)
class Recipe:
    """How to finetune, and how to test what was finetuned."""

    epochs: int = 12
    warmup: float = 2.0
    """Epochs over which the rate rises linearly from `first_lr` to `rate`."""
    first_lr: float = 0.0025
    lr: float = 0.02
    """Learning rate of the classifier."""
    trunk_share: float = 1.0
    """Rate of the trunk, as a share of the classifier's."""
    drops: tuple[float, ...] = (6.0, 10.0)
    """Epochs, counted from 0, from which on the rate is multiplied by `drop`."""
    drop: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-3
    batch: int = 32
    """Clips."""
    clips: int = 10
    """Random clips of every training video in an epoch."""
    clip: Clip = field(default_factory=lambda: Clip(frames=32))
    augmentation: Augmentation = field(default_factory=Augmentation)
    resized: ResizedCrop | None = None
    jittered: float = 1.0
    """Share of the clips whose colours are jittered."""
    test_clips: int = 10
    """Uniform clips of every test video."""
    test_crops: int = 1
    """Crops of each, side by side along its longer side."""
    to_the_end: bool = True
    """Whether the last test clip ends with the video; else clips begin at 0, 0.1 ... of the starts."""
    averaged: Literal["softmax", "logits"] = "softmax"
    """What is averaged over the clips of a video."""

    def lr_at(self, epoch: float) -> float:
        """Learning rate of the classifier after so many epochs (section A.5)."""
        risen = min(1.0, epoch / self.warmup) if self.warmup else 1.0
        fallen = self.drop ** sum(epoch >= start for start in self.drops)
        return (self.first_lr + (self.lr - self.first_lr) * risen) * fallen

    def describe(self) -> dict[str, str]:
        """All of it that could change a number, in words, for logs and results."""
        a, low, high = self.augmentation, *self.augmentation.scale
        shape = f"random crops of frames of {low} to {high} pixels"
        if self.resized:
            areas, ratios = (f"{x:.3g} to {y:.3g}" for x, y in (self.resized.area, self.resized.ratio))
            shape = f"random-resized crops of area {areas} and ratio {ratios}"
        drops = " and ".join(f"{epoch:g}" for epoch in self.drops)
        return {
            "epochs": f"{self.epochs}, the last one is tested",
            "lr": f"{self.first_lr:g} to {self.lr:g} over {self.warmup:g} epochs, times {self.drop:g} from epoch "
            f"{drops} on",
            "trunk": f"{self.trunk_share:g} times that rate",
            "batch": f"{self.batch} clips, those left over in an epoch dropped",
            "optimizer": f"SGD, momentum {self.momentum:g}, weight decay {self.weight_decay:g}",
            "clips": f"{self.clips} random ones per video and epoch, {describe_clip(self.clip)}, {shape}",
            "flip": f"{a.flip:g}",
            "colour": f"brightness {a.brightness:g}, contrast {a.contrast:g}, saturation {a.saturation:g}, hue "
            f"{a.hue:g} in {self.jittered:.0%} of the clips",
            "test": f"{self.test_clips} clips {'to the end' if self.to_the_end else 'at 0, 1/n, 2/n ...'} x "
            f"{self.test_crops} crops of frames of {low} pixels, {self.averaged} averaged, no jitter",
        }

    def spread_over(self, epochs: int) -> Recipe:
        """The same schedule over another number of epochs."""
        part = epochs / self.epochs
        return replace(self, epochs=epochs, warmup=self.warmup * part, drops=tuple(d * part for d in self.drops))


PAPER = Recipe()
"""Section A.5: one rate for all of the network, 32 frames of 112 x 112, ten clips averaged after the softmax."""
PUBLISHED = Recipe(
    trunk_share=0.1, drops=(7.0, 11.0), clip=Clip(frames=32, size=128),
    augmentation=Augmentation(scale=(128, 128)), resized=ResizedCrop(), jittered=0.8, test_crops=3, to_the_end=False,
    averaged="logits",
)  # fmt: skip
"""The published release's script, without the colour jitter that it leaves on in its test by mistake."""
RECIPES = {"paper": PAPER, "published": PUBLISHED}


def tiny(recipe: Recipe, trained: Trained) -> Recipe:
    """A recipe for small networks and a machine without a GPU: clips as in pretraining, and fewer of them."""
    settings = trained.settings
    scale = settings.augmentation.scale if recipe.resized is None else (settings.augmentation.scale[0],) * 2
    augmentation = replace(recipe.augmentation, scale=scale, hue=settings.augmentation.hue)
    return replace(recipe, clip=settings.clip, augmentation=augmentation, clips=4)


def describe_clip(clip: Clip) -> str:
    """A clip in words."""
    every = f", every {clip.stride}-th" if clip.stride > 1 else ""
    return f"{clip.frames} frames{every}, {clip.size}x{clip.size}"


class Classifier(nn.Module):
    """A trunk and a linear layer on its average-pooled features, named as in the release's finetuned checkpoints."""

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
    """What is learned, and what it is tested on."""

    index: Index
    """Normalised as the weights expect it."""
    train: np.ndarray
    """Rows of the index, int64 [n]."""
    train_target: np.ndarray
    """Class of each of them, int64 [n]."""
    test: np.ndarray
    test_target: np.ndarray
    """-1 for a class that there are no training videos of."""
    classes: tuple[str, ...]
    data: str = ""
    """Fingerprint of the shards."""


class Finetuning:
    """One run: goes on from the epoch after which it was stopped, with the same numbers; bit for bit on a CPU."""

    def __init__(
        self, trained: Trained, task: Task, recipe: Recipe, seed: int, fold: int, device: torch.device, folder: Path
    ) -> None:
        if not hasattr(trained.model, "video_network"):
            raise UserError("the model was trained without pictures, so it cannot be finetuned on them; name another")
        if len(task.classes) < 2:
            raise UserError(f"finetuning needs two classes or more to tell apart; there is only '{task.classes[0]}'")
        self.recipe, self.task, self.device, self.folder = recipe, task, device, folder
        self._beside = {
            STATISTICS: (trained.statistics or task.index.statistics).to_numbers(), SETTINGS: to_json(trained.settings),
            "classes": list(task.classes), LEARNED: [task.data, fold],
        }  # fmt: skip
        self._seeds = (seed, fold)
        self._training = ClipSampling(recipe.clips, recipe.batch, recipe.augmentation, recipe.resized, recipe.jittered)
        self.batches = self._training.batches(len(task.train))
        if not self.batches:
            raise UserError(
                f"{len(task.train)} training videos make no batch of {recipe.batch} clips; set --clips-per-epoch to "
                f"{-(-recipe.batch // len(task.train))} or more"
            )
        self._seed(_LATER)
        base = copy.deepcopy(trained.model.video_network.base)  # which other folds begin with, too
        model = Classifier(base, base.dim, len(task.classes)).to(device)
        self.model = model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        groups = [
            {"params": list(model.classifier.parameters()), "share": 1.0},
            {"params": list(model.base.parameters()), "share": recipe.trunk_share},
        ]
        self.optimizer = torch.optim.SGD(groups, recipe.first_lr, recipe.momentum, weight_decay=recipe.weight_decay)

    def run(self, name: str) -> dict[str, Metric]:
        """Train until the last epoch, then test: top-1 and top-5 over videos and over clips."""
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
                self._finished(epoch, float(np.mean(losses)), right)
        metrics = self.test(name)
        self._keep()
        return metrics

    def test(self, name: str) -> dict[str, Metric]:
        """Top-1 and top-5 of the videos, by the average over their clips, and of the clips."""
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
        # the clips of a video are answers to one question, and so count as one in the interval
        clip_wise = {f"clip top-{k}": m._replace(answers=len(task.test)) for k, m in of_clips.items()}
        return {f"finetune top-{k}": metric for k, metric in of_videos.items()} | clip_wise

    def plans(self, first: int) -> Iterator[BatchPlan]:
        """Clips to train on, from an epoch on."""
        task, recipe = self.task, self.recipe
        for epoch in range(first, recipe.epochs):
            seeds = (*self._seeds, epoch)
            yield from random_clips(task.index, task.train, task.train_target, recipe.clip, self._training, seeds)

    def test_plans(self) -> Iterator[BatchPlan]:
        """Clips to test on: squares of frames at the smaller scale of training, without any jitter."""
        task, recipe = self.task, self.recipe
        return uniform_plans(
            task.index, task.test, recipe.test_clips, recipe.clip, centred(recipe.augmentation.scale[0]),
            recipe.test_crops, recipe.to_the_end, crops_per_plan=2 * recipe.batch,
        )  # fmt: skip

    def _step(self, epoch: float, inputs: Mapping[str, Any], target: Tensor) -> tuple[float, int]:
        rate = self.recipe.lr_at(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        scores = self._scores(inputs)
        loss = functional.cross_entropy(scores, target)
        loss.backward()
        self.optimizer.step()
        value = float(loss.detach())
        if not np.isfinite(value):
            raise UserError(f"the loss is {value} in epoch {int(epoch)}; lower --lr")
        return value, int((scores.detach().argmax(1) == target).sum())

    def _scores(self, inputs: Mapping[str, Any]) -> Tensor:
        """Of every clip, float32 [n, classes]."""
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        with autocast(self.device):
            scores: Tensor = self.model(inputs["video"].floats(dtype)).float()
        return scores

    def _seed(self, number: int) -> None:
        torch.manual_seed(int(np.random.SeedSequence([*self._seeds, number]).generate_state(1)[0]))

    def _finished(self, epoch: int, loss: float, right: int) -> None:
        """Write down an epoch, so that the run can go on from its end."""
        row = {"epoch": epoch, "loss": loss, "top-1": 100 * right / (self.batches * self.recipe.batch)}
        path = self.folder / METRICS
        before = path.read_text().splitlines(keepends=True)[:epoch] if path.is_file() else []
        write_lines(path, [*before, json.dumps(row) + "\n"])
        state = {
            "recipe": json.dumps(asdict(self.recipe), default=str), "epoch": epoch + 1,
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip
        self._write(STATE, state)

    def _keep(self) -> None:
        """The finetuned weights, which CKPT= reads."""
        weights = {name: value.cpu() for name, value in self.model.state_dict().items()}
        self._write(WEIGHTS, {"model": weights, "epoch": self.recipe.epochs} | self._beside)

    def _write(self, name: str, state: dict[str, Any]) -> None:
        path = self.folder / name
        try:
            with writing(path) as file:
                torch.save(state, file)
        except (OSError, RuntimeError) as error:  # RuntimeError is how torch's writer tells of a full disk
            raise UserError(
                f"{path} cannot be written ({first_line(error)}); see that there is room, then run the same command "
                "again, which goes on"
            ) from error

    def _resume(self) -> int:
        """The first epoch to do; what was stopped, or damaged, is taken up, or begun anew."""
        path = self.folder / STATE
        if not path.is_file():
            return 0
        state = None
        with contextlib.suppress(Damaged, UserError, MemoryError):
            state = load_checked(path)
        if not isinstance(state, dict) or state.get("recipe") != json.dumps(asdict(self.recipe), default=str):
            print(f"{path} is damaged or of another recipe; that run begins anew")
            return 0
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["epoch"])
