"""One trial: pretraining in a process of its own, measured at certain steps, and stopped where that is poor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gdt.eval.measures import Measure
from gdt.eval.processes import failed, start
from gdt.eval.progress import Follower
from gdt.eval.search.measuring import Measuring
from gdt.eval.search.space import Space
from gdt.train.checkpoint import NAME, PREVIOUS, Trained, load_model
from gdt.train.settings import METRICS, Pretrain

LOG = "log.txt"
_SECONDS = 0.5
"""Between two looks for a checkpoint."""


class DivergedError(Exception):
    """Training has come to weights or losses that are no numbers."""


class EndedError(Exception):
    """The search was told to end; the trial goes on when it does."""


@dataclass
class Reports:
    """What a trial is measured by."""

    missing: set[int]
    """Steps after which there is no measure yet."""
    tell: Callable[[int, Measure], bool]
    """Takes the measure after so many steps; whether to stop there."""

    def __call__(self, step: int, measure: Measure) -> bool:
        self.missing.discard(step)
        return self.tell(step, measure)


class Trainer:
    """What a search does with a composition: train and measure it while that goes on, and test it at the end."""

    def __init__(self, space: Space) -> None:
        """Raises UserError where the videos are not fit to measure on."""
        self._space, self._measure = space, Measuring(space, space.settings.query_split)

    def train(self, run: Pretrain, gpu: str, report: Reports, stop: threading.Event) -> None:
        """Until the last step, or until `report` says so. Raises DivergedError, EndedError, UserError.

        A run goes on from its checkpoint where there is one.
        """
        folder, looked = run.run_folder, Looked(run.run_folder)
        folder.mkdir(parents=True, exist_ok=True)

        def over() -> bool:
            """Measure what is new; whether nothing is left to do."""
            for trained in looked.new(report.missing):
                if not all(bool(value.isfinite().all()) for value in trained.model.state_dict().values()):
                    raise DivergedError
                if report(trained.step, self._measure(trained)):
                    return True
            return run.steps not in report.missing

        if over():
            return
        with running(self._command(run, gpu), folder / LOG, gpu) as poll:
            while True:
                status = poll()  # before the look, which so misses nothing that was written before the end
                if over():
                    return
                if stop.is_set() or (status and stop.wait(1.0)):  # Ctrl-C in a terminal tells them all, in any order
                    raise EndedError
                if status is not None:
                    raise self._why(folder, status)
                stop.wait(_SECONDS)

    def _command(self, run: Pretrain, gpu: str) -> list[str]:
        given = {
            "dataset": run.dataset, "shards": run.shards, "factors": run.factors, "factors-from": run.factors_from,
            "word2vec": run.word2vec, "seed": run.seed, "out": run.out, "videos-per-batch": run.videos_per_batch,
            "norm-leaves": run.norm_leaves, "steps": run.steps, "checkpoint-steps": run.checkpoint_steps,
            "threads": None if gpu else 1,
        }  # fmt: skip
        options = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
        return ["pretrain", self._space.settings.size, *options]

    def _why(self, folder: Path, status: int) -> Exception:
        log = Follower(folder / METRICS)
        if log.look() and not np.isfinite(log.last["loss"]):
            return DivergedError()
        return failed(f"trial {folder.name}", folder / LOG, status)

    def test(self, runs: list[Path]) -> list[Measure]:
        """Of the folders of finished runs, and last of the weights that the first began with, on the split test."""
        measure = Measuring(self._space, "test")
        models = [load_model(run) for run in runs]
        return [measure(trained) for trained in [*models, models[0].untrained()]]


class Looked:
    """The checkpoints of a run as they come, of which the newest two are there."""

    def __init__(self, folder: Path) -> None:
        self._paths, self._seen = [folder / PREVIOUS, folder / NAME], [0, 0]

    def new(self, steps: set[int]) -> Iterator[Trained]:
        """Those after certain steps that are there and were not there before, the earliest first."""
        there = [path.stat().st_mtime_ns if path.is_file() else 0 for path in self._paths]
        if there == self._seen:
            return
        self._seen = there
        for path in self._paths:
            if path.is_file() and (trained := load_model(path)).step in steps:
                yield trained


@contextmanager
def running(command: list[str], log: Path, gpu: str) -> Iterator[Callable[[], int | None]]:
    """A command while this lasts; gives what asks for its status. At the end it is told to stop, and waited for."""
    process = start(command, log, gpu)
    try:
        yield process.poll
    finally:
        process.terminate()
        process.wait()
