"""The pretraining loop."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from pipeline import presets
from pipeline.errors import UserError
from pipeline.loader import Batch, Loader
from pipeline.shards import Index, write_text
from pipeline.tree import Tree
from train import checkpoint
from train.loss import gdt_loss
from train.models.gdt import GDT, load_weights
from train.settings import Pretrain, differences, to_json

_MINUTE = 60.0


def pretrain(settings: Pretrain) -> Path:
    """Train until the last step, from the run's checkpoint if there is one; returns the checkpoint's path.

    The losses are a function of the settings and the shards alone: a run that was killed and started again gives
    the same ones, bit for bit on a CPU. Raises UserError on bad input; exits with 128 + n on a stopping signal n.
    """
    rank, world, device = _place(settings)
    # what `auto` came to is part of the run: another device or precision would not go on with the same numbers
    chosen: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
    settings = replace(settings, device=chosen, precision=_precision(settings, device))
    index = Index.open(settings.shard_folder)
    tree = sampling_tree(index, settings, verbose=rank == 0)
    tree.plan(0, 0).share(rank, world)  # refuses, before any work, what the ranks cannot share
    trainer = Trainer(settings, tree, fingerprint(index), device, rank, world)
    first = trainer.resume()
    stop = _StopSignal()
    plans = (plan.share(rank, world) for plan in tree.plans(first, trainer.steps))
    with (
        Loader(index, plans, settings.clip, device, settings.loading) as loader,
        Log(settings, trainer, first, rank) as log,
    ):
        for step, batch in enumerate(loader, first):
            log.loaded()
            loss = trainer.step(step, batch)
            log.stepped(step, loss, len(batch.video) * world)
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


def leave_without_teardown() -> NoReturn:
    """End a rank whose work is on disk, successfully.

    Threads of torch's communication that still run while the interpreter is torn down now and then abort the process
    ("terminate called without an active exception"), and torchrun would call a finished run a failed one.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


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


class Log:
    """Progress bar, TensorBoard and metrics.jsonl of one run, on the first rank."""

    def __init__(self, settings: Pretrain, trainer: Trainer, first: int, rank: int) -> None:
        self._active = rank == 0
        self._device = trainer.device
        if not self._active:
            return
        folder = settings.run_folder
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "settings.json", json.dumps(json.loads(to_json(settings)), indent=2) + "\n")
        path = folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        # steps after the checkpoint are done again, and a line that was cut off by a crash is one of them
        write_text(path, "".join(line + "\n" for line in lines if _step_of(line) < first))
        self._file = path.open("a", buffering=1)
        self._board = SummaryWriter(str(folder), purge_step=first)
        self._bar = tqdm(
            total=trainer.steps, initial=first, unit="step", desc=f"pretrain {settings.preset}",
            mininterval=0.5 if sys.stderr.isatty() else 30.0,
        )  # fmt: skip
        self._start = self._ready = time.perf_counter()
        self._rate = trainer.rate

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        if self._active:
            self._bar.close()
            self._board.close()
            self._file.close()

    def next(self) -> None:
        """What comes now is waiting for the next batch."""
        self._start = time.perf_counter()

    def loaded(self) -> None:
        """The batch has arrived; what comes now is computing."""
        self._ready = time.perf_counter()

    def stepped(self, step: int, loss: torch.Tensor, clips: int) -> None:
        """The step is done, over `clips` video clips on all ranks."""
        if not self._active:
            return
        value = loss.item()  # waits for the device, so the times below are true
        now = time.perf_counter()
        waiting, total = self._ready - self._start, now - self._start
        row = {
            "step": step, "loss": value, "rate": self._rate(step), "clips_per_second": clips / total,
            "waiting": waiting / total,
        }  # fmt: skip
        self._file.write(json.dumps(row) + "\n")
        for name in ("loss", "rate", "clips_per_second", "waiting"):
            self._board.add_scalar(name, row[name], step)
        self._bar.set_postfix_str(
            f"loss {value:.3f}, {clips / total:.0f} clips/s, {waiting / total:.0%} waiting", False
        )
        self._bar.update()
        if not np.isfinite(value):
            raise UserError(f"the loss is {value} at step {step}; lower --optimization.rate")


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return np.inf


@dataclass
class _StopSignal:
    """Remembers SIGTERM, SIGUSR1 or Ctrl-C until the step is done."""

    signal: int = 0

    def __post_init__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._remember)

    def agreed(self, device: torch.device) -> int:
        """The signal that any rank got, so that all stop after the same step; 0 for none."""
        if not dist.is_initialized():
            return self.signal
        signalled = torch.tensor(self.signal, device=device)
        dist.all_reduce(signalled, dist.ReduceOp.MAX)
        return int(signalled)

    def _remember(self, number: int, frame: Any) -> None:
        if self.signal:
            raise KeyboardInterrupt  # told twice: stop at once
        self.signal = number


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


def _precision(settings: Pretrain, device: torch.device) -> Literal["float32", "bfloat16"]:
    if settings.precision == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    return settings.precision


def _place(settings: Pretrain) -> tuple[int, int, torch.device]:
    """Rank, number of ranks, device; joins the process group when started by torchrun."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU; use --device cpu, or check the driver with nvidia-smi")
    cuda = torch.cuda.is_available() and settings.device != "cpu"
    rank, world, local = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    if cuda and local >= torch.cuda.device_count():
        raise UserError(f"{local + 1} or more processes but only {torch.cuda.device_count()} GPUs; lower GPUS")
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
    return rank, world, device
