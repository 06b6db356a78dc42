"""How long a run is, and the learning rate of each of its steps."""

from __future__ import annotations

from gdt.train.settings import Pretrain


class Schedule:
    """Of a run with these settings over so many batches per epoch."""

    def __init__(self, settings: Pretrain, batches_per_epoch: int) -> None:
        self.optimization, self.batches_per_epoch = settings.optimization, batches_per_epoch
        self.steps = settings.steps or settings.epochs * batches_per_epoch
        self._warmup = settings.optimization.warmup_epochs * batches_per_epoch
        self._videos = settings.videos_per_batch

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up from the rate of one GPU, constant, linear fall where one is set."""
        o = self.optimization
        full = o.rate * (self._videos / o.per_videos if o.per_videos else 1.0)
        first = min(o.rate, full) if o.per_videos else 0.0
        rise = min(1.0, step / self._warmup) if self._warmup else 1.0
        fall = min(1.0, (self.steps - step) / (o.decay * self.steps)) if o.decay else 1.0
        return (first + (full - first) * rise) * fall
