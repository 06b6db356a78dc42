"""`gdt eval search`: which compositions are tried, by Optuna, kept in a file from which a search goes on."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import optuna
import torch
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.common.lock import locked
from gdt.eval.metrics import Metric
from gdt.eval.processes import job_limit, run_parallel
from gdt.eval.progress import Progress
from gdt.eval.search.report import DIVERGED, DONE, STOPPED, Found, Tried, finish
from gdt.eval.search.settings import Search
from gdt.eval.search.space import RUNS, Parameters, Space
from gdt.eval.search.trial import DivergedError, Trainer
from gdt.eval.subjects import open_index
from gdt.pipeline.notation import read_factors
from gdt.pipeline.shards.index import fingerprint
from gdt.pipeline.shards.layout import shard_folder
from gdt.train.settings import differences

_SETTINGS, _JOURNAL = "search.json", "drawn.jsonl"
_COMPOSITION, _MEASURES, _STATE = "composition", "metrics", "state"
"""What is kept of a trial: also its metrics by the step, and, where it is over, how it ended."""
_REFUSED, _KNOWN = "refused", "known"
"""What is kept of a drawing that is none: why it cannot be trained, or that it had been tried."""
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
    index = open_index(settings.dataset, shard_folder(settings.dataset, settings.shards)).labelled(settings.label)
    space, at_once = Space(settings, index), job_limit(settings.jobs)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # trials have the other cores, and metrics the same digits wherever there are more
    train = trainer(space)  # or it says what is wrong, before hours of training
    baseline = space.of_preset(settings.baseline)
    try:
        space.pretraining(space.text(baseline))
    except UserError as error:
        raise UserError(f"--baseline {settings.baseline} cannot be trained: {error}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with locked(settings.folder, "set --out"):
        _require_same(settings, fingerprint(index))
        study = Study(space, train, baseline)
        study.run(at_once)
        return finish(settings, study.found(), train)


class Study:
    """The study in the folder of a search: what was drawn, what became of it, and what is drawn next."""

    def __init__(self, space: Space, trainer: Trainer, baseline: Parameters) -> None:
        """`baseline` is drawn first."""
        self._space, self._trainer, self._settings = space, trainer, space.settings
        self._baseline = space.text(baseline)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._row = 0
        """Drawings since the last that made a trial."""
        path = self._settings.folder / _JOURNAL
        if path.is_file() and not (lines := path.read_bytes()).endswith(b"\n"):
            path.write_bytes(lines[: lines.rfind(b"\n") + 1])  # half a line, as where the machine went down
        path.with_name(path.name + ".lock").unlink(missing_ok=True)  # as a kill leaves it: the folder is held
        self._study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))), study_name="search", direction="maximize",
            load_if_exists=True,
        )  # fmt: skip
        if self._baseline not in self._known() and not self._study.get_trials(states=(TrialState.WAITING,)):
            self._study.enqueue_trial(dict(baseline))

    def run(self, at_once: int) -> None:
        """Try what was not tried yet, side by side; what an earlier call left half done first."""
        settings, done = self._settings, len(self._over(_STATE))
        begun = self._begun()
        jobs: list[Trial | None] = [*begun, *[None] * max(0, settings.trials - done - len(begun))]
        if not jobs:
            return
        print(
            f"{len(jobs)} of {settings.trials} compositions left to try, {at_once} at a time, "
            f"{settings.clips_per_step} video clips per step each; logs in {settings.folder / RUNS}/<digest>/log.txt",
            flush=True,
        )
        began = time.monotonic()
        with Progress({}, "search", settings.trials * settings.steps, done * settings.steps) as bar:
            one = partial(self._one, bar, began)
            for _ in run_parallel(jobs, one, at_once, bar.refresh, self._stop.set):
                pass

    def _begun(self) -> list[Trial]:
        """Trials that an earlier call left half done. A drawing that it had no time to look at is given up."""
        left = []
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            if _COMPOSITION in trial.user_attrs:
                left.append(Trial(self._study, trial._trial_id))  # the same trial, with what it has reported
            else:
                self._study.tell(trial.number, state=TrialState.FAIL)
        return left

    def _one(self, bar: Progress, began: float, trial: Trial | None, gpu: str) -> None:
        """Draw a composition, unless one was begun, and train it until its end, or until it is poor."""
        trial = trial or self._next()
        if trial is None:
            return
        run, last = self._space.pretraining(trial.user_attrs[_COMPOSITION]), self._settings.steps
        bar.follow(run.run_folder, last)
        metrics = _metrics(trial)
        steps = {*range(run.checkpoint_steps, last, run.checkpoint_steps), last} - metrics.keys()
        state = DONE
        try:
            with closing(self._trainer.train(run, gpu, steps, self._stop)) as new:
                for step, metric in new:
                    metrics[step] = metric
                    trial.set_user_attr(_MEASURES, metrics)
                    trial.report(metric.value, step)
                    if step < last and self._is_poor(run.factors, step, metric):
                        state = STOPPED
                        break
        except DivergedError:
            state = DIVERGED
        trial.set_user_attr(_STATE, state)
        value = metrics[last].value if state == DONE else None
        told = self._study.tell(trial, value, TrialState.COMPLETE if state == DONE else TrialState.PRUNED)
        bar.finish(run.run_folder, f"[{time.monotonic() - began:4.0f} s] {self._tried(told)}")

    def _is_poor(self, composition: str, step: int, metric: Metric) -> bool:
        """Whether even the upper end of the interval lies below the median of the trials that came to their end.

        Optuna's own pruners compare the values alone, and would stop every other trial while all are at chance.
        """
        ended = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        others = [trial.intermediate_values[step] for trial in ended if step in trial.intermediate_values]
        poor = len(others) >= _ENDED and metric.interval[1] < float(np.median(others))
        return poor and composition != self._baseline

    def _next(self) -> Trial | None:
        """A composition that was not tried yet; None where there are no more.

        One that cannot be trained counts as the worst for the sampler, and costs nothing; one that is known is dropped.
        """
        with self._lock:
            while self._row < _EXHAUSTED:
                self._study.sampler = self._sampler(at_random=self._row >= _AT_RANDOM)
                trial = self._study.ask(self._space.parameters)
                text, self._row = self._space.text(trial.params), self._row + 1
                if text in self._known():
                    trial.set_user_attr(_KNOWN, True)
                    self._study.tell(trial, state=TrialState.FAIL)
                    continue
                try:
                    self._space.pretraining(text)
                except UserError as error:
                    trial.set_user_attr(_REFUSED, str(error))
                    self._study.tell(trial, state=TrialState.PRUNED)
                    continue
                trial.set_user_attr(_COMPOSITION, text)
                self._row = 0
                return trial
        return None

    def _known(self) -> set[str]:
        """Compositions of all trials."""
        return {trial.user_attrs.get(_COMPOSITION, "") for trial in self._study.get_trials(deepcopy=False)}

    def _sampler(self, at_random: bool) -> BaseSampler:
        """Of the next drawing: with a seed of its own, so that a search that goes on does not draw the same again."""
        drawn = len(self._study.get_trials(deepcopy=False))
        seed = int(np.random.SeedSequence([self._settings.seed, drawn]).generate_state(1)[0])
        return RandomSampler(seed) if at_random else TPESampler(seed=seed)

    def _over(self, name: str) -> list[FrozenTrial]:
        """All drawings that are over of which this is kept."""
        trials = self._study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state.is_finished() and name in trial.user_attrs]

    def found(self) -> Found:
        """What the search has come to."""
        tried = [self._tried(trial) for trial in self._over(_STATE)]
        (baseline,) = (one for one in tried if one.composition == self._baseline)
        refused = [trial.user_attrs[_REFUSED] for trial in self._over(_REFUSED)]
        return Found(tried, baseline, refused, len(self._over(_KNOWN)), self._space.parameters)

    def _tried(self, trial: FrozenTrial) -> Tried:
        text, metrics = trial.user_attrs[_COMPOSITION], _metrics(trial)
        step = max(metrics, default=0)
        return Tried(trial.number, text, self._space.shown(text), trial.user_attrs[_STATE], step, metrics.get(step),
                     self._space.folder(text), trial.params)  # fmt: skip


def _metrics(trial: Trial | FrozenTrial) -> dict[int, Metric]:
    """By the step."""
    return {int(step): Metric(*values) for step, values in trial.user_attrs.get(_MEASURES, {}).items()}


def _require_same(settings: Search, data: str) -> None:
    """Raise UserError where the folder holds a search with other settings or on other videos."""
    path = settings.folder / _SETTINGS
    plain = replace(settings, shards=None, out=None, jobs=0, best=1)
    own = hashlib.sha256(read_factors(settings.factors_from)).hexdigest()[:12] if settings.factors_from else ""
    beside = {"fingerprint of the shards": data[:12], "digest of --factors-from": own}
    now = json.dumps(json.loads(serialization.to_json(plain)) | beside)
    if path.is_file() and (other := differences(path.read_text(), now)):
        raise UserError(
            f"{settings.folder} holds a search with other settings ({'; '.join(other)}); set --out to another folder, "
            "or go on with the same settings"
        )
    write_text(path, now + "\n")
