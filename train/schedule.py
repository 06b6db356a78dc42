"""How long a run is, and the learning rate of each of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gdt.common.errors import UserError


@dataclass(frozen=True)
class Optimization:
    """How the weights move (section A.4)."""

    method: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum as in the paper, or AdamW, which gets further in few steps."""
    lr: float = 0.01
    """Learning rate; with --optimization.base-batch-size it is the rate for that many videos per batch."""
    base_batch_size: int = 8
    """The rate grows linearly with the batch: lr * batch_size / base_batch_size. The paper's 0.01 is for the 8
    videos of one GPU, so its batch of 512 takes 0.64. 0 takes the rate as it is."""
    momentum: float = 0.9
    """Momentum of SGD; the first beta of AdamW."""
    weight_decay: float = 1e-5
    """Weight decay."""
    warmup_epochs: float = 10
    """Epochs over which the rate rises linearly to its full value: from --optimization.lr, the rate of one GPU, as
    in the published release (0.01, 0.073, ... 0.577, 0.64), or from 0 where --optimization.base-batch-size is 0."""
    decay: float = 0.0
    """Share of the training, at its end, over which the rate falls linearly to 0."""

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.base_batch_size < 0 or self.warmup_epochs < 0 or not 0 <= self.decay <= 1:
            raise UserError(
                "optimization: lr must be above 0, base-batch-size and warmup-epochs 0 or more, decay between 0 and 1"
            )


@dataclass(frozen=True)
class Schedule:
    """Of a run of so many steps."""

    optimization: Optimization
    batch_size: int
    batches_per_epoch: int
    steps: int

    def lr(self, step: int) -> float:
        """Learning rate of a step: linear warm-up from the rate of one GPU, constant, linear fall where one is set."""
        o = self.optimization
        full = o.lr * (self.batch_size / o.base_batch_size if o.base_batch_size else 1.0)
        first = min(o.lr, full) if o.base_batch_size else 0.0
        warmup = o.warmup_epochs * self.batches_per_epoch
        rise = min(1.0, step / warmup) if warmup else 1.0
        fall = min(1.0, (self.steps - step) / (o.decay * self.steps)) if o.decay else 1.0
        return (first + (full - first) * rise) * fall
