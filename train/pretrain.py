"""The pretraining loop."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from tqdm import tqdm

from pipeline.errors import UserError, first_line, is_out_of_memory
from pipeline.files import is_full
from pipeline.groups import shared
from pipeline.loader import Batch, Loader
from pipeline.shards.index import Index, fingerprint
from pipeline.shards.reader import DamagedVideo
from pipeline.tree import Tree
from train import checkpoint
from train.checkpoint import Data, load_model
from train.cost import arithmetic, peak
from train.crossmodal import Probe
from train.figures import Report, Reports
from train.kernels import Kernels
from train.models.gdt import GDT, load_weights
from train.norm import synchronised
from train.preparing import PRECISIONS, prepared
from train.provenance import Provenance, Start, record
from train.ranks import require_alike, watched
from train.resuming import require_same_run
from train.run import Log, StopSignal, Trace, place, precision, what_next
from train.saving import Saver
from train.schedule import Schedule
from train.settings import Pretrain, flags, to_json
from train.step import Figures, Gradient, How
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
    say = print if rank == 0 else _silent
    index = Index.open(settings.shard_folder)
    data = fingerprint(index)
    tree = settings.tree(index, say)
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
    state, wrong = checkpoint.read_newest(settings.run_folder)
    plan = prepared(settings, tree.composition, tree.bands, state, device, world, say, trial=device.type != "cpu")
    settings, way = plan.settings, plan.fit
    trainer = Trainer(
        settings, tree, Data(data, index.statistics, said), device, rank, world, plan.kernels, way.recomputed
    )
    first = trainer.resume(state, wrong)
    if first == 0 and start is not None:
        fresh = start.foreign.fresh if start.foreign else ()
        taken = begin_with(trainer.model, start.model, str(settings.init), fresh)
        say(f"starting from {settings.init}: {taken}")
    require_alike(
        {"step": str(first), "state of the model": trainer.digest() if world > 1 else ""},
        f"the folder {settings.run_folder} must be on a disk that all ranks share",
    )
    trainer.settle()
    if first == trainer.steps:
        say(f"{trainer.path} is trained to its last step, {trainer.steps}; nothing to do")
        return trainer.path
    say(str(way))
    probe = Probe(settings, index, device, words) if settings.probe_every and rank == 0 else None
    if rank == 0:
        record(settings.run_folder, Start(first, data, provenance, world))
    plans = (shared(plan, rank, world, way.norm_leaves) for plan in tree.plans(first, trainer.steps))
    with (
        Saver() as saver,
        Loader(index, plans, settings.clip, device, settings.loading, words) as loader,
        Log(settings, first, trainer.steps, trainer.schedule.rate, rank, trainer.flops(index.bands)) as log,
        Skipped(log) as skipped,
        StopSignal() as stop,
        Trace(settings, rank) as trace,
    ):
        if probe and first == 0:
            log.probed(0, probe(trainer.model))  # what the run begins with
        reports = Reports(device)
        clips = settings.videos_per_batch * tree.composition.clips_per_video

        def told(report: Report | None) -> int:
            """Log a step and see whether it has come to anything; the signal that any rank had got then."""
            if report is None:
                return 0
            log.stepped(report, clips)
            if report.loss == 0 and skipped:
                raise UserError(
                    f"every pair of step {report.step} is damaged, so nothing can be learned; see 'make verify'"
                )
            if not np.isfinite(report.loss):
                raise UserError(f"the loss is {report.loss} at step {report.step}; lower --optimization.rate")
            return report.signal

        reports.begin()
        for step, batch in enumerate(saved_before_damage(loader, trainer, reports, told, first, rank), first):
            reports.loaded()
            skipped.update(batch.damaged)
            signalled = told(reports.add(step, trainer.step(step, batch), stop.signal))
            if world == 1:
                signalled = stop.signal
            due = trainer.checkpoint_due(step + 1) or bool(signalled)
            probing = probe and ((step + 1) % settings.probe_every == 0 or step + 1 == trainer.steps)
            if due or probing:
                told(reports.last())  # nothing is saved before it is known to be in order
            if probe and probing:
                log.probed(step + 1, probe(trainer.model))
            if due and rank == 0:
                trainer.save(step + 1, saver)
            saver.check()
            if signalled:
                saver.wait()
                if world > 1:
                    dist.barrier()  # none ends, and has the others ended, before the checkpoint is written
                if rank == 0:
                    log.say(
                        f"stopped after step {step + 1} of {trainer.steps}; the same command goes on from there",
                        sys.stdout,
                    )
                sys.exit(128 + signalled)
            trace.step()
            reports.begin()
    if world > 1:
        dist.barrier()  # none leaves while another still talks to it
    if rank == 0:
        print(what_next(settings, trainer.path))
    return trainer.path


def _silent(text: str) -> None:
    """What the first rank says for all."""


class Trainer:
    """Model, optimiser and schedule of one run."""

    def __init__(
        self, settings: Pretrain, tree: Tree, data: Data, device: torch.device, rank: int = 0, world: int = 1,
        kernels: Kernels | None = None, recomputed: int = 0,
    ) -> None:  # fmt: skip
        """`recomputed` are parts of the video trunk, as in `R2Plus1D`."""
        self.settings, self.device, self.rank, self.world = settings, device, rank, world
        self.composition = tree.composition
        self.schedule = Schedule(settings, tree.batches_per_epoch)
        self.steps = self.schedule.steps
        self.path = settings.run_folder / checkpoint.NAME
        self._data = data
        self._saved_at = time.monotonic()
        self._damaged = False
        torch.manual_seed(settings.seed)
        model = GDT(settings.network, tree.composition.modalities).to(device)
        if world > 1 and not settings.norm_leaves:
            synchronised(model, device)
        if "video" in model.modalities:
            model.video_network.base.recomputed = recomputed
        numbers = PRECISIONS[settings.precision]
        (kernels or Kernels(numbers)).apply(model)
        self.model = model
        how = How(tree.composition.factors, settings.temperature, settings.seed, numbers, settings.norm_leaves or 0,
                  settings.chunk_leaves)  # fmt: skip
        self.gradient = Gradient(model, how, world, tqdm.write)
        o, fused = settings.optimization, device.type == "cuda" or None
        if o.method == "sgd":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
                model.parameters(), o.rate, o.momentum, weight_decay=o.weight_decay, fused=fused
            )
        else:
            self.optimizer = torch.optim.AdamW(
                model.parameters(), o.rate, (o.momentum, 0.999), weight_decay=o.weight_decay, fused=fused
            )

    def step(self, step: int, batch: Batch) -> Figures:
        """One update; its figures are not yet copied from the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(step)
        figures = self.gradient(step, batch)
        self.optimizer.step()
        return figures

    def checkpoint_due(self, done: int) -> bool:
        """Whether to save after `done` steps."""
        every = self.settings.checkpoint_steps
        late = time.monotonic() - self._saved_at > self.settings.checkpoint_minutes * _MINUTE
        return late or done == self.steps or (every > 0 and done % every == 0)

    def save(self, done: int, saver: Saver | None = None) -> None:
        """Write the checkpoint after `done` steps, or have it written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        state = checkpoint.state_of(self.model, self.optimizer, done, to_json(self.settings), self._data)
        if saver is None:
            checkpoint.write(self.path, state)
        else:
            saver.start(partial(checkpoint.write, self.path), state)
        self._saved_at = time.monotonic()

    def resume(self, state: Mapping[str, Any] | None, wrong: str = "") -> int:
        """Go on from the state of the run's checkpoint, if there is one; returns the first step to do.

        `wrong` is what is wrong with a newer one. Raises UserError if the run was made with other settings or other
        data, or is longer than what is asked for.
        """
        if state is None:
            return 0
        self._damaged = bool(wrong)
        if wrong and self.rank == 0:
            print(f"warning: {wrong}going on from {checkpoint.PREVIOUS}, step {state['step']}", file=sys.stderr)
        require_same_run(state, self.settings, self._data, self.schedule, self.path)
        load_weights(self.model, state["model"], str(self.path))
        self.optimizer.load_state_dict(dict(state["optimizer"]))
        return int(state["step"])

    def flops(self, bands: int) -> tuple[float, float] | None:
        """Of one step on each GPU, and per second that its maker states; None where that is not known."""
        stated = peak(self.device)
        if stated is None:
            return None
        settings, composition = self.settings, self.composition
        of_leaf = arithmetic(settings.network, settings.clip, bands, composition.modalities)
        leaves = settings.videos_per_batch * composition.clips_per_video / self.world
        return leaves * sum(of_leaf.values()), stated

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
            f"out of memory ({first_line(error)}); lower --chunk-leaves, --loading.prefetch or "
            "--loading.clips-at-once, which change no number, begin anew with smaller --norm-leaves or "
            f"--videos-per-batch (now {settings.videos_per_batch}), which do, or use more GPUs"
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


def saved_before_damage(
    loader: Loader, trainer: Trainer, reports: Reports, told: Callable[[Report | None], int], first: int, rank: int
) -> Iterator[Batch]:  # fmt: skip
    """The batches; where damage ends them, what was learned until then is saved."""
    done = first
    try:
        for batch in loader:
            yield batch
            done += 1
        told(reports.last())
    except DamagedVideo as damage:
        told(reports.last())
        if rank == 0 and done > first:
            trainer.save(done)
        raise UserError(f"{damage}; --loading.damaged skip goes on without such clips") from damage
