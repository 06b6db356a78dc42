"""The pretraining loop."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from pipeline.errors import UserError, first_line, is_out_of_memory
from pipeline.files import is_full
from pipeline.loader import Batch, Loader
from pipeline.shards.index import Index, fingerprint
from pipeline.shards.reader import DamagedVideo
from pipeline.tree import Tree
from train import checkpoint
from train.checkpoint import Data, load_model
from train.crossmodal import Probe
from train.loss import gdt_loss
from train.models.gdt import GDT, load_weights
from train.provenance import Provenance, Start, record
from train.ranks import require_alike, watched
from train.resuming import require_same_run
from train.run import Log, StopSignal, place, precision, what_next
from train.schedule import Schedule
from train.settings import Pretrain, flags, to_json
from train.tensors import raw

_MINUTE = 60.0


def pretrain(settings: Pretrain) -> Path:
    """Train until the last step, from the run's checkpoint if there is one; returns the checkpoint's path.

    The losses are a function of the settings and the shards alone: a run that was killed and started again gives
    the same ones, bit for bit on a CPU. Raises UserError on bad input; exits with 128 + n on a stopping signal n.
    """
    rank, world, device = place(settings)
    # what `auto` came to is part of the run: another device or precision would not go on with the same numbers
    chosen: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
    settings = replace(settings.resolved(), device=chosen, precision=precision(settings, device))
    with watched(device), shortage_told(settings):
        return _pretrain(settings, rank, world, device)


def _pretrain(settings: Pretrain, rank: int, world: int, device: torch.device) -> Path:
    provenance = Provenance.of(device)
    index = Index.open(settings.shard_folder)
    data = fingerprint(index)
    tree = settings.tree(index, print if rank == 0 else lambda _: None)
    tree.plan(0, 0).share(rank, world)  # refuses, before any work, what the ranks cannot share
    start = load_model(settings.init) if settings.init else None
    if start is not None:
        index = start.normalised(index)
    words = settings.words(index)
    said = ""
    if words is not None:
        # which words there are is under the seals of the shards, not in the fingerprint
        said = f"{words.checksum()}{zlib.crc32(index.shard_seal.tobytes()):08x}"
        settings = replace(settings, network=replace(settings.network, word_dimensions=words.dimensions))
    require_alike(
        flags(settings)
        | {"set of shards": data[:12], "set of words": said, "version of torch": torch.__version__}
        | {"normalisation of the inputs": str(index.statistics.to_numbers())},
        "start all of them with the same command, the same software and the same shards",
    )
    trainer = Trainer(settings, tree, Data(data, index.statistics, said), device, rank, world)
    first = trainer.resume()
    if first == 0 and start is not None:
        fresh = start.foreign.fresh if start.foreign else ()
        taken = begin_with(trainer.model, start.model, str(settings.init), fresh)
        if rank == 0:
            print(f"starting from {settings.init}: {taken}")
    require_alike(
        {"step": str(first), "state of the model": trainer.digest() if world > 1 else ""},
        f"the folder {settings.run_folder} must be on a disk that all ranks share",
    )
    trainer.settle()
    if first == trainer.steps:
        if rank == 0:
            print(f"{trainer.path} is trained to its last step, {trainer.steps}; nothing to do")
        return trainer.path
    probe = Probe(settings, index, device, words) if settings.probe_every and rank == 0 else None
    if rank == 0:
        record(settings.run_folder, Start(first, data, provenance))
    plans = (plan.share(rank, world) for plan in tree.plans(first, trainer.steps))
    with (
        Loader(index, plans, settings.clip, device, settings.loading, words) as loader,
        Log(settings, first, trainer.steps, trainer.schedule.rate, rank) as log,
        Skipped(log) as skipped,
        StopSignal() as stop,
    ):
        if probe and first == 0:
            log.probed(0, probe(trainer.model))  # what the run begins with
        for step, batch in enumerate(saved_before_damage(loader, trainer, first, rank), first):
            log.loaded()
            skipped.update(batch.damaged)
            loss = trainer.step(step, batch)
            value = loss.item()  # waits for the device, so that the log's times are true
            log.stepped(step, value, len(next(iter(batch.inputs.values()))) * world)
            if value == 0 and batch.damaged:
                raise UserError(f"every pair of step {step} is damaged, so nothing can be learned; see 'make verify'")
            if not np.isfinite(value):
                raise UserError(f"the loss is {value} at step {step}; lower --optimization.rate")
            if probe and ((step + 1) % settings.probe_every == 0 or step + 1 == trainer.steps):
                log.probed(step + 1, probe(trainer.model))
            signalled = stop.agreed(device)
            if rank == 0 and (signalled or trainer.checkpoint_due(step + 1)):
                trainer.save(step + 1)
            if signalled:
                if world > 1:
                    dist.barrier()  # none ends, and has the others ended, before the checkpoint is written
                if rank == 0:
                    log.say(
                        f"stopped after step {step + 1} of {trainer.steps}; the same command goes on from there",
                        sys.stdout,
                    )
                sys.exit(128 + signalled)
            log.next()
    if world > 1:
        dist.barrier()  # none leaves while another still talks to it
    if rank == 0:
        print(what_next(settings, trainer.path))
    return trainer.path


class Trainer:
    """Model, optimiser and schedule of one run."""

    def __init__(
        self, settings: Pretrain, tree: Tree, data: Data, device: torch.device, rank: int = 0, world: int = 1
    ) -> None:
        self.settings, self.factors, self.device, self.rank = settings, tree.composition.factors, device, rank
        self.schedule = Schedule(settings, tree.batches_per_epoch)
        self.steps = self.schedule.steps
        self.path = settings.run_folder / checkpoint.NAME
        self._data = data
        self._saved_at = time.monotonic()
        self._damaged = False
        torch.manual_seed(settings.seed)
        model = GDT(settings.network, tree.composition.modalities).to(device)
        for module in model.modules():
            if isinstance(module, torch.nn.Conv3d):  # the layout of pixels, and the faster one
                module.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        self.model = model = synchronised(model, device, world)
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

    def step(self, step: int, batch: Batch) -> torch.Tensor:
        """One update; returns the loss of the whole batch, not yet copied from the device."""
        # dropout depends on the step, not on the history, so that a resumed run draws the same
        seed = np.random.SeedSequence([self.settings.seed, step, self.rank]).generate_state(1)[0]
        torch.manual_seed(int(seed))
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(step)
        self.replica.train()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            embeddings = self.replica(batch.inputs)
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

        Raises UserError if the run was made with other settings or other data, or is longer than what is asked for.
        """
        state, wrong = checkpoint.read_newest(self.path.parent)
        if state is None:
            return 0
        self._damaged = bool(wrong)
        if wrong and self.rank == 0:
            print(f"warning: {wrong}going on from {checkpoint.PREVIOUS}, step {state['step']}", file=sys.stderr)
        require_same_run(state, self.settings, self._data, self.schedule, self.path)
        load_weights(self.model, state["model"], str(self.path))
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def settle(self) -> None:
        """Once every rank has resumed: take a damaged checkpoint out of the way of those to come."""
        if self._damaged and self.rank == 0:
            checkpoint.set_aside(self.path.parent)

    def digest(self) -> str:
        """Hash of the weights and of the optimiser's state."""
        value = hashlib.sha256()
        for tensor in _tensors([self.model.state_dict(), self.optimizer.state_dict()]):
            value.update(raw(tensor))
        return value.hexdigest()


