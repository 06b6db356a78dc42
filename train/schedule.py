"""Length of a run and the learning rate of each step."""

from dataclasses import dataclass
from typing import Literal

from gdt.common.errors import UserError, require_range


@dataclass(frozen=True)
class Optimization:
    """Optimizer and learning rate (section A.3.4)."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum as in the paper, or AdamW, which needs fewer steps."""
    lr: float = 0.01
    """Learning rate for a batch of --base-batch-size videos; if that is 0, for any batch size."""
    base_batch_size: int = 8
    """Scales the learning rate to lr * batch_size / base_batch_size, in the paper
    0.01 * 512 / 8 = 0.64; 0: no scaling."""
    momentum: float = 0.9
    """Momentum of SGD; first beta of AdamW."""
    weight_decay: float = 1e-5
    """Weight decay."""
    warmup_epochs: float = 10
    """Epochs of linear warm-up. It starts at --lr, as in the published
    release; at 0 if base-batch-size is 0."""
    lr_decay: float = 0.0
    """Share of the steps, at the end, over which the learning rate falls linearly to 0."""

    def __post_init__(self) -> None:
        require_range(self, "weight_decay", "base_batch_size", "warmup_epochs", least=0)
        require_range(self, "lr_decay", least=0, most=1)
        if not (self.lr > 0 and 0 <= self.momentum < 1):
            raise UserError(
                f"--lr is {self.lr:g} and --momentum {self.momentum:g}; they must be above 0, and from 0 to below 1"
            )


@dataclass(frozen=True)
class Schedule:
    """Learning rates of a run of `steps` steps."""

    optimization: Optimization
    batch_size: int
    batches_per_epoch: int
    steps: int

    @property
    def peak(self) -> float:
        """Learning rate after the warm-up."""
        o = self.optimization
        return o.lr * (self.batch_size / o.base_batch_size if o.base_batch_size else 1.0)

    @property
    def highest(self) -> float:
        """The highest learning rate of the run, which may end before the warm-up does."""
        return max(map(self.lr, range(self.steps)))

    def lr(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, constant, linear decay."""
        o = self.optimization
        first = min(o.lr, self.peak) if o.base_batch_size else 0.0
        warmup = o.warmup_epochs * self.batches_per_epoch
        rise = min(1.0, step / warmup) if warmup else 1.0
        fall = min(1.0, (self.steps - step) / (o.lr_decay * self.steps)) if o.lr_decay else 1.0
        return (first + (self.peak - first) * rise) * fall
