"""Collects runs, evaluations and models below a folder, and lists the files that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gdt.common import serialization
from gdt.common.errors import UserError, first_line
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.record import RANDOM, Record, parse
from gdt.eval.subjects import folder_name
from gdt.train import checkpoint, provenance
from gdt.train.run import METRICS, PROBES, SETTINGS, from_file
from gdt.train.settings import Pretrain

T = TypeVar("T")
_COLUMNS = ("step", "loss", "clips_per_second", "data_wait")


class Unread(NamedTuple):
    """A file that could not be read, or a part that could not be drawn."""

    what: str
    reason: str


@dataclass(frozen=True)
class Run:
    """A pretraining run."""

    folder: Path
    name: str
    """Its folder, relative to the folder of all runs."""
    settings: Pretrain | None
    start: dict[str, Any]
    metrics: dict[str, np.ndarray]
    """Per step, float64 [steps] by name: step, loss, clips_per_second, data_wait."""
    probes: dict[str, np.ndarray]
    """Per probe, float64 [probes] by name: step, and metrics in percent."""

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint, if any."""
        path = self.folder / checkpoint.NAME
        return path if path.is_file() else None

    @property
    def dataset(self) -> str:
        return self.settings.dataset if self.settings else "(unknown)"


class Result(NamedTuple):
    """A record and the folder of its features."""

    record: Record
    features: Path


@dataclass
class Collected:
    """Everything below a folder."""

    runs: list[Run]
    evaluations: dict[Path, list[Result]]
    """By folder."""
    unread: list[Unread] = field(default_factory=list)


