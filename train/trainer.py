"""A run: `Trainer.__init__` prepares it, `Trainer.train` is its loop."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from tqdm import tqdm

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError, plural
from gdt.pipeline.decoders import Choice, choose
from gdt.pipeline.groups import take_rank
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.reader import DamagedVideo
from gdt.pipeline.tree import Tree
from gdt.train import checkpoint
from gdt.train.checkpoint import Data, load_model
from gdt.train.cost import predicted_clips
from gdt.train.crossmodal import Probe
from gdt.train.distributed import StopSignal, barrier, require_equal
from gdt.train.kernels import resolve_precision
from gdt.train.learner import Learner, start_from
from gdt.train.log import Log
from gdt.train.memory import plan_run
from gdt.train.metrics import Report, Reports, trace_steps
from gdt.train.provenance import device_name, record
from gdt.train.settings import Pretrain, decisive_options, from_json
from gdt.train.trained import Trained

_MINUTE = 60.0


class Trainer:
    """One run, on one of its ranks."""

    def __init__(self, settings: Pretrain, rank: int, world: int, device: torch.device) -> None:
        """Prepare a new run, or resume from its newest checkpoint. Raises UserError on bad input."""
        self.rank, self.world, self.device = rank, world, device
        folder, auto_precision = settings.run_folder, settings.precision == "auto"
        self.index = Index.open(settings.shard_folder)
        shards = fingerprint(self.index)
        state = None if settings.overwrite else checkpoint.read_run(folder)
        earlier = from_json(state["settings"], str(folder / checkpoint.NAME)) if state else None
        if state:
            checkpoint.require_same_shards(state, shards, folder)
        # resolve device, precision and batch size before storing the settings, since resuming needs the same ones
        settings = replace(
            settings.resolved(),
            dataset=settings.dataset_name,
            device="cuda" if device.type == "cuda" else "cpu",
            precision=resolve_precision(settings.precision, device),
            batch_size=earlier.batch_size if earlier and settings.batch_size is None else settings.batch_size,
        )
        default = settings.default_batch_size if settings.batch_size is None else None
        settings = settings.with_batch_size(self.index, world)
        self.tree = settings.tree(self.index, partial(self.describe, "data"))
        videos = self.tree.composition.batch_size
        only = f" (default {default}, but only {plural(len(self.tree.source.videos), 'video')} can be used)"
        self.batch = f"batch_size {videos}{only if default and videos < default else ''}"
        start = load_model(settings.init) if settings.init else None
        if start is not None:
            self.index = start.normalise(self.index)
        self.words = settings.words(self.index)
        words_checksum = ""
        if self.words is not None:
            words_checksum = self.words.checksum(self.index)
            network = replace(settings.network, word_dimensions=self.words.dimensions)
            if start is not None and "text" in start.model.modalities:
                network = replace(network, text_padding=start.model.network.text_padding)
            settings = replace(settings, network=network)
        self.data = Data(shards, self.index.statistics, words_checksum)
        require_equal(
            {name: str(value) for name, value in decisive_options(settings).items()}
            | {"set of shards": shards[:12], "set of words": words_checksum, "version of torch": torch.__version__}
            | {"normalisation of the inputs": str(self.index.statistics.to_numbers())},
            "start all ranks with the same command, software and shards",
        )
        if auto_precision and earlier:  # its trial may have rejected bfloat16
            settings = replace(settings, precision=earlier.precision)
        # before planning, since decoders on the GPU leave less memory
        self.decoder = self.choose_decoder(settings)
        # on a CPU, only compiled code and bfloat16 need a trial: oneDNN has wrong gradients in bfloat16
        trial = device.type != "cpu" or settings.compile == "on" or settings.precision == "bfloat16"
        plan = plan_run(settings, self.tree.composition, self.index.bands, earlier, device, world, self.say, trial)
        self.settings, self.fit, self.kernels = plan.settings, plan.fit, plan.kernels
        self.learner = Learner(self.settings, self.tree, self.data, device, world, plan.kernels, self.fit.recomputed)
        self.steps, self.path = self.learner.schedule.steps, self.learner.path
        self.weights = self.initialise(start) if state is None else self.describe_resumed(state)
        self.first = 0 if state is None else self.learner.resume(state)
        require_equal(
            {"step": str(self.first), "state of the model": self.learner.digest() if world > 1 else ""},
            f"the folder {folder} must be on a disk that all ranks share",
        )

    def choose_decoder(self, settings: Pretrain) -> Choice:
        """Where this rank decodes."""
        composition = settings.composition
        if self.device.type == "cpu" or "video" not in composition.modalities:
            return Choice(settings.loading, "")
        clips = predicted_clips(settings, self.index.bands, self.device)
        shared = composition.clips_per_video / composition.decoded_per_video
        return choose(self.index, settings.clip, self.device, settings.loading, clips, shared)

    def initialise(self, start: Trained | None) -> str:
        """Keep random weights, or copy those of --init; returns a description."""
        if start is None:
            return "random weights"
        fresh = start.foreign.fresh if start.foreign else ()
        copied = start_from(self.learner.model, start.model, str(self.settings.init), fresh)
        return f"starting from {self.settings.init}: {copied}"

    def describe_resumed(self, state: Mapping[str, Any]) -> str:
        """The step that the run resumes from, and its earlier length if that was another."""
        before = state.get("steps") or self.steps  # unknown for older checkpoints
        longer = "" if before == self.steps else f" of {before}; the run now has {plural(self.steps, 'step')}"
        return f"resume from step {state['step']}{longer}"

    def train(self) -> None:
        """Train for the remaining steps.

        Exits with 128 + n after a signal n. Raises UserError if the loss is not finite or a clip is damaged.
        """
        self.describe_run()
        s, earlier_signal = self.settings, 0
        probe = replace(s, loading=self.decoder.loading)
        self.probe = Probe(probe, self.index, self.device, self.words) if s.probe_every and self.rank == 0 else None
        if self.rank == 0:
            if s.overwrite:  # so that a run killed before its first checkpoint is not resumed from the replaced one
                self.path.unlink(missing_ok=True)
            record(s.run_folder, self.device, self.first, self.data.fingerprint)
        with (
            self.open_loader() as loader,
            self.open_log() as self.log,
            report_skipped() as self.skipped,
            StopSignal() as stop,
            trace_steps(s.run_folder, s.profile if self.rank == 0 else 0) as trace_step,
        ):
            if self.first == 0:
                self.run_probe(0)
            self.reports, self.saved_at = Reports(self.device), time.monotonic()
            for step, batch in enumerate(self.batches(loader), self.first):
                self.reports.loaded()
                self.skipped.update(batch.damaged)
                metrics = self.learner.step(step, batch)
                # the report of the previous step has the signals of all ranks, so that all stop after the same step
                signal = self.log_step(self.reports.add(step, metrics, stop.signal)) or earlier_signal
                if self.world == 1:
                    signal = stop.signal
                done, earlier_signal = step + 1, 0
                saving, probing = bool(signal) or self.checkpoint_due(done), self.probe_due(done)
                if saving or probing:
                    earlier_signal = self.log_step(self.reports.last())  # checks the loss before saving
                if probing:
                    self.run_probe(done)
                if saving:
                    self.save(done)
                if signal:
                    self.exit_on_signal(done, signal)
                trace_step()
                self.reports.begin()

    def open_loader(self) -> Loader:
        """Loads this rank's share of each batch."""
        plans = self.tree.plans(self.first, self.steps)
        shares = (take_rank(plan, self.rank, self.world, self.fit.bn_group_size) for plan in plans)
        return Loader(self.index, shares, self.settings.clip, self.device, self.decoder.loading, self.words)

    def batches(self, loader: Loader) -> Iterator[Batch]:
        """Batches of the loader; if a damaged clip ends the run, saves a checkpoint first."""
        done = self.first
        try:
            for batch in loader:
                yield batch
                done += 1
        except DamagedVideo as damage:
            self.log_step(self.reports.last())
            if done > self.first:
                self.save(done)
            raise UserError(f"{damage}; to skip such clips, set --loading.damaged skip") from damage

    def open_log(self) -> AbstractContextManager[Log | None]:
        """The log, on rank 0."""
        if self.rank:
            return nullcontext()
        clips = self.tree.composition.batch_size * self.tree.composition.clips_per_video
        flops = self.learner.flops(self.index.bands)
        return Log(self.settings, self.first, self.learner.schedule, clips, flops)

    def log_step(self, report: Report | None) -> int:
        """Log a step and check its loss; returns a signal that any rank has received, or 0."""
        if report is None:
            return 0
        if self.log:
            self.log.add_step(report)
        loss = report.metrics.loss
        if loss == 0 and self.skipped:
            raise UserError(
                f"step {report.step}: no positive pair is left without damaged clips, so nothing can be learned; run "
                f"'{gdt_command('verify', '--shards', self.index.folder)}' to find the damaged shards"
            )
        if not np.isfinite(loss):
            raise UserError(f"the loss is {loss} at step {report.step}; lower --lr")
        return report.signal

    def probe_due(self, done: int) -> bool:
        """Whether to probe after `done` steps."""
        return self.probe is not None and (done % self.settings.probe_every == 0 or done == self.steps)

    def run_probe(self, done: int) -> None:
        """Measure recall among held-out videos after `done` steps."""
        if self.probe and self.log:
            self.log.add_probe(done, self.probe(self.learner.model))

    def checkpoint_due(self, done: int) -> bool:
        """Whether to save after `done` steps; only rank 0, which saves, looks at the clock."""
        every = self.settings.checkpoint_steps
        late = self.rank == 0 and time.monotonic() - self.saved_at > self.settings.checkpoint_minutes * _MINUTE
        return late or done == self.steps or (every > 0 and done % every == 0)

    def save(self, done: int) -> None:
        """Write the checkpoint after `done` steps, on rank 0."""
        if self.rank == 0:
            checkpoint.write(self.path, self.learner.state(done))
            self.saved_at = time.monotonic()

    def exit_on_signal(self, done: int, signal: int) -> NoReturn:
        """Exit after `done` steps because of a signal."""
        barrier()  # a rank that exits ends the others, so wait until rank 0 has written the checkpoint
        if self.rank == 0:
            tqdm.write(f"stopped after step {done} of {self.steps}; run the same command to resume", file=sys.stdout)
        sys.exit(128 + signal)

    def describe_run(self) -> None:
        """Print the settings of the run."""
        s, composition, schedule = self.settings, self.tree.composition, self.learner.schedule
        clips = composition.batch_size * composition.clips_per_video
        parameters = sum(weight.numel() for weight in self.learner.model.parameters())
        epochs = f"{self.steps / schedule.batches_per_epoch:.4g} epochs of {plural(schedule.batches_per_epoch, 'step')}"
        falling = f", falls to 0 over the last {100 * s.optimization.lr_decay:.0f} %" if s.optimization.lr_decay else ""
        rates = f"{s.optimization.optimizer}, lr {schedule.peak:.3g}{falling}"
        ranks = f"; {self.world} ranks" if self.world > 1 else ""
        self.describe("composition", f"{s.name}: {composition}")
        if _starts_at_first_frame(self.tree):
            self.describe(
                "note",
                "every clip starts at the first frame of its video, since the composition has no time_shift; "
                "time_shift:i:1 draws one random start per video",
            )
        self.describe("network", f"{s.network.backbone}, {parameters / 1e6:.1f} M parameters, {self.weights}")
        self.describe("batch", f"{self.batch}; {clips} clips per modality; {self.fit.batch}")
        self.describe("memory", self.fit.memory)
        self.describe("device", f"{device_name(self.device)}; {self.kernels}{ranks}")
        if self.decoder.why:
            self.describe("loader", f"decodes {self.decoder.why}")
        self.describe("schedule", f"{plural(self.steps, 'step')} ({epochs}), {rates}")
        self.describe("folder", str(s.run_folder))

    def describe(self, name: str, text: str) -> None:
        """Print a line of the settings, wrapped at 100 columns."""
        self.say(
            textwrap.fill(
                f"{name:13}{text}", 100, subsequent_indent=" " * 13, break_long_words=False, break_on_hyphens=False
            )
        )

    def say(self, text: str) -> None:
        """Print from rank 0."""
        if self.rank == 0:
            print(text)


def _starts_at_first_frame(tree: Tree) -> bool:
    """Whether every clip starts at the first frame of its video, however long the video is."""
    longer = replace(tree.source, start_counts=tree.source.start_counts + 1_000_000)
    return not replace(tree, source=longer).plan(0, 0).leaves.start.any()


@contextmanager
def report_skipped() -> Iterator[Counter[str]]:
    """Yields a counter for skipped damaged clips, and prints it at the end."""
    skipped: Counter[str] = Counter()
    try:
        yield skipped
    finally:
        if skipped:
            tqdm.write(f"skipped {plural(skipped.total(), 'damaged clip')}:", file=sys.stderr)
            for video, count in skipped.most_common():
                tqdm.write(f"{count:6d} of {video}", file=sys.stderr)
