"""`gdt eval search`: Optuna draws and prunes trials; its journal in the folder of the search lets it resume."""

from __future__ import annotations

import hashlib
import json
import shlex
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch
from matplotlib.figure import Figure
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.pruners import MedianPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from gdt.common import serialization
from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError, as_typed, first_line
from gdt.common.files import write_lines, write_text
from gdt.common.lock import locked
from gdt.eval.ablation.settings import Ablation
from gdt.eval.drawing import save
from gdt.eval.metrics import Metric, difference
from gdt.eval.processes import job_limit, run_parallel, to_arguments
from gdt.eval.progress import Progress
from gdt.eval.protocols import short_digest
from gdt.eval.record import RANDOM
from gdt.eval.search.settings import SEARCH, Search
from gdt.eval.search.space import RUNS, Space
from gdt.eval.search.trial import LOG, DivergedError, Trainer
from gdt.eval.subjects import open_index
from gdt.eval.tables import layout
from gdt.pipeline.notation import read_factors
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.layout import shard_folder
from gdt.train.models.gdt import any_device
from gdt.train.provenance import provenance_of
from gdt.train.settings import differences

_JOURNAL, _TEST, _PICTURE = "journal.jsonl", "test.json", "importance.png"
_COMPOSITION, _METRIC, _REJECTED = "composition", "metric", "rejected"
"""User attributes of a trial: its composition and last metric; or the reason why a draw cannot be trained."""
STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped", TrialState.FAIL: "diverged"}
_STUCK = 20
"""Consecutive draws without a new composition after which draws are uniform."""
_EXHAUSTED = 300
"""Consecutive draws without a new composition after which the search ends."""
_BEST = 3
"""Number of printed rows, besides the baseline."""
_WIDE = 250
"""Columns of table.txt."""


