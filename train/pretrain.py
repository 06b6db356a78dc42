"""The pretraining loop."""

from __future__ import annotations

import contextlib
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from gdt.common.errors import UserError, first_line, is_out_of_memory
from gdt.common.files import is_full
from gdt.pipeline.groups import shared
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.reader import DamagedVideo
from gdt.train import checkpoint
from gdt.train.checkpoint import Data, load_model
from gdt.train.crossmodal import Probe
from gdt.train.figures import Report, Reports
from gdt.train.preparing import prepared
from gdt.train.provenance import Provenance, Start, record
from gdt.train.ranks import require_alike, watched
from gdt.train.run import Log, StopSignal, Trace, place, precision, what_next
from gdt.train.saving import Saver
from gdt.train.settings import Pretrain, flags
from gdt.train.trainer import Trainer, begin_with


def pretrain(settings: Pretrain) -> Path:
    """Train until the last step, from the run's checkpoint if there is one; returns the checkpoint's path.

    The losses are a function of the settings and the shards alone: a run that was killed and started again gives
    the same ones, bit for bit on a CPU. Raises UserError on bad input; exits with 128 + n on a stopping signal n.
    """
    rank, world, device = place(settings)
    # what `auto` came to is part of the run: another device or precision would not go on with the same numbers
    chosen: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
    asked = settings.precision
    settings = replace(settings.resolved(), device=chosen, precision=precision(settings, device))
    with watched(device), shortage_told(settings):
        return _pretrain(settings, asked == "auto", rank, world, device)


def _pretrain(settings: Pretrain, any_precision: bool, rank: int, world: int, device: torch.device) -> Path:
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
    if any_precision and state is not None:  # a run that found bfloat16 wrong goes on without it
        settings = replace(settings, precision=json.loads(state["settings"])["precision"])
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

        heard = 0  # in the step before, by any rank: all act on it after the same step
        reports.begin()
        for step, batch in enumerate(saved_before_damage(loader, trainer, reports, told, first, rank), first):
            reports.loaded()
            skipped.update(batch.damaged)
            signalled = told(reports.add(step, trainer.step(step, batch), stop.signal)) or heard
            if world == 1:
                signalled = stop.signal
            due = trainer.checkpoint_due(step + 1) or bool(signalled)
            probing = probe and ((step + 1) % settings.probe_every == 0 or step + 1 == trainer.steps)
            heard = 0
            if due or probing:
                heard = told(reports.last())  # nothing is saved before it is known to be in order
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
            f"out of memory ({first_line(error)}); lower --loading.prefetch, --loading.clips-at-once or, where batch "
            "norm is over groups, --chunk-leaves, which change no number, begin anew with smaller --norm-leaves or "
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
