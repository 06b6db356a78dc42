"""The pretraining loop."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from pipeline import presets
from pipeline.errors import UserError
from pipeline.loader import Batch, Loader
from pipeline.shards.index import Index
from pipeline.tree import Tree
from train import checkpoint
from train.loss import gdt_loss
from train.models.gdt import GDT, load_weights
from train.run import Log, StopSignal, place, precision
from train.settings import Pretrain, differences, to_json

_MINUTE = 60.0


def pretrain(settings: Pretrain) -> Path:
    """Train until the last step, from the run's checkpoint if there is one; returns the checkpoint's path.

    The losses are a function of the settings and the shards alone: a run that was killed and started again gives
    the same ones, bit for bit on a CPU. Raises UserError on bad input; exits with 128 + n on a stopping signal n.
    """
    rank, world, device = place(settings)
    # what `auto` came to is part of the run: another device or precision would not go on with the same numbers
    chosen: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
    settings = replace(settings, device=chosen, precision=precision(settings, device))
    index = Index.open(settings.shard_folder)
    tree = sampling_tree(index, settings, verbose=rank == 0)
    tree.plan(0, 0).share(rank, world)  # refuses, before any work, what the ranks cannot share
    trainer = Trainer(settings, tree, fingerprint(index), device, rank, world)
    first = trainer.resume()
    stop = StopSignal()
    plans = (plan.share(rank, world) for plan in tree.plans(first, trainer.steps))
    with (
        Loader(index, plans, settings.clip, device, settings.loading) as loader,
        Log(settings, first, trainer.steps, trainer.rate, rank) as log,
    ):
        for step, batch in enumerate(loader, first):
            log.loaded()
            loss = trainer.step(step, batch)
            value = loss.item()  # waits for the device, so that the log's times are true
            log.stepped(step, value, len(batch.video) * world)
            if not np.isfinite(value):
                raise UserError(f"the loss is {value} at step {step}; lower --optimization.rate")
            signalled = stop.agreed(device)
            if rank == 0 and (signalled or trainer.checkpoint_due(step + 1)):
                trainer.save(step + 1)
            if signalled:
                if world > 1:
                    dist.barrier()  # none ends, and has the others ended, before the checkpoint is written
                if rank == 0:
                    print(f"stopped after step {step + 1} of {trainer.steps}; the same command goes on from there")
                sys.exit(128 + signalled)
            log.next()
    if world > 1:
        dist.barrier()  # none leaves while another still talks to it
    return trainer.path


class Trainer:
    """Model, optimiser and schedule of one run."""

    def __init__(
        self, settings: Pretrain, tree: Tree, data: str, device: torch.device, rank: int = 0, world: int = 1
    ) -> None:
        self.settings, self.factors, self.device, self.rank = settings, tree.factors, device, rank
        self.steps = settings.steps or settings.epochs * tree.batches_per_epoch
        self.warmup = settings.optimization.warmup_epochs * tree.batches_per_epoch
        self.path = settings.run_folder / checkpoint.NAME
        self._data = data
        self._saved_at = time.monotonic()
        torch.manual_seed(settings.seed)
        model = GDT(settings.network, audio=presets.row(settings.preset).uses_audio).to(device)
        # the loader's layout, and the faster one
        model.video_network.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        if world > 1 and device.type == "cuda":
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.model = model
        self.replica = torch.nn.parallel.DistributedDataParallel(model) if world > 1 else model
        o = settings.optimization
        if o.method == "sgd":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
                model.parameters(), o.rate, o.momentum, weight_decay=o.weight_decay
            )
        else:
            self.optimizer = torch.optim.AdamW(
                model.parameters(), o.rate, (o.momentum, 0.999), weight_decay=o.weight_decay
            )

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, constant, linear fall at the end where one is set."""
        o = self.settings.optimization
        full = o.rate * (self.settings.videos_per_batch / o.per_videos if o.per_videos else 1.0)
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, (self.steps - step) / (o.decay * self.steps)) if o.decay else 1.0
        return full * rise * fall

    def step(self, step: int, batch: Batch) -> torch.Tensor:
        """One update; returns the loss of the whole batch, not yet copied from the device."""
        # dropout depends on the step, not on the history, so that a resumed run draws the same
        seed = np.random.SeedSequence([self.settings.seed, step, self.rank]).generate_state(1)[0]
        torch.manual_seed(int(seed))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step)
        self.replica.train()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            embeddings = self.replica(batch.video, batch.audio)
        loss = gdt_loss(embeddings, batch.table, self.factors, self.settings.temperature)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def checkpoint_due(self, done: int) -> bool:
        """Whether to save after `done` steps."""
        every = self.settings.checkpoint_steps
        late = time.monotonic() - self._saved_at > self.settings.checkpoint_minutes * _MINUTE
        return late or done == self.steps or (every > 0 and done % every == 0)

    def save(self, done: int) -> None:
        """Write the checkpoint after `done` steps."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(self.path, self.model, self.optimizer, done, to_json(self.settings), self._data)
        self._saved_at = time.monotonic()

    def resume(self) -> int:
        """Load the run's checkpoint, if there is one; returns the first step to do.

        Raises UserError if the run was made with other settings or other data.
        """
        if not self.path.is_file():
            return 0
        state = checkpoint.read(self.path)
        changed = differences(state["settings"], to_json(self.settings))
        if state["data"] != self._data:
            changed.append("the shards were made anew or hold other videos")
        if changed:
            raise UserError(
                f"{self.path.parent} holds a run with other settings ({'; '.join(changed)}); "
                "set --out to another folder, or go on with the same settings"
            )
        load_weights(self.model, state["model"], str(self.path))
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])


def sampling_tree(index: Index, settings: Pretrain, verbose: bool = True) -> Tree:
    """The tree over the videos of the split that are long enough for the preset. Raises UserError if too few are."""
    row = presets.row(settings.preset)
    clip = settings.clip
    starts = index.starts(clip.frames, clip.stride, clip.mel_frames if row.uses_audio else 0)
    inside = index.split == settings.split
    if not inside.any():
        raise UserError(f"no video of {index.folder} is in the split '{settings.split}'; set --split")
    enough = inside & (starts >= presets.shifts_per_video(settings.preset))
    silent = int((inside & (index.mel_count == 0)).sum()) if row.uses_audio else 0
    short = int(inside.sum() - enough.sum()) - silent
    if not enough.any():
        seconds = ((clip.frames - 1) * clip.stride + 1) / index.fps
        raise UserError(
            f"a clip takes {seconds:.2f} s, longer than every one of the {int(inside.sum())} videos "
            f"({silent} of them have no sound); lower --clip.frames or --clip.stride, or use longer videos"
        )
    if verbose:
        left_out = [f"{n} {why}" for n, why in ((silent, "have no sound"), (short, "are too short")) if n]
        print(
            f"{int(enough.sum())} of {int(inside.sum())} videos of {index.folder} ({settings.split}) used by preset "
            f"{settings.preset}" + (f"; {', '.join(left_out)}" if left_out else "")
        )
    factors = presets.factors(settings.preset, np.flatnonzero(enough), starts, settings.videos_per_batch)
    return Tree(factors, settings.augmentation, (clip.mel_frames, index.bands), int(enough.sum()), settings.seed)


def fingerprint(index: Index) -> str:
    """Hash of the videos, their lengths, settings and statistics: with others, a run would not go on as it began."""
    rows = zip(index.id, index.split, index.frame_count.tolist(), index.mel_count.tolist(), strict=True)
    statistics = [index.statistics.pixel_mean.tolist(), index.statistics.pixel_std.tolist(), index.statistics.mel_mean]
    text = json.dumps([list(rows), index.settings, index.shard_bytes.tolist(), statistics])
    return hashlib.sha256(text.encode()).hexdigest()
