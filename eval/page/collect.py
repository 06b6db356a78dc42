"""Collects runs, results and models below a folder, and lists the files that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from gdt.common.errors import UserError, first_line
from gdt.eval import results, runs
from gdt.eval.results import RANDOM, RESULTS, Result
from gdt.eval.runs import Run
from gdt.train.run import CHECKPOINT, METRICS

T = TypeVar("T")


@dataclass
class Model:
    """A checkpoint with its results."""

    name: str
    checkpoint: Path
    results: list[Result] = field(default_factory=list)

    @property
    def score(self) -> float:
        """R@1 of retrieval, which ranks models; -1 without it."""
        found = (row.metrics["R@1"].value for row in reversed(self.results) if row.protocol == "retrieval")
        return next(found, -1.0)


@dataclass(frozen=True)
class Collected:
    """Everything below a folder."""

    runs: list[Run]
    """Last started first."""
    results: dict[Path, list[Result]]
    """By folder."""
    models: list[Model]
    """The best first."""
    unread: list[str]
    """Files that cannot be read, with reasons."""


def collect(root: Path) -> Collected:
    """Read all runs and results below a folder. Raises UserError if there are none."""
    unread: list[str] = []
    folders = sorted(path.parent for path in root.rglob(METRICS))
    found = [attempt(str(folder), unread, partial(runs.read, folder, root)) for folder in folders]
    logged = sorted(filter(None, found), key=lambda run: run.started, reverse=True)
    found_results = {path.parent: latest(results.read(path)) for path in sorted(root.rglob(RESULTS))}
    found_results = {home: rows for home, rows in found_results.items() if rows}
    if not logged and not found_results:
        broken = f"{'; '.join(unread)}; " if unread else ""
        raise UserError(
            f"{root} has no runs or evaluations; {broken}set --runs to the folder of your runs, or start one with 'gdt "
            "pretrain'"
        )
    return Collected(logged, found_results, _models(logged, found_results), unread)


def latest(rows: list[Result]) -> list[Result]:
    """Those with the settings that a protocol was evaluated with last, by data set, labels, words and modalities."""

    def of(row: Result) -> tuple[str, ...]:
        return row.protocol, row.dataset, row.label, row.words, str(row.settings.get("modalities"))

    def settings(row: Result) -> tuple[str, str, str]:
        return row.data, row.query_split, str(row.settings)

    last = {of(row): settings(row) for row in rows}
    return [row for row in rows if last[of(row)] == settings(row)]


def attempt(what: str, unread: list[str], make: Callable[[], T]) -> T | None:
    """The result of `make`; None if it fails: the error is noted, and the page shows the rest."""
    try:
        return make()
    except Exception as error:
        kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
        unread.append(f"{what}: {kind}{first_line(error)}")
        return None


def _models(logged: Sequence[Run], results: dict[Path, list[Result]]) -> list[Model]:
    """All models whose checkpoint is there."""
    models = {run.folder.resolve(): Model(run.name, run.folder / CHECKPOINT) for run in logged}
    for row in (row for rows in results.values() for row in rows if row.model != RANDOM):
        path = row.checkpoint.resolve()
        home = path.parent if path.name == CHECKPOINT else path
        models.setdefault(home, Model(row.model, path)).results.append(row)
    there = (model for model in models.values() if model.checkpoint.is_file() or model.checkpoint.is_dir())
    return sorted(there, key=lambda model: (-model.score, model.name))