def collect(folder: Path) -> Collected:
    """Read all runs and evaluations below a folder. Raises UserError if there are none."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; set --runs to the folder of your runs")
    unread: list[Unread] = []
    logs = {path.parent for name in (METRICS, checkpoint.NAME) for path in _files(folder, name)}
    runs = [_run(path, folder, unread) for path in sorted(logs)]
    collected = Collected(runs, _evaluations(folder, unread), unread=unread)
    if not collected.runs and not collected.evaluations:
        broken = f" that can be read ({unread[0].what}: {unread[0].reason})" if unread else ""
        raise UserError(
            f"{folder} has no runs or evaluations{broken}; set --runs to the folder of your runs, or start one with "
            "'gdt pretrain'"
        )
    return collected


def attempt(what: str, unread: list[Unread], make: Callable[[], T]) -> T | None:
    """The result of `make`; None if it fails: the error is noted, and the page shows the rest."""
    try:
        return make()
    except Exception as error:
        kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
        unread.append(Unread(what, f"{kind}{first_line(error)}"))
        return None


def _read(path: Path, unread: list[Unread], parse: Callable[[str], T]) -> T | None:
    """The parsed text of a file; None if it is missing, or (noted in `unread`) cannot be read."""

    def read() -> T:
        try:
            return parse(path.read_text(encoding="utf-8", errors="replace"))
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
            raise UserError(f"not a file that this program writes ({first_line(error)})") from error

    return attempt(str(path), unread, read) if path.is_file() else None


def _records(path: Path, unread: list[Unread]) -> list[Record] | None:
    return _read(path, unread, lambda text: parse(text, str(path)))


def _files(folder: Path, name: str) -> list[Path]:
    return sorted(path for path in folder.rglob(name) if path.is_file())


def _run(folder: Path, root: Path, unread: list[Unread]) -> Run:
    path = folder / SETTINGS
    settings = _read(path, unread, lambda _: from_file(path))
    start = _read(folder / provenance.NAME, unread, json.loads)
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    metrics, probes = _rows(folder / METRICS, unread, _COLUMNS), _rows(folder / PROBES, unread, ("step",))
    return Run(folder, name, settings, start or {}, _columns(metrics, _COLUMNS), _columns(probes))


def _columns(rows: Sequence[dict[str, float]], names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    names = names or list(dict.fromkeys(name for row in rows for name in row))
    return {name: np.array([row.get(name, np.nan) for row in rows], float) for name in names}


def _rows(path: Path, unread: list[Unread], needed: Sequence[str]) -> list[dict[str, float]]:
    """The undamaged lines of a log; others are noted in `unread`."""
    lines = _read(path, unread, str.splitlines) or []
    rows, broken = [], []
    for number, line in enumerate(lines, 1):
        try:
            row = {name: float(value) for name, value in json.loads(line).items()}
        except (ValueError, TypeError, AttributeError):
            row = {}
        if all(name in row for name in needed):
            rows.append(row)
        else:
            broken.append(number)
    if broken:
        reason = f"{len(broken)} of {len(lines)} lines are damaged (first: line {broken[0]})"
        unread.append(Unread(str(path), reason))
    return rows


def _evaluations(root: Path, unread: list[Unread]) -> dict[Path, list[Result]]:
    """Results by folder, the outermost first; a record in several files counts only in the first."""
    features: dict[str, Path] = {}
    first: dict[str, tuple[Path, Record]] = {}
    tables = sorted(_files(root, "results.json"), key=lambda path: (len(path.parts), path))
    single = [path for name in PROTOCOLS for path in _files(root, f"{name}-*.json")]
    for path in [*tables, *single]:
        for row in _records(path, unread) or ():
            if not row.metrics:
                unread.append(Unread(str(path), f"a result of {row.model} has no metrics"))
                continue
            key = serialization.to_json(replace(row, equal="", tflop=0.0))  # which an ablation adds
            first.setdefault(key, (path.parent if path in tables else path.parent.parent, row))
            if path not in tables:
                features[key] = path.parent
    evaluations: dict[Path, list[Result]] = {}
    for key, (home, row) in sorted(first.items(), key=lambda item: item[1][0]):
        folder = features.get(key, home / folder_name(row.model, row.weights))
        evaluations.setdefault(home, []).append(Result(row, folder))
    return evaluations


@dataclass(frozen=True)
class Subject:
    """A model with its run and its results."""

    name: str
    """Name of its run or file."""
    checkpoint: Path | None
    run: Run | None
    results: tuple[Result, ...]
    """Latest first."""

    @property
    def dataset(self) -> str:
        return self.results[0].record.dataset if self.results else self.run.dataset if self.run else ""

    @property
    def shards(self) -> Path | None:
        """Shards that it was evaluated on, or else trained on."""
        if self.results:
            return self.results[0].record.shards
        return self.run.settings.shard_folder if self.run and self.run.settings else None

    @property
    def score(self) -> float:
        """Ranks models of a data set: R@1 of retrieval, else the first metric; -1 without results."""
        ranked = sorted(self.results, key=lambda result: result.record.protocol != "retrieval")
        return next(iter(ranked[0].record.metrics.values())).value if ranked else -1.0


def subjects(collected: Collected) -> list[Subject]:
    """All models, by name."""
    runs = {run.folder.resolve(): run for run in collected.runs}
    of_runs: dict[Path, list[Result]] = {folder: [] for folder in runs}
    others: dict[tuple[str, Path], list[Result]] = {}
    for result in (result for evaluation in collected.evaluations.values() for result in evaluation):
        row = result.record
        if row.model == RANDOM:
            continue
        # the run may have been moved since
        moved = (p for p, run in runs.items() if run.settings == row.pretraining and p.name == row.model)
        path = row.checkpoint.resolve()
        folder = next((each for each in (path, path.parent) if each in runs), None) or next(moved, None)
        (of_runs[folder] if folder else others.setdefault((row.model, row.checkpoint), [])).append(result)
    models = [Subject(run.name, run.checkpoint, run, _latest_first(of_runs[folder])) for folder, run in runs.items()]
    for (name, path), results in others.items():
        models.append(Subject(name, path if path.exists() else None, None, _latest_first(results)))
    return sorted(models, key=lambda subject: subject.name)


def _latest_first(results: list[Result]) -> tuple[Result, ...]:
    return tuple(sorted(results, key=lambda each: each.record.provenance["started"], reverse=True))


def choose(models: Sequence[Subject], names: Sequence[str], most: int) -> list[Subject]:
    """The named models, or those with a checkpoint, the best of every data set in turn.

    Raises UserError for an unknown name.
    """
    if names:
        by_name = {Path(model.name).name: model for model in models} | {model.name: model for model in models}
        if unknown := [name for name in names if name not in by_name]:
            available = ", ".join(model.name for model in models)
            raise UserError(f"unknown model '{unknown[0]}'; set --figures-of to some of: {available}")
        return list({by_name[name].name: by_name[name] for name in names}.values())
    ranked: list[tuple[int, str, Subject]] = []
    drawable = [model for model in models if model.checkpoint]
    for dataset in {model.dataset for model in drawable}:
        of_dataset = [model for model in drawable if model.dataset == dataset]
        of_dataset.sort(key=lambda model: (-model.score, model.name))
        ranked += [(rank, dataset, model) for rank, model in enumerate(of_dataset)]
    return [model for _, _, model in sorted(ranked, key=lambda row: row[:2])[:most]]
