"""`gdt eval search`: which compositions are tried, by Optuna, kept in a file from which a search goes on."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import torch
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState
from tqdm import tqdm

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.common.lock import locked
from gdt.eval.measures import Measure
from gdt.eval.processes import places, side_by_side
from gdt.eval.progress import Follower
from gdt.eval.search.report import DIVERGED, DONE, STOPPED, Found, Tried, finish
from gdt.eval.search.space import Parameters, Space
from gdt.eval.search.trial import DivergedError, Reports, Trainer
from gdt.eval.settings.search import Search
from gdt.eval.subjects import opened
from gdt.pipeline.notation import own_code
from gdt.pipeline.shards.index import fingerprint
from gdt.pipeline.shards.layout import shard_folder
from gdt.train.settings import METRICS, Pretrain, differences

_SETTINGS, _JOURNAL, _RUNS = "search.json", "drawn.jsonl", "runs"
_COMPOSITION, _MEASURES, _WHY = "composition", "measures", "why"
"""What is kept of a drawing that is a trial: the composition and its measures by the step; or why it is none."""
_KNOWN = "known"
_AT_RANDOM = 20
"""After so many drawings in a row that make no trial, they are drawn evenly: the sampler may be stuck."""
_EXHAUSTED = 300
"""After so many, there is nothing left to draw."""
_ENDED = 5
"""Trials that have come to their end before one is stopped early."""


def search(settings: Search, trainer: type[Trainer] = Trainer) -> str:
    """Try what was not tried yet, then test the best once; returns the table.

    Raises UserError where the videos are not fit for it, where the folder holds another search, or a trial fails.
    """
    index = opened(settings.dataset, shard_folder(settings.dataset, settings.shards)).labelled(settings.label)
    space, at_once = Space(settings, index), places(settings.side_by_side)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # trials have the other cores, and measures the same digits wherever there are more
    train = trainer(space)  # or it says what is wrong, before hours of training
    baseline = space.of_preset(settings.baseline)
    try:
        space.pretraining(space.text(baseline), settings.folder)
    except UserError as error:
        raise UserError(f"--baseline {settings.baseline} cannot be trained: {error}") from error
    with locked(settings.folder, "set --out"), _quiet():
        _require_same(settings, fingerprint(index))
        drawing = Drawing(space, baseline)
        Running(drawing, train).run(at_once)
        return finish(settings, drawing.found(), train)


class Drawing:
    """The study in the folder of a search: what was drawn, what became of it, and what is drawn next."""

    def __init__(self, space: Space, baseline: Parameters) -> None:
        """`baseline` is drawn first."""
        self.space, self._lock = space, threading.RLock()
        self._baseline = space.text(baseline)
        self._row = 0
        """Drawings since the last that made a trial."""
        path = space.settings.folder / _JOURNAL
        if path.is_file() and not (lines := path.read_bytes()).endswith(b"\n"):
            path.write_bytes(lines[: lines.rfind(b"\n") + 1])  # half a line, as where the machine went down
        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path), _Held(str(path)))), study_name="search",
            direction="maximize", load_if_exists=True,
        )  # fmt: skip
        if self._baseline not in self._known() and not self.study.get_trials(states=(TrialState.WAITING,)):
            self.study.enqueue_trial(dict(baseline))

    def begun(self) -> list[Trial]:
        """Trials that an earlier call left half done. A drawing that it had no time to look at is given up."""
        left = []
        for trial in self.study.get_trials(states=(TrialState.RUNNING,)):
            if _COMPOSITION in trial.user_attrs:
                left.append(Trial(self.study, trial._trial_id))  # the same trial, with what it has reported
            else:
                self.study.tell(trial.number, state=TrialState.FAIL)
        return left

    def next(self) -> Trial | None:
        """A composition that was not tried yet; None where there are no more.

        One that cannot be trained counts as the worst for the sampler, and costs nothing; one that is known is dropped.
        """
        with self._lock:
            while self._row < _EXHAUSTED:
                self.study.sampler = self._sampler(at_random=self._row >= _AT_RANDOM)
                trial = self.study.ask(self.space.parameters)
                text, self._row = self.space.text(trial.params), self._row + 1
                if text in self._known():
                    trial.set_user_attr(_WHY, _KNOWN)
                    self.study.tell(trial, state=TrialState.FAIL)
                    continue
                try:
                    self.run(text)
                except UserError as error:
                    trial.set_user_attr(_WHY, str(error))
                    self.study.tell(trial, state=TrialState.PRUNED)
                    continue
                trial.set_user_attr(_COMPOSITION, text)
                self._row = 0
                return trial
        return None

    def _known(self) -> set[str]:
        """Compositions of all trials."""
        return {trial.user_attrs.get(_COMPOSITION, "") for trial in self.study.get_trials(deepcopy=False)}

    def _sampler(self, at_random: bool) -> BaseSampler:
        """Of the next drawing: with a seed of its own, so that a search that goes on does not draw the same again."""
        drawn = len(self.study.get_trials(deepcopy=False))
        seed = int(np.random.SeedSequence([self.space.settings.seed, drawn]).generate_state(1)[0])
        return RandomSampler(seed) if at_random else TPESampler(seed=seed)

    def run(self, text: str) -> Pretrain:
        """The pretraining of a composition, in a folder that is called by its digest."""
        name = hashlib.sha256(text.encode()).hexdigest()[:10]
        return self.space.pretraining(text, self.space.settings.folder / _RUNS / name)

    def reports(self, trial: Trial, run: Pretrain) -> Reports:
        """Takes the measures of a trial, and says whether to stop it; the baseline, which is the first, never is."""
        every = range(run.checkpoint_steps, run.steps, run.checkpoint_steps)
        measures = dict(trial.user_attrs.get(_MEASURES, {}))

        def tell(step: int, measure: Measure) -> bool:
            with self._lock:
                measures[str(step)] = measure
                trial.set_user_attr(_MEASURES, measures)
                trial.report(measure.value, step)
                return step < run.steps and run.factors != self._baseline and self._is_poor(step, measure)

        return Reports({*every, run.steps} - {int(step) for step in measures}, tell)

    def _is_poor(self, step: int, measure: Measure) -> bool:
        """Whether even the upper end of the interval lies below the median of the trials that came to their end.

        Optuna's own pruners compare the values alone, and would stop every other trial while all are at chance.
        """
        ended = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        others = [trial.intermediate_values[step] for trial in ended if step in trial.intermediate_values]
        return len(others) >= _ENDED and measure.interval[1] < float(np.median(others))

    def tell(self, trial: Trial, diverged: bool) -> Tried:
        """A trial is over."""
        with self._lock:
            if diverged:
                trial.set_user_attr(_WHY, DIVERGED)
            tried = self._tried(self.study.get_trials(deepcopy=False)[trial.number])
            ended = not diverged and tried.steps == self.space.settings.steps
            self.study.tell(trial, tried.measure.value if ended and tried.measure else None,
                            state=TrialState.COMPLETE if ended else TrialState.PRUNED)  # fmt: skip
            return tried

    def finished(self) -> list[Tried]:
        """All trials that are over."""
        every = self.study.get_trials(deepcopy=False)
        return [self._tried(t) for t in every if t.state.is_finished() and _COMPOSITION in t.user_attrs]

    def _tried(self, trial: FrozenTrial) -> Tried:
        measures = {int(step): Measure(*values) for step, values in trial.user_attrs.get(_MEASURES, {}).items()}
        steps = max(measures, default=0)
        state = DONE if steps == self.space.settings.steps else STOPPED
        text = trial.user_attrs[_COMPOSITION]
        return Tried(
            trial.number, text, self.space.shown(text), self.run(text).run_folder,
            DIVERGED if trial.user_attrs.get(_WHY) == DIVERGED else state, steps, measures.get(steps),
            dict(trial.params),
        )  # fmt: skip

    def found(self) -> Found:
        """What the search has come to."""
        whys = [trial.user_attrs.get(_WHY, "") for trial in self.study.get_trials(deepcopy=False)]
        refused = [why for why in whys if why not in ("", _KNOWN, DIVERGED)]
        tried = self.finished()
        (first,) = (one for one in tried if one.composition == self._baseline)
        return Found(tried, first, refused, whys.count(_KNOWN), self.space.parameters)


class Running:
    """Trials side by side, and a line that says how far they are."""

    def __init__(self, drawing: Drawing, trainer: Trainer) -> None:
        self._drawing, self._trainer = drawing, trainer
        self._steps, self._stop = drawing.space.settings.steps, threading.Event()
        self._logs: dict[Path, Follower] = {}
        """Of the trials that run, by their folders."""

    def run(self, at_once: int) -> None:
        """All trials that are left to do; told to end, those that run leave checkpoints first."""
        settings, begun, done = self._drawing.space.settings, self._drawing.begun(), len(self._drawing.finished())
        jobs: list[Trial | None] = [*begun, *[None] * max(0, settings.trials - done - len(begun))]
        if not jobs:
            return
        print(
            f"{len(jobs)} of {settings.trials} compositions left to try, {at_once} at a time, "
            f"{settings.clips_per_step} video clips per step each; logs in {settings.folder / _RUNS}/<digest>/log.txt",
            flush=True,
        )
        self._began, self._over = time.monotonic(), done
        bar = tqdm(
            total=settings.trials * self._steps, initial=done * self._steps, unit="step", desc="search", smoothing=0.0,
            mininterval=0.0 if sys.stderr.isatty() else 8.0, dynamic_ncols=True,
        )  # fmt: skip
        with bar:
            self._bar = bar
            for _ in side_by_side(jobs, self._one, at_once, self._look, self._stop.set):
                pass

    def _one(self, trial: Trial | None, gpu: str) -> None:
        trial = trial or self._drawing.next()
        if trial is None:
            return
        run, diverged = self._drawing.run(trial.user_attrs[_COMPOSITION]), False
        folder = run.run_folder
        self._logs[folder] = Follower(folder / METRICS)
        try:
            self._trainer.train(run, gpu, self._drawing.reports(trial, run), self._stop)
        except DivergedError:
            diverged = True
        finally:
            del self._logs[folder]
        tried = self._drawing.tell(trial, diverged)
        self._over += 1
        self._bar.write(f"[{time.monotonic() - self._began:4.0f} s] {tried}")

    def _look(self) -> None:
        """See how far the trials are. One that was stopped counts as done, so the time left gets shorter by it."""
        logs = list(self._logs.items())
        for _, log in logs:
            log.look()
        steps = {folder.name: int(log.last["step"]) + 1 if log.last else 0 for folder, log in logs}
        self._bar.set_postfix_str(", ".join(f"{name}: step {step}" for name, step in steps.items()), refresh=False)
        self._bar.update(self._over * self._steps + sum(steps.values()) - self._bar.n)
        if sys.stderr.isatty():
            self._bar.refresh()


def _require_same(settings: Search, data: str) -> None:
    """Raise UserError where the folder holds a search with other settings or on other videos."""
    path = settings.folder / _SETTINGS
    plain = replace(settings, shards=None, out=None, side_by_side=0, best=1)
    own = hashlib.sha256(own_code(settings.factors_from)).hexdigest()[:12] if settings.factors_from else ""
    beside = {"fingerprint of the shards": data[:12], "digest of --factors-from": own}
    now = json.dumps(json.loads(serialization.to_json(plain)) | beside)
    if path.is_file() and (other := differences(path.read_text(), now)):
        raise UserError(
            f"{settings.folder} holds a search with other settings ({'; '.join(other)}); set --out to another folder, "
            "or go on with the same settings"
        )
    write_text(path, now + "\n")


class _Held(JournalFileOpenLock):
    """No lock of Optuna's, which a kill would leave behind: the folder is held by this process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Optuna says of every trial, and of parts of it that may change."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            yield
        finally:
            optuna.logging.set_verbosity(before)
