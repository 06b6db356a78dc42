"""One trial: pretraining in its own process, with its checkpoints evaluated as they appear."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError, plural
from gdt.eval.metrics import Metric
from gdt.eval.processes import StoppedError, command_error, interrupted, start, to_arguments
from gdt.eval.progress import LogReader
from gdt.eval.protocols import Evaluator
from gdt.eval.search.space import Space
from gdt.eval.settings import Downstream
from gdt.eval.subjects import Model, folds, held_out, require_videos
from gdt.pipeline.shards.index import fingerprint
from gdt.train.checkpoint import NAME, Trained, load_model
from gdt.train.models.gdt import NotFiniteError, any_device
from gdt.train.settings import METRICS, SIZES, Pretrain

LOG = "log.txt"
_SECONDS = 0.5
"""Seconds between checks for a new checkpoint."""


class Measurement:
    """The metric of a search on one split. Raises UserError, naming what is missing, if the videos do not fit."""

    def __init__(self, space: Space, split: str) -> None:
        settings, index = space.settings, space.index
        require_videos(index, split)
        modalities = {
            name for ways in space.options.values() for way in ways for name in way.transformation.modalities(way.k)
        }
        if "audio" in modalities and not index.mel_count.any():
            raise UserError(
                f"the videos of {index.folder} have no sound, which --factors uses; choose factors without audio, "
                "with --metric label and --baseline a"
            )
        if len(modalities) < 2 and not settings.label:
            raise UserError(
                "recall between modalities needs two modalities, but no factor of --factors has two; add the factor "
                "modality, or set --metric to a label column"
            )
        if "text" in modalities:
            raise UserError("the search does not support text; set --factors to others, such as modality")
        self._protocol = "retrieval" if settings.label else "cross-modal"
        self._settings = Downstream(
            ckpt=(), label=settings.label, protocols=(self._protocol,), clips=settings.clips, query_split=split,
            seed=settings.seed,
        )  # fmt: skip
        # the splits of the pretraining, not official folds
        self._index = replace(index, folds=np.full(len(index), "", object))
        self._split, self._suffix = split, f"R@{settings.k}"
        self._fold = folds(self._settings, self._index, split)[0] if settings.label else held_out(index, split)
        candidates, where = self._fold.queries, split
        if settings.label:
            candidates, where = self._fold.gallery, "train"
        if settings.k >= len(candidates):
            raise UserError(
                f"--k is {settings.k}, but the split '{where}' of {index.folder} has only "
                f"{plural(len(candidates), 'video')}, so any model gets 100 %; lower --k, or preprocess more of them"
            )
        self._data = fingerprint(index)

    def __call__(self, trained: Trained) -> Metric:
        """R@k; between modalities the mean over directions, with as many answers as there are videos."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            evaluator = Evaluator(
                self._settings, self._index, self._data, [self._fold], self._split, any_device(), folder, None
            )
            model = Model("trial", folder, trained, False)
            metrics = evaluator.evaluate(model, self._protocol, self._fold, folder).metrics
        chosen = [metric for name, metric in metrics.items() if name.split()[-1] == self._suffix]
        return Metric(float(np.mean([m.value for m in chosen])), chosen[0].chance, min(m.answers for m in chosen))


class DivergedError(Exception):
    """Losses or weights are NaN or infinite."""


class Trainer:
    """Trains and measures compositions, and tests the chosen ones."""

    def __init__(self, space: Space) -> None:
        """Raises UserError if the videos do not fit the metric."""
        self._space, self._measure = space, Measurement(space, space.settings.query_split)

    def train(
        self, run: Pretrain, gpu: str, steps: set[int], stop: threading.Event
    ) -> Generator[tuple[int, Metric], None, None]:
        """Train from the newest checkpoint, if any, and yield the metric at those of `steps` whose checkpoint is found.

        Closing the generator ends the training. Raises DivergedError, StoppedError, or UserError if training fails.
        """
        folder, left, seen, process = run.run_folder, set(steps), 0, None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / NAME
        try:
            while run.steps in left:
                status = process.poll() if process else None  # before the check, so that no checkpoint is missed
                newest = path.stat().st_mtime_ns if path.is_file() else 0
                if newest != seen:
                    seen = newest
                    try:
                        trained = load_model(path)
                    except NotFiniteError as error:  # its loss was finite: it was computed before the last update
                        raise DivergedError from error
                    if trained.step in left:
                        left.remove(trained.step)
                        yield trained.step, self._measure(trained)
                        continue
                if process is None:
                    process = start(self._command(run, gpu), folder / LOG, gpu)
                elif stop.is_set() or (status and interrupted(stop)):
                    raise StoppedError
                elif status is not None:
                    log = LogReader(folder / METRICS)
                    diverged = log.read() and not np.isfinite(log.last["loss"])
                    raise DivergedError if diverged else command_error(f"trial {folder.name}", folder / LOG, status)
                else:
                    stop.wait(_SECONDS)
        finally:
            if process:
                process.terminate()
                process.wait()

    def _command(self, run: Pretrain, gpu: str) -> list[str]:
        size = self._space.settings.size
        return ["pretrain", size, *to_arguments(run, SIZES[size][1]), *([] if gpu else ["--threads", "1"])]

    def test(self, runs: list[Path]) -> list[Metric]:
        """Metrics on the test split of finished runs, and of the first one's initial weights."""
        measure, models = Measurement(self._space, "test"), [load_model(run) for run in runs]
        return [measure(trained) for trained in [*models, models[0].untrained()]]
