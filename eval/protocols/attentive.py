"""The attentive probe: a query attends to all positions of a frozen trunk's last maps, as in V-JEPA's evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from gdt.eval.evaluator import Evaluator, Outcome
from gdt.eval.folds import Fold
from gdt.eval.settings import Downstream
from gdt.eval.subjects import Subject
from gdt.eval.training import ClassifierTraining, Recipe, train_and_test
from gdt.train.models.backbone import Backbone
from gdt.train.trained import Trained


def attentive(evaluator: Evaluator, model: Subject, fold: Fold, folder: Path) -> Outcome:
    """Top-1 and top-5 accuracy of the attentive probe."""
    return train_and_test(AttentiveProbe, evaluator, model, fold, folder)


class Attentive(nn.Module):
    """A frozen trunk, a block of cross-attention of one learned query with its positions, and a linear layer."""

    def __init__(self, base: Backbone, dim: int, classes: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.query = nn.Parameter(torch.empty(1, 1, dim).normal_(std=0.02))
        self.positions = nn.LayerNorm(dim)
        self.pooled = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, math.gcd(dim, max(dim // 64, 1)), batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.classifier = nn.Linear(dim, classes)

    def train(self, mode: bool = True) -> Attentive:
        super().train(mode)
        self.base.eval()  # its batch norms keep their statistics
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Clips to scores [n, classes]."""
        with torch.no_grad():
            maps = self.base.maps(x)
        positions = self.positions(maps.flatten(2).transpose(1, 2))
        query = self.query.expand(len(x), -1, -1)
        query = query + self.attention(query, positions, positions, need_weights=False)[0]
        return self.classifier((query + self.mlp(self.pooled(query)))[:, 0])


class AttentiveProbe(ClassifierTraining):
    """Trains what attends to a frozen trunk, with AdamW."""

    name = "attentive"
    classifier = Attentive

    @classmethod
    def recipe_of(cls, settings: Downstream, trained: Trained) -> Recipe:
        """That of finetuning, but with the clips of pretraining, weight decay 0.01 and, by default, a rate of 0.001."""
        recipe = super().recipe_of(settings, trained)
        lr = settings.lr or 1e-3
        pretrained = trained.settings
        augmentation = replace(recipe.augmentation, scale=pretrained.augmentation.scale)  # crops fit into it
        return replace(
            recipe, clip=pretrained.clip, augmentation=augmentation, lr=lr, first_lr=lr / 8, weight_decay=0.01
        )

    def make_optimizer(self) -> torch.optim.Optimizer:
        learned = [value for value in self.model.parameters() if value.requires_grad]
        return torch.optim.AdamW(learned, self.recipe.first_lr, weight_decay=self.recipe.weight_decay)
