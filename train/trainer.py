"""A run: `Trainer.__init__` makes what it needs, and `Trainer.train` says what it does step by step."""

from __future__ import annotations

import copy
import sys
import textwrap
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from tqdm import tqdm

from gdt.common.errors import UserError
from gdt.pipeline.groups import take_rank
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.reader import DamagedVideo
from gdt.train import checkpoint
from gdt.train.checkpoint import Data, Saver, load_model
from gdt.train.crossmodal import Probe
from gdt.train.distributed import StopSignal, barrier, require_alike
from gdt.train.kernels import precision
from gdt.train.learner import Learner, begin_with
from gdt.train.log import Log
from gdt.train.memory import prepared
from gdt.train.metrics import Report, Reports, traced
from gdt.train.provenance import Provenance, Start, record
from gdt.train.settings import Pretrain, from_json, shared_flags
from gdt.train.trained import Trained

_MINUTE = 60.0


class Trainer:
    """One run, on one of its ranks."""

    def __init__(self, settings: Pretrain, rank: int, world: int, device: torch.device) -> None:
        """The run as it begins, or goes on from its newest checkpoint. Raises UserError on bad input."""
        self.rank, self.world, self.device = rank, world, device
        self.provenance = Provenance.of(device)
        # what `auto` came to is part of the run: another device or precision would not go on with the same numbers
        any_precision = settings.precision == "auto"
        settings = replace(
            settings.resolved(),
            device="cuda" if device.type == "cuda" else "cpu",
            precision=precision(settings.precision, device),
        )
        self.index = Index.open(settings.shard_folder)
        shards = fingerprint(self.index)  # whatever the inputs are normalised with
        state, wrong = checkpoint.read_newest(settings.run_folder)
        begun = from_json(state["settings"], str(settings.run_folder / checkpoint.NAME)) if state else None
        if state and settings.cached_batches:
            raise UserError(
                f"{settings.run_folder} holds a run, and --cached-batches only measures speed; set --out to another "
                "folder"
            )
        if begun and settings.batch_size is None:
            settings = replace(settings, batch_size=begun.batch_size)
        default = settings.default_batch_size if settings.batch_size is None else None
        settings = settings.with_batch_size(self.index, world)
        self.tree = settings.tree(self.index, partial(self.describe, "data"))
        videos = self.tree.composition.batch_size
        only = f" (default {default}, but only {len(self.tree.source.videos)} videos can be used)"
        self.batch = f"batch_size {videos}{only if default and videos < default else ''}"
        start = load_model(settings.init) if settings.init else None
        if start is not None:
            self.index = start.normalised(self.index)
        self.words = settings.words(self.index)
        said = ""
        if self.words is not None:
            # which words there are is under the seals of the shards, not in the fingerprint
            said = f"{self.words.checksum()}{zlib.crc32(self.index.shard_seal.tobytes()):08x}"
            settings = replace(settings, network=replace(settings.network, word_dimensions=self.words.dimensions))
        self.data = Data(shards, self.index.statistics, said)
        require_alike(
            shared_flags(settings)
            | {"set of shards": shards[:12], "set of words": said, "version of torch": torch.__version__}
            | {"normalisation of the inputs": str(self.index.statistics.to_numbers())},
            "start all of them with the same command, the same software and the same shards",
        )
        if any_precision and begun:  # a run that found bfloat16 wrong goes on without it
            settings = replace(settings, precision=begun.precision)
        trial = device.type != "cpu"
        plan = prepared(settings, self.tree.composition, self.index.bands, begun, device, world, self.say, trial)
        self.settings, self.fit, self.kernels = plan.settings, plan.fit, plan.kernels
        self.learner = Learner(self.settings, self.tree, self.data, device, world, plan.kernels, self.fit.recomputed)
        self.steps, self.path = self.learner.schedule.steps, self.learner.path
        self.weights = "random weights"
        self.first = self.begin(start) if state is None else self.go_on(state, wrong)
        require_alike(
            {"step": str(self.first), "state of the model": self.learner.digest() if world > 1 else ""},
            f"the folder {settings.run_folder} must be on a disk that all ranks share",
        )
        if wrong and rank == 0:
            checkpoint.set_aside(settings.run_folder)  # out of the way of those to come

    def begin(self, start: Trained | None) -> int:
        """Begin with random weights, or those of --init; returns the first step."""
        if start is not None:
            fresh = start.foreign.fresh if start.foreign else ()
            taken = begin_with(self.learner.model, start.model, str(self.settings.init), fresh)
            self.weights = f"starting from {self.settings.init}: {taken}"
        return 0

    def go_on(self, state: Mapping[str, Any], wrong: str) -> int:
        """Go on from a checkpoint; `wrong` is what is wrong with a newer one. Returns the first step to do."""
        if wrong and self.rank == 0:
            print(f"warning: {wrong}going on from {checkpoint.PREVIOUS}, step {state['step']}", file=sys.stderr)
        return self.learner.resume(state)

    def train(self) -> None:
        """Do the steps that are left.

        Exits with 128 + n after a signal n. Raises UserError where the loss is not a number or a clip is damaged.
        """
        self.describe_run()
        s, heard = self.settings, 0
        self.probe = Probe(s, self.index, self.device, self.words) if s.probe_every and self.rank == 0 else None
        if self.rank == 0:
            record(s.run_folder, Start(self.first, self.data.fingerprint, self.provenance, self.world))
        with (
            Saver(partial(checkpoint.write, self.path)) as self.saver,
            self.loader() as loader,
            self.logging() as self.log,
            skipped_told() as self.skipped,
            StopSignal() as stop,
            traced(s.run_folder, s.profile if self.rank == 0 else 0) as trace,
        ):
            if self.first == 0:
                self.run_probe(0)  # what the run begins with
            self.reports, self.saved_at = Reports(self.device), time.monotonic()
            for step, batch in enumerate(self.batches(loader), self.first):
                self.reports.loaded()
                self.skipped.update(batch.damaged)
                metrics = self.learner.step(step, batch)
                # the report of the step before tells every rank what signals any had got: all stop after the same step
                signal = self.log_step(self.reports.add(step, metrics, stop.signal)) or heard
                if self.world == 1:
                    signal = stop.signal
                done, heard = step + 1, 0
                saving, probing = bool(signal) or self.checkpoint_due(done), self.probe_due(done)
                if saving or probing:
                    heard = self.log_step(self.reports.last())  # nothing is saved before it is known to be in order
                if probing:
                    self.run_probe(done)
                if saving:
                    self.save(done)
                self.saver.check()
                if signal:
                    self.leave(done, signal)
                trace()
                self.reports.begin()

    def loader(self) -> Loader:
        """Of this rank's share of each batch."""
        plans = self.tree.plans(self.first, min(self.steps, self.settings.cached_batches or self.steps))
        shares = (take_rank(plan, self.rank, self.world, self.fit.bn_group_size) for plan in plans)
        return Loader(self.index, shares, self.settings.clip, self.device, self.settings.loading, self.words)

    def batches(self, loader: Loader) -> Iterator[Batch]:
        """What the loader makes; where damage ends that, what was learned until then is saved."""
        done = self.first
        if self.settings.cached_batches:
            held = [copy.deepcopy(batch) for batch in loader]
            yield from (held[step % len(held)] for step in range(self.steps))
            return
        try:
            for batch in loader:
                yield batch
                done += 1
        except DamagedVideo as damage:
            self.log_step(self.reports.last())
            if done > self.first:
                self.save(done)
                self.saver.wait()
            raise UserError(f"{damage}; --loading.damaged skip goes on without such clips") from damage

    def logging(self) -> AbstractContextManager[Log | None]:
        """The log, on the first rank."""
        if self.rank:
            return nullcontext()
        clips = self.tree.composition.batch_size * self.tree.composition.clips_per_video
        flops = self.learner.flops(self.index.bands)
        return Log(self.settings, self.first, self.learner.schedule, clips, flops)

    def log_step(self, report: Report | None) -> int:
        """Log a step and see whether it has come to anything; the signal that any rank had got then, 0 for none."""
        if report is None:
            return 0
        if self.log:
            self.log.stepped(report)
        loss = report.metrics.loss
        if loss == 0 and self.skipped:
            raise UserError(
                f"every pair of step {report.step} is damaged, so nothing can be learned; see 'make verify'"
            )
        if not np.isfinite(loss):
            raise UserError(f"the loss is {loss} at step {report.step}; lower --optimization.lr")
        return report.signal

    def probe_due(self, done: int) -> bool:
        """Whether to probe after `done` steps."""
        return self.probe is not None and (done % self.settings.probe_every == 0 or done == self.steps)

    def run_probe(self, done: int) -> None:
        """Metric recall among held-out videos after `done` steps."""
        if self.probe and self.log:
            self.log.probed(done, self.probe(self.learner.model))

    def checkpoint_due(self, done: int) -> bool:
        """Whether to save after `done` steps; the first rank, which saves, looks at the clock for all."""
        every = self.settings.checkpoint_steps
        late = self.rank == 0 and time.monotonic() - self.saved_at > self.settings.checkpoint_minutes * _MINUTE
        return late or done == self.steps or (every > 0 and done % every == 0)

    def save(self, done: int) -> None:
        """Have the checkpoint after `done` steps written, by the first rank."""
        if self.rank == 0 and not self.settings.cached_batches:
            self.saver.start(self.learner.state(done))
            self.saved_at = time.monotonic()

    def leave(self, done: int, signal: int) -> NoReturn:
        """Stop after `done` steps since a signal asked for it."""
        self.saver.wait()
        barrier()  # none ends, and has the others ended, before the checkpoint is written
        if self.rank == 0:
            text = f"stopped after step {done} of {self.steps}; the same command goes on from there"
            tqdm.write(text, file=sys.stdout)
        sys.exit(128 + signal)

    def describe_run(self) -> None:
        """Print what the run does, on what, and where it goes."""
        s, composition, schedule = self.settings, self.tree.composition, self.learner.schedule
        clips = composition.batch_size * composition.clips_per_video
        parameters = sum(weight.numel() for weight in self.learner.model.parameters())
        resumed = f"resume from step {self.first}" if self.first else self.weights
        epochs = f"{self.steps / schedule.batches_per_epoch:.4g} epochs of {schedule.batches_per_epoch}"
        falling = f", falls to 0 over the last {100 * s.optimization.lr_decay:.0f} %" if s.optimization.lr_decay else ""
        rates = f"{s.optimization.optimizer}, lr {schedule.peak:.3g}{falling}"
        ranks = f"; {self.world} ranks" if self.world > 1 else ""
        self.describe("composition", f"{s.name}: {composition}")
        self.describe("network", f"{s.network.backbone}, {parameters / 1e6:.1f} M parameters, {resumed}")
        self.describe("batch", f"{self.batch}; {clips} clips per modality; {self.fit.batch}")
        self.describe("memory", self.fit.memory)
        self.describe("device", f"{self.provenance.device}; {self.kernels}{ranks}")
        self.describe("schedule", f"{self.steps} steps ({epochs}), {rates}")
        self.describe("folder", str(s.run_folder))
        if s.cached_batches:
            self.describe(
                "warning",
                f"only the first {s.cached_batches} batches are used, to measure speed; no checkpoint is written",
            )

    def describe(self, name: str, text: str) -> None:
        """Print a line of the description of the run, wrapped at 100 columns."""
        self.say(
            textwrap.fill(
                f"{name:13}{text}", 100, subsequent_indent=" " * 13, break_long_words=False, break_on_hyphens=False
            )
        )

    def say(self, text: str) -> None:
        """Print from the first rank."""
        if self.rank == 0:
            print(text)


@contextmanager
def skipped_told() -> Iterator[Counter[str]]:
    """Counts the clips that are skipped since they are damaged, and names them at the end, however that comes."""
    skipped: Counter[str] = Counter()
    try:
        yield skipped
    finally:
        if skipped:
            tqdm.write(f"{skipped.total()} damaged clips were skipped and counted for nothing:", file=sys.stderr)
            for what, times in skipped.most_common():
                tqdm.write(f"{times:6d} of {what}", file=sys.stderr)
