"""One trial: pretraining in a process of its own, measured by the protocols of evaluation as its checkpoints come."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.metrics import Metric
from gdt.eval.processes import command_error, start, to_arguments
from gdt.eval.progress import LogReader
from gdt.eval.protocols import Evaluator
from gdt.eval.search.space import Space
from gdt.eval.settings import Downstream
from gdt.eval.subjects import Model, folds, held_out
from gdt.pipeline.shards.index import fingerprint
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import NAME, PREVIOUS, Trained, load_model
from gdt.train.models.gdt import any_device
from gdt.train.settings import METRICS, SIZES, Pretrain

LOG = "log.txt"
_SECONDS = 0.5
"""Between two looks for a checkpoint."""
Measures = Generator[tuple[int, Metric], None, None]


class Measuring:
    """The metric of a search on one split. Raises UserError, saying what is missing, where the videos are not fit."""

    def __init__(self, space: Space, split: str) -> None:
        settings, index = space.settings, space.index
        if not (index.split == split).any():
            raise UserError(
                f"{index.folder} has no videos of the split '{split}'; the same 'make preprocess' command with "
                f'ARGS="--{split} 0.1" sets some apart and decodes nothing again'
            )
        modalities = {
            name for ways in space.options.values() for way in ways for name in way.transformation.modalities(way.k)
        }
        if "audio" in modalities and not index.mel_count.any():
            raise UserError(
                f"the videos of {index.folder} have no sound, of which --factors makes a modality; name other factors, "
                "and where these have one modality left, --metric label and --baseline a"
            )
        if len(modalities) < 2 and not settings.label:
            raise UserError(
                "recall across modalities needs two of them, and no factor of --factors has two; add one that has, or "
                "set --metric to a label"
            )
        if settings.word2vec and "text" not in modalities:
            raise UserError("--word2vec has no effect: words are no modality of --factors")
        self._words = WordVectors.of(index, settings.word2vec) if "text" in modalities else None
        self._protocol = "retrieval" if settings.label else "cross-modal"
        self._settings = Downstream(
            ckpt=(), label=settings.label, protocols=(self._protocol,), clips=settings.clips, query_split=split,
            gallery_per_class=settings.gallery_per_class if settings.label else 0, seed=settings.seed,
            word2vec=None if settings.label else settings.word2vec,
        )  # fmt: skip
        self._index = replace(index, folds=np.array([]))  # the splits as they are, with those that were trained on
        self._split, self._k = split, settings.k
        self._fold = folds(self._settings, self._index, split)[0] if settings.label else held_out(index, split)
        self._data = fingerprint(index)

    def __call__(self, trained: Trained) -> Metric:
        """R@k; across modalities the mean over the directions, with as many answers as there are videos."""
        with tempfile.TemporaryDirectory() as folder:
            protocols = Evaluator(
                self._settings, self._index, self._data, [self._fold], self._split, any_device(), Path(folder),
                self._words,
            )  # fmt: skip
            model = Model("trial", Path(folder), trained, False)
            found = protocols.evaluate(model, self._protocol, self._fold, Path(folder)).metrics
        some = [metric for name, metric in found.items() if name.split()[-1] == f"R@{self._k}"]
        return Metric(float(np.mean([m.value for m in some])), some[0].chance, min(m.answers for m in some))


class DivergedError(Exception):
    """Training has come to weights or losses that are no numbers."""


class EndedError(Exception):
    """The search was told to end; the trial goes on when it does."""


class Trainer:
    """What a search does with a composition: train and metric it while that goes on, and test it at the end."""

    def __init__(self, space: Space) -> None:
        """Raises UserError where the videos are not fit to metric on."""
        self._space, self._measure = space, Measuring(space, space.settings.query_split)

    def train(self, run: Pretrain, gpu: str, steps: set[int], stop: threading.Event) -> Measures:
        """Gives the metrics after some steps, as far as they are seen, and after the last; to close it ends the
        training, which goes on from its checkpoint where there is one. Raises DivergedError, EndedError, UserError.
        """
        folder, left = run.run_folder, set(steps)
        folder.mkdir(parents=True, exist_ok=True)
        seen: list[int] = []

        def new() -> Measures:
            """Of the two newest checkpoints, where one has changed, the earlier first."""
            nonlocal seen
            paths = [path for path in (folder / PREVIOUS, folder / NAME) if path.is_file()]
            if seen == (there := [path.stat().st_mtime_ns for path in paths]):
                return
            seen = there
            for trained in map(load_model, paths):
                if trained.step in left:
                    if not all(bool(value.isfinite().all()) for value in trained.model.state_dict().values()):
                        raise DivergedError
                    left.remove(trained.step)
                    yield trained.step, self._measure(trained)

        yield from new()
        if run.steps not in left:
            return
        process = start(self._command(run, gpu), folder / LOG, gpu)
        try:
            while True:
                status = process.poll()  # before the look, which so misses nothing that was written before the end
                yield from new()
                if run.steps not in left:
                    return
                if stop.is_set() or (status and stop.wait(1.0)):  # Ctrl-C in a terminal tells them all, in any order
                    raise EndedError
                if status is not None:
                    log = LogReader(folder / METRICS)
                    diverged = log.read() and not np.isfinite(log.last["loss"])
                    raise DivergedError if diverged else command_error(f"trial {folder.name}", folder / LOG, status)
                stop.wait(_SECONDS)
        finally:
            process.terminate()
            process.wait()

    def _command(self, run: Pretrain, gpu: str) -> list[str]:
        size = self._space.settings.size
        return ["pretrain", size, *to_arguments(run, SIZES[size][1]), *([] if gpu else ["--threads", "1"])]

    def test(self, runs: list[Path]) -> list[Metric]:
        """Of the folders of finished runs, and last of the weights that the first began with, on the split test."""
        metric = Measuring(self._space, "test")
        models = [load_model(run) for run in runs]
        return [metric(trained) for trained in [*models, models[0].untrained()]]