def begin_with(model: GDT, start: GDT, source: str, fresh: Collection[str] = ()) -> str:
    """Give a model the weights of those parts that another one has too, but for its random ones; says which.

    Raises UserError where they do not fit.
    """
    parts = {name: part for name, part in start.named_children() if name not in fresh}
    taken = [name for name, _ in model.named_children() if name in parts]
    for name in taken:
        load_weights(model.get_submodule(name), parts[name].state_dict(), f"{source} ({name})")
    left = [name for name, _ in model.named_children() if name not in parts]
    return f"took {', '.join(taken) or 'nothing'}" + (f"; random {', '.join(left)}" if left else "")


def synchronised(model: GDT, device: torch.device, world: int) -> GDT:
    """The model with batch norm over all ranks, which torch has for GPUs only."""
    if world > 1 and device.type == "cuda":
        return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict | list):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors(value)


@contextlib.contextmanager
def shortage_told(settings: Pretrain) -> Iterator[None]:
    """A lack of memory, or of room for the log, as a sentence that says what to change."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise UserError(
            f"no space left on the disk of {settings.run_folder}; free some, then run the same command again, which "
            "goes on from the last checkpoint"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"out of memory ({first_line(error)}); lower --videos-per-batch (now {settings.videos_per_batch}), which "
            "changes the run, or --loading.prefetch and --loading.clips-at-once, which do not, or use more GPUs"
        ) from error


class Skipped(Counter[str]):
    """Counts the clips that were skipped since they are damaged, and names them at the end, however that comes."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def __enter__(self) -> Skipped:
        return self

    def __exit__(self, *error: object) -> None:
        if self:
            self._log.say(f"{self.total()} damaged clips were skipped and counted for nothing:")
            for what, times in self.most_common():
                self._log.say(f"{times:6d} of {what}")


def saved_before_damage(loader: Loader, trainer: Trainer, first: int, rank: int) -> Iterator[Batch]:
    """The batches; where damage ends them, what was learned until then is saved."""
    done = first
    try:
        for batch in loader:
            yield batch
            done += 1
    except DamagedVideo as damage:
        if rank == 0 and done > first:
            trainer.save(done)
        raise UserError(f"{damage}; --loading.damaged skip goes on without such clips") from damage
