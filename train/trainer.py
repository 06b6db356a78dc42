"""A run: `Trainer.__init__` prepares it, `Trainer.train` is its loop."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from gdt.common.errors import UserError
from gdt.common.wording import plural
from gdt.pipeline.groups import check_groups, take_rank
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.cache import Cache, described
from gdt.pipeline.shards.copies import between_splits
from gdt.pipeline.shards.index import Index
from gdt.train import checkpoint
from gdt.train.checkpoint import RunState
from gdt.train.distributed import Process, StopSignal, agreed, barrier, is_first_here, require_equal, together
from gdt.train.experiment import Experiment
from gdt.train.flops import max_leaves
from gdt.train.learner import Learner, start_from
from gdt.train.log import Log
from gdt.train.provenance import device_name, write_provenance
from gdt.train.recall import Probe
from gdt.train.run import CHECKPOINT

_SAVE_SECONDS = 300.0
"""Seconds between checkpoints."""
_PROBE_SHARE = 0.03
"""Share of the time that probes may take before the last one."""


class Trainer:
    def __init__(
        self,
        experiment: Experiment,
        index: Index,
        process: Process,
        state: RunState | None = None,
    ) -> None:
        """Prepare a new run, or resume from the `state` of its checkpoint.

        Raises UserError if that is of a run that this one cannot continue.
        """
        self.rank, self.world, self.device = process
        self.index = index
        self.experiment = experiment
        self.settings = experiment.settings
        self.path = self.settings.run_folder / CHECKPOINT
        self.step = state.record.step if state else 0
        self.saved = self.step
        self.steps = experiment.record.steps
        self.require_groups()
        self.require_equal_starts()
        self.learner = Learner(experiment, self.device, self.world)
        self.require_addressable()
        self.start_note = (
            self.resume(state) if state else start_from(self.learner.model, experiment.start, self.settings.init)
        )
        self.log: Log | None = None
        self.cache: Cache | None = None
        self.failure: Exception | None = None
        self.began = time.monotonic()
        self.saved_at = self.began
        self.probe_seconds: list[float] = []

    def require_groups(self) -> None:
        """Raise UserError unless ranks can hold whole groups."""
        group_size = self.settings.group_size
        composition = self.experiment.composition
        synchronised = self.world == 1 or self.device.type == "cuda"  # SyncBatchNorm is for GPUs
        check_groups(composition.batch_size, composition.clips_per_video, group_size, self.world, synchronised)

    def require_addressable(self) -> None:
        """Raise UserError if a pass has an activation of 2**31 elements."""
        composition = self.experiment.composition
        if "video" not in composition.modalities:
            return
        leaves = self.settings.group_size or composition.batch_size * composition.clips_per_video // self.world
        most = max_leaves(self.learner.model, self.settings.clip)
        if leaves > most:
            raise UserError(
                f"a pass over {leaves} clips has activations of 2**31 elements, for which GPUs have no correct "
                f"kernels; set --group-size to {most} or less"
            )

    def require_equal_starts(self) -> None:
        """Raise UserError unless all ranks have the same settings, data, software, weights and step."""
        facts = self.experiment.record.decisive() | {"version of torch": torch.__version__, "step": self.step}
        advice = f"start all ranks with the same command, software and shards, and with {self.path.parent} on a disk "
        require_equal({name: str(value) for name, value in facts.items()}, f"{advice}that they share")

    def resume(self, state: RunState) -> str:
        """Load the state of a checkpoint; returns the step that it resumes from, and the length if that was another."""
        self.learner.resume(state)
        before = state.record.steps
        longer = "" if before == self.steps else f" of {before}; now {plural(self.steps, 'step')}"
        return f"resume from step {self.step}{longer}"

    def train(self) -> str:
        """Train for the remaining steps; returns a summary of the run on rank 0, and an empty text on others.

        Exits with 128 + n after a signal n. Raises UserError if a clip is damaged, both after saving the last step, or
        if loss, gradient or weights are not finite, keeping the last checkpoint.
        """
        held_out = together(self.open_probe)
        self.cache = together(self.open_cache)
        with closing(self.cache) if self.cache else nullcontext():
            self.describe_run()
            return self.train_steps(held_out)

    def train_steps(self, held_out: Probe | None) -> str:
        summary = ""
        with (
            self.open_loader() as loader,
            together(self.open_log) or nullcontext() as self.log,
            StopSignal() as stop,
        ):
            if self.rank == 0:
                if self.step == 0:  # or a run killed before its first checkpoint would be resumed from what it replaces
                    self.path.unlink(missing_ok=True)
                write_provenance(self.settings.run_folder, self.device, self.step, self.experiment.record.fingerprint)
            batches = iter(loader)
            self.began = time.monotonic()
            self.saved_at = self.began
            if self.step == 0:
                self.probe(held_out)
            while self.step < self.steps:
                began = time.perf_counter()
                batch, error = self.load(batches)
                self.stop_if_agreed(stop.signal, error)
                loaded = time.perf_counter()
                metrics = self.learner.step(self.step, batch)
                if self.log:
                    seconds = time.perf_counter() - began
                    self.log.add_step(self.step, metrics, seconds, loaded - began, self.cache)
                self.step += 1
                self.probe(held_out)
                if self.save_due():
                    self.save()
            if self.log and self.failure is None:
                summary = self.log.summary()
        _, failure = agreed(0, self.failure)
        if failure is not None:
            raise failure
        return summary

    def open_probe(self) -> Probe | None:
        """The probe of held-out videos, on rank 0, if it is set."""
        every = self.settings.probe_every
        remote = self.index.folder.remote  # random videos would fetch many whole shards
        if self.rank or every == 0 or (every is None and remote):
            return None
        probe = Probe(self.experiment, self.index, self.device)
        if every:
            probe.require_videos()
        return probe if len(probe.videos) else None

    def open_cache(self) -> Cache | None:
        """The cache of shards in a store, which the first rank of a machine fills."""
        if not self.index.folder.remote:
            return None
        return Cache(self.index, str(self.path.absolute()), leads=is_first_here())

    def open_loader(self) -> Loader:
        """Loads this rank's share of each batch."""
        experiment = self.experiment
        tree = experiment.tree
        plans = tree.plans(self.step, self.steps)
        shares = (take_rank(plan, self.rank, self.world, self.settings.group_size) for plan in plans)
        coming = tree.videos(self.step, self.steps)
        loading = self.settings.loading
        return Loader(self.index, shares, experiment.inputs, self.device, loading, experiment.words, coming, self.cache)

    def open_log(self) -> Log | None:
        return None if self.rank else Log(self.experiment, self.step, self.world, self.learner.flops)

    def load(self, batches: Iterator[Batch]) -> tuple[Batch | Any, Exception | None]:
        """The next batch, or the error that ends the run: all ranks must end before the same step."""
        if self.failure is not None:
            return None, self.failure
        try:
            return next(batches), None
        except Exception as error:
            return None, error

    def stop_if_agreed(self, received: int, error: Exception | None) -> None:
        """Save, then end, if any rank has received a signal or has an error."""
        signal, error = agreed(received, error)
        if not signal and error is None:
            return
        if self.failure is None:
            self.save()
        barrier()  # a rank that exits ends the others, so wait until rank 0 has written the checkpoint
        error = error or self.failure
        if error is not None:
            raise error
        if self.rank == 0:
            command = f"the same command{' without --overwrite' if self.settings.overwrite else ''}"
            tqdm.write(f"stopped after step {self.step} of {self.steps}; run {command} to resume", sys.stdout)
        sys.exit(128 + signal)

    def probe(self, held_out: Probe | None) -> None:
        """Measure recall among held-out videos, on rank 0, if it is due."""
        if self.log and held_out and self.probe_due():
            began = time.monotonic()
            try:
                measured = held_out(self.learner.model, self.cache)
            except Exception:
                self.save()  # a damaged clip of another split must not cost these steps
                raise
            if measured:
                self.log.add_probe(self.step, measured)
            self.probe_seconds.append(time.monotonic() - began)

    def probe_due(self) -> bool:
        """Whether to probe now: every --probe-every steps; by default after each quarter, unless it takes too long."""
        if self.step == self.steps:
            return True
        every = self.settings.probe_every
        if every:
            return self.step % every == 0
        if self.step == 0 or self.step % max(self.steps // 4, 1):
            return False
        spent = sum(self.probe_seconds) + max(self.probe_seconds, default=0.0)
        return spent <= _PROBE_SHARE * (time.monotonic() - self.began)

    def save_due(self) -> bool:
        """Whether to save now; only what rank 0 decides counts, since it alone saves."""
        every = self.settings.checkpoint_steps
        late = time.monotonic() - self.saved_at > _SAVE_SECONDS
        return late or self.step == self.steps or (every > 0 and self.step % every == 0)

    def save(self) -> None:
        """Write the checkpoint of the last step, on rank 0, unless it is written."""
        if self.rank == 0 and self.step > self.saved:
            try:
                checkpoint.write(self.path, self.learner.state(self.step))
            except (OSError, UserError) as error:
                self.failure = error  # which all ranks end with
            self.saved = self.step
            self.saved_at = time.monotonic()

    def describe_run(self) -> None:
        s = self.settings
        composition = self.experiment.composition
        schedule = self.experiment.schedule
        say = partial(describe, self.rank)
        clips = composition.batch_size * composition.clips_per_video
        parameters = sum(weight.numel() for weight in self.learner.model.parameters())
        epochs = f"{self.steps / schedule.batches_per_epoch:.4g} epochs of {plural(schedule.batches_per_epoch, 'step')}"
        group_size = self.settings.group_size
        groups = f"groups of {group_size} clips" if group_size else "one group per modality"
        compiled = ", compiled" if s.compile == "on" else ""
        ranks = f"; {self.world} ranks" if self.world > 1 else ""
        say("composition", f"{s.short_name}: {composition}")
        size = f"{s.size} (the default without a GPU)" if s.size == "small" else s.size
        say("network", f"{size}, {s.clip}; {parameters / 1e6:.1f} M parameters, {self.start_note}")
        say("batch", f"{composition.batch_size} videos, {clips} clips per modality, {groups}")
        say("device", f"{device_name(self.device)}, {s.precision}{compiled}{ranks}")
        rates = f"{s.optimization.optimizer}, lr {schedule.highest:.3g}"
        say("schedule", f"{plural(self.steps, 'step')} ({epochs}), {rates}")
        say("folder", str(s.run_folder))
        for line in between_splits(self.index):
            say("warning", line)
        if self.cache:
            coming = self.experiment.tree.videos(self.step, min(self.steps, self.step + 500))
            say("store", described(self.cache, self.index, coming))


def describe(rank: int, name: str, text: str) -> None:
    """Print a line about the run, on rank 0."""
    if rank == 0:
        print(f"{name:13}{text}")