def search(settings: Search, trainer: type[Trainer] = Trainer) -> str:
    """Run the remaining trials, then test the best once; returns the report.

    Raises UserError if the videos do not fit, the folder holds a different search, or a trial fails.
    """
    index = open_index(settings.dataset, shard_folder(settings.dataset, settings.shards)).labelled(settings.label)
    space, jobs = Space(settings, index).with_clips(), job_limit(settings.jobs)
    settings = space.settings
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # leaves the cores to the trials, and gives the same digits on every machine
    train = trainer(space)
    parameters = space.of_preset(settings.baseline)
    try:
        space.pretraining(space.text(parameters))
    except UserError as error:
        raise UserError(f"--baseline {settings.baseline} cannot be trained: {error}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with locked(settings.folder, "set --out to another folder"):
        _require_same_search(settings, index)
        study = Study(space, train, parameters)
        study.run(jobs)
        return study.report()


class _Journal(JournalFileBackend):
    """Optuna's journal with a checksum in every line; optuna ignores it."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        super().append_logs([*map(serialization.add_checksum, logs)])


def _mend_journal(path: Path) -> None:
    """Drop a line that a crash truncated. Raises UserError for any other damage."""
    if not path.is_file():
        return
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            serialization.require_checksum(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path} is damaged ({first_line(error)} in line {number}); remove it and run the same command again: "
                "finished training runs are kept"
            ) from error
    if last:
        write_lines(path, (line.decode() + "\n" for line in lines))


class Study:
    """An Optuna study of a space whose trials are training runs."""

    def __init__(self, space: Space, trainer: Trainer, baseline: dict[str, str | int]) -> None:
        self._space, self._trainer, self._settings = space, trainer, space.settings
        self._lock, self._began = threading.Lock(), time.monotonic()
        self._exhausted = False
        path = self._settings.folder / _JOURNAL
        _mend_journal(path)
        # left by a killed search; the folder's lock is held
        path.with_name(path.name + ".lock").unlink(missing_ok=True)
        self._study = optuna.create_study(
            storage=JournalStorage(_Journal(str(path))), study_name="search", direction="maximize",
            pruner=MedianPruner(n_startup_trials=5), load_if_exists=True,
        )  # fmt: skip
        self._baseline = space.text(baseline)
        waiting = self._study.get_trials(states=(TrialState.WAITING,))
        if not waiting and self._baseline not in map(_composition, self.trials()):
            self._study.enqueue_trial(baseline)

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Trials that train a composition, in these states or in any."""
        trials = self._study.get_trials(deepcopy=False, states=states or None)
        return [trial for trial in trials if _COMPOSITION in trial.user_attrs]

    def run(self, jobs: int) -> None:
        """Run the remaining trials in parallel, interrupted ones first."""
        settings, interrupted = self._settings, self.trials(TrialState.RUNNING)
        done = len(self.trials(*STATES))
        todo: list[FrozenTrial | None] = [*interrupted, *[None] * (settings.trials - done - len(interrupted))]
        if not todo:
            return
        each = f"{settings.batch_size} videos" if settings.batch_size else f"{settings.clips_per_step} video clips"
        print(f"{len(todo)} of {settings.trials} trials left, {jobs} in parallel, {each} per step\n"
              f"logs: {settings.folder / RUNS}/<digest>/log.txt", flush=True)  # fmt: skip
        with Progress({}, "search", settings.trials * settings.steps, done * settings.steps) as bar:
            for _ in run_parallel(todo, partial(self._train, bar), jobs, bar.refresh):
                pass

    def _train(self, bar: Progress, interrupted: FrozenTrial | None, gpu: str, stop: threading.Event) -> None:
        """Train a trial until its end, or until Optuna prunes it."""
        trial = Trial(self._study, interrupted._trial_id) if interrupted else self._draw()
        if trial is None:
            return
        run, last = self._space.pretraining(trial.user_attrs[_COMPOSITION]), self._settings.steps
        bar.follow(run.run_folder, last)
        measured = interrupted.intermediate_values if interrupted else {}
        steps = {*range(run.checkpoint_steps, last, run.checkpoint_steps), last} - measured.keys()
        state = TrialState.COMPLETE
        try:
            with closing(self._trainer.train(run, gpu, steps, stop)) as metrics:
                for step, metric in metrics:
                    trial.set_user_attr(_METRIC, metric)
                    trial.report(metric.value, step)
                    if step < last and run.factors != self._baseline and trial.should_prune():
                        state = TrialState.PRUNED
                        break
        except DivergedError:
            state = TrialState.FAIL
        except UserError:
            stop.set()
            raise
        value = trial.user_attrs[_METRIC][0] if state == TrialState.COMPLETE else None
        bar.finish(run.run_folder, f"[{time.monotonic() - self._began:4.0f} s] "
                     + ", ".join(filter(None, _row(self._study.tell(trial, value, state)))))  # fmt: skip

    def _draw(self) -> Trial | None:
        """A trial of a new composition that can be trained; None if there are no more.

        Draws that cannot be trained are reported to Optuna as pruned without a value, its worst result.
        """
        with self._lock:
            for attempt in range(0 if self._exhausted else _EXHAUSTED):
                # a seed per draw, so that a resumed search does not repeat its draws
                seed = 100_003 * self._settings.seed + len(self._study.get_trials(deepcopy=False))
                self._study.sampler = TPESampler(seed=seed) if attempt < _STUCK else RandomSampler(seed)
                trial = self._study.ask(self._space.parameters)
                text = self._space.text(trial.params)
                if text in map(_composition, self.trials()):
                    self._study.tell(trial, state=TrialState.FAIL)
                    continue
                try:
                    self._space.pretraining(text)
                except UserError as error:
                    trial.set_user_attr(_REJECTED, str(error))
                    self._study.tell(trial, state=TrialState.PRUNED)
                    continue
                trial.set_user_attr(_COMPOSITION, text)
                return trial
            self._exhausted = True
        return None

    def report(self) -> str:
        """Write the table and the plot, and test the best and the baseline if not done yet; returns a summary."""
        settings, out, trials = self._settings, self._settings.folder, self.trials(*STATES)
        base = next(trial for trial in trials if _composition(trial) == self._baseline)
        if base.state != TrialState.COMPLETE:
            folder = self._space.folder(self._baseline)
            raise UserError(
                f"the training of the baseline {settings.baseline} diverged (see {folder / LOG}); start a search with "
                "another --baseline or --seed, and another --out"
            )
        ranked = sorted(trials, key=lambda trial: (-(trial.last_step or 0), -_metric(trial).value, trial.number))
        lines = [["composition", f"R@{settings.k}, %", "status"], *map(_row, ranked)]
        lines[1 + ranked.index(base)][0] += f" [{settings.baseline}]"
        summary, test = self._summary(trials, ranked[0], base), self._test(ranked[0], base)
        importance = self._importance()
        commands = _commands(settings, ranked[0], base)
        write_text(out / "table.txt", "\n".join([layout(lines, _WIDE), "", *summary, importance, *test, *commands, ""]))
        best = [line for trial, line in zip(ranked, lines[1:], strict=True) if trial in [*ranked[:_BEST], base]]
        shown = [[textwrap.fill(name, 70), *cells] for name, *cells in [lines[0], *best]]
        drawn = (out / _PICTURE).is_file()
        below = [part for line in (*summary[2:], *[importance] * (not drawn), *test)
                 for part in textwrap.wrap(as_typed(line), 100, subsequent_indent="  ")]  # fmt: skip
        files = [f"all trials: {out}/table.txt", *[f"picture:    {out}/{_PICTURE}"] * drawn]
        return "\n".join(["", layout(shown), "", *below, *commands, *files])

    def _summary(self, trials: Sequence[FrozenTrial], best: FrozenTrial, base: FrozenTrial) -> list[str]:
        """Notes on the trials, the metric and the best composition."""
        settings, metric = self._settings, _metric(best)
        states = Counter(STATES[trial.state] for trial in trials)
        rejected = sum(_REJECTED in trial.user_attrs for trial in self._study.get_trials(deepcopy=False))
        lines = [
            f"{len(trials)} of {settings.trials} trials: {', '.join(f'{n} {state}' for state, n in states.items())}; "
            f"{rejected} draws rejected before training",
            f"R@{settings.k} {f'of {settings.label}' if settings.label else 'between modalities'} on "
            f"{settings.query_split}: {metric.answers} queries, chance {metric.chance:.1f} %, seed {settings.seed}; in "
            "brackets 95 % intervals over queries",
            f"best against {settings.baseline} on {settings.query_split}: {_compare(metric, _metric(base))}; selection "
            "favours it, so judge it on test",
        ]
        if len(trials) < settings.trials:
            lines.append("no new composition of these factors was found; add more to --factors, and set another --out")
        if metric.low <= metric.chance:
            lines.append("the best does not differ significantly from chance; raise --steps, and set another --out")
        return lines

    def _importance(self) -> str:
        """Plot the share of the variance of finished trials that each choice explains; returns the largest."""
        finished = self.trials(TrialState.COMPLETE)
        if len(finished) < 4 or len({trial.value for trial in finished}) < 2:
            return "too few finished trials to estimate the importance of each choice"
        shares = get_param_importances(self._study, evaluator=FanovaImportanceEvaluator(seed=0))
        figure = Figure(figsize=(6, 1 + 0.25 * len(shares)), layout="constrained")
        axes = figure.subplots()
        axes.barh([*shares][::-1], [*shares.values()][::-1], color="#8fb8de")
        axes.set_xlabel(f"importance (fANOVA, {len(finished)} finished trials)")
        save(figure, self._settings.folder / _PICTURE)
        largest = ", ".join(f"{name} {share:.0%}" for name, share in [*shares.items()][:3])
        return f"importance (fANOVA, rough): {largest}"

    def _test(self, best: FrozenTrial, base: FrozenTrial) -> list[str]:
        """The best, the baseline and random weights on the test split, evaluated once; later calls read the results."""
        path, names = self._settings.folder / _TEST, ("best", self._settings.baseline, RANDOM)
        if path.is_file():  # a second evaluation would be a second selection
            metrics = [Metric(*values) for values in _read(path)["metrics"].values()]
        else:
            compositions = [_composition(trial) for trial in (best, base)]
            try:
                metrics = self._trainer.test([self._space.folder(text) for text in compositions])
            except UserError as error:
                return [f"not tested: {error}"]
            record = {"compositions": compositions, "metrics": dict(zip(("best", "baseline", RANDOM), metrics,
                      strict=True)), "provenance": provenance_of(any_device())}  # fmt: skip
            _write(path, record)
        values = ", ".join(f"{name} {metric.text()}" for name, metric in zip(names, metrics, strict=True))
        return [
            f"test, evaluated once ({metrics[0].answers} queries, chance {metrics[0].chance:.1f} %): {values}",
            f"best against {names[1]} on test: {_compare(*metrics[:2])}",
        ]


def _composition(trial: FrozenTrial) -> str:
    return str(trial.user_attrs[_COMPOSITION])


def _metric(trial: FrozenTrial) -> Metric:
    return Metric(*trial.user_attrs.get(_METRIC, [-1.0]))


def _row(trial: FrozenTrial) -> list[str]:
    """The composition without the parts that all share, the last metric, and the state."""
    name = _composition(trial).removeprefix("video:d ").removesuffix(" augmentation:i:1")
    value = _metric(trial).text() if _METRIC in trial.user_attrs else ""
    return [name, value, STATES[trial.state] + (f" at {trial.last_step}" if trial.state == TrialState.PRUNED else "")]


def _compare(one: Metric, other: Metric) -> str:
    points, low, high = difference([one], [other])
    verdict = "no significant difference" if low <= 0 <= high else "significant"
    return f"{points:+.1f} points, 95 % CI {low:+.1f} to {high:+.1f} ({verdict})"


def _commands(settings: Search, best: FrozenTrial, base: FrozenTrial) -> list[str]:
    text = _composition(best)
    train = ["make", "pretrain", f"DATASET={settings.dataset}", f"FACTORS={text}"]
    train += [f"{name.upper()}={value}" for name in ("shards", "factors_from") if (value := getattr(settings, name))]
    lines = ["train the best:", _shell(train)]
    if best is not base:
        lines += [
            "compare it over other seeds before you rely on it:",
            _shell(gdt_command(*compare_seeds(settings, text))),
        ]
    return lines


def _shell(words: Iterable[str], width: int = 98) -> str:
    """A command quoted for the shell, in lines of at most `width` characters unless a word is longer."""
    lines: list[str] = []
    for word in map(shlex.quote, words):
        if lines and len(lines[-1]) + len(word) < width:
            lines[-1] += f" {word}"
        else:
            lines.append(word if not lines else f"  {word}")
    return " \\\n".join(lines)


def compare_seeds(settings: Search, composition: str) -> list[str]:
    """Arguments of `gdt` that train and test a composition and the baseline with three other seeds."""
    names = ["dataset", "shards", "factors_from", "size", "steps", "clips"]
    names.append("batch_size" if settings.batch_size else "clips_per_step")
    ablation = Ablation(
        **{name: getattr(settings, name) for name in names}, rows=(settings.baseline, composition),
        seeds=tuple(settings.seed + more for more in (1, 2, 3)), label=settings.metric, test_factors="none",
        equal="videos" if settings.batch_size else "clips", out=settings.folder / "seeds",
    )  # fmt: skip
    return ["eval", "ablation", *to_arguments(ablation, Ablation())]


def _require_same_search(settings: Search, index: Index) -> None:
    """Raise UserError if the folder holds a search with different settings, videos, labels or --factors-from."""
    path = settings.folder / SEARCH
    code = hashlib.sha256(read_factors(settings.factors_from)).hexdigest()[:12] if settings.factors_from else ""
    plain = json.loads(serialization.to_json(replace(settings, shards=None, out=None, jobs=0)))
    labels = short_digest(index.label.tolist()) if settings.label else ""
    now = plain | {"fingerprint of the shards": fingerprint(index)[:12], "checksum of the labels": labels,
                   "checksum of --factors-from": code}  # fmt: skip
    if path.is_file() and (other := differences(json.dumps(_read(path)), json.dumps(now))):
        raise UserError(
            f"{settings.folder} holds a search with different settings ({'; '.join(other)}); use those, or set --out "
            "to another folder (more trials, too, are a new search: the best one is tested only once)"
        )
    _write(path, now)


def _write(path: Path, values: dict[str, Any]) -> None:
    write_text(path, json.dumps(serialization.add_checksum(values), indent=2) + "\n")


def _read(path: Path) -> dict[str, Any]:
    """The values that `_write` wrote. Raises UserError if they are damaged."""
    try:
        return serialization.require_checksum(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({first_line(error)}); remove it and run the same command again") from error
