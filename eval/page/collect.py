"""What lies below a folder of runs, and the models among it; what cannot be read is named with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gdt.common import serialization
from gdt.common.errors import UserError, first_line
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.record import RANDOM, Record, parse
from gdt.eval.subjects import folder_name
from gdt.eval.tables import Lines
from gdt.preprocess.summary import SUMMARY
from gdt.train import checkpoint, provenance
from gdt.train.provenance import Start
from gdt.train.settings import METRICS, PROBES, SETTINGS, Pretrain
from gdt.train.settings import from_json as settings_from_json

T = TypeVar("T")
FIGURES = "figures.json"
"""What `gdt study figures` writes."""
_COLUMNS = ("step", "loss", "clips_per_second", "data_wait")


class Unread(NamedTuple):
    """A file that could not be read, or something that could not be drawn, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Run:
    """A folder of pretraining."""

    folder: Path
    name: str
    """Of the folder, below that of all runs."""
    settings: Pretrain | None
    starts: tuple[Start, ...]
    metrics: dict[str, np.ndarray]
    """Of every step that could be read, float64 [steps] by name: step, loss, clips_per_second, data_wait."""
    probes: dict[str, np.ndarray]
    """Of every probe, float64 [probes] by name: step, and the figures that it found, percent."""

    @property
    def checkpoint(self) -> Path | None:
        """The newest, where there is one."""
        path = self.folder / checkpoint.NAME
        return path if path.is_file() else None

    @property
    def dataset(self) -> str:
        return self.settings.dataset if self.settings else "(not known)"


class Found(NamedTuple):
    """A record and where its features are kept."""

    record: Record
    features: Path
    """Folder of the model in that of the evaluation."""


@dataclass
class Collected:
    """Everything below a folder."""

    runs: list[Run]
    evaluations: dict[Path, list[Found]]
    """By the folder of the evaluation."""
    figures: dict[Path, list[Record]] = field(default_factory=dict)
    """What `gdt study figures` found, by its folder."""
    data: dict[tuple[str, Path], tuple[Lines, Lines] | None] = field(default_factory=dict)
    """Data sets and folders of shards that these name, with what preprocessing counted."""
    unread: list[Unread] = field(default_factory=list)


def collect(folder: Path) -> Collected:
    """Read all runs and evaluations below a folder. Raises UserError where there is none."""
    unread: list[Unread] = []
    logs = {path.parent for name in (METRICS, checkpoint.NAME) for path in _files(folder, name)}
    runs = [_run(path, folder, unread) for path in sorted(logs)]
    found = Collected(runs, _evaluations(folder, unread), unread=unread)
    if not found.runs and not found.evaluations:
        broken = f" that can be read ({unread[0].what}: {unread[0].why})" if unread else ""
        raise UserError(
            f"{folder} holds no runs and no evaluations{broken}; make one with 'make pretrain', or set --runs to the "
            "folder of yours"
        )
    for path in _files(folder, FIGURES):
        if (records := _records(path, unread)) is not None:
            found.figures[path.parent] = records
    named = {(run.dataset, run.settings.shard_folder) for run in found.runs if run.settings}
    named |= {(row.record.dataset, row.record.shards) for rows in found.evaluations.values() for row in rows}
    for dataset, shards in sorted(named, key=str):
        found.data[dataset, shards] = _read(shards / SUMMARY, unread, counted)
    return found


def attempt(what: str, unread: list[Unread], make: Callable[[], T]) -> T | None:
    """What `make` makes; None, which is noted, where it cannot: the page has the rest."""
    try:
        return make()
    except Exception as error:
        kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
        unread.append(Unread(what, f"{kind}{first_line(error)}"))
        return None


def _read(path: Path, unread: list[Unread], parse: Callable[[str], T]) -> T | None:
    """What `parse` makes of the text of a file, if there is one; None, which is noted, where it cannot."""

    def read() -> T:
        try:
            return parse(path.read_text(encoding="utf-8", errors="replace"))
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
            raise UserError(f"it is not what this program writes there ({first_line(error)})") from error

    return attempt(str(path), unread, read) if path.is_file() else None


def _records(path: Path, unread: list[Unread]) -> list[Record] | None:
    return _read(path, unread, lambda text: parse(text, str(path)))


def counted(text: str) -> tuple[Lines, Lines]:
    """A summary of preprocessing as tables: what is in a data set's shards, and why videos were left out."""
    found: dict[str, Any] = json.loads(text)
    splits = ", ".join(f"{n} {split}" for split, n in found["splits"].items())
    lines = [
        ["", "number"], ["videos found", f"{found['videos']:d}"], ["kept", f"{found['kept']:d} ({splits})"],
        ["left out", f"{sum(found['left_out'].values())}"], ["classes", f"{found['classes']:d}"],
        ["hours", f"{found['hours']:.2f}"], ["GB", f"{found['gigabytes']:.2f}"],
        ["kept without sound", f"{found['without_sound']:d}"],
        ["seconds of silence", f"{found['silent_seconds']:.0f}"], ["words", f"{found['words']:d}"],
    ]  # fmt: skip
    reasons = [[reason, "left out", f"{n:d}"] for reason, n in found["left_out"].items()]
    reasons += [[note, "kept, with this note", f"{n:d}"] for note, n in found["notes"].items()]
    return lines, [["reason", "what became of them", "videos"], *reasons] if reasons else []


def _files(folder: Path, name: str) -> list[Path]:
    return sorted(path for path in folder.rglob(name) if path.is_file())


def _run(folder: Path, root: Path, unread: list[Unread]) -> Run:
    path = folder / SETTINGS
    settings = _read(path, unread, lambda text: settings_from_json(text, str(path)))
    starts = _read(folder / provenance.NAME, unread,
                   lambda text: tuple(serialization.from_dict(Start, row) for row in json.loads(text)))  # fmt: skip
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    metrics, probes = _rows(folder / METRICS, unread, _COLUMNS), _rows(folder / PROBES, unread, ("step",))
    return Run(folder, name, settings, starts or (), _columns(metrics, _COLUMNS), _columns(probes))


def _columns(rows: Sequence[dict[str, float]], names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    names = names or list(dict.fromkeys(name for row in rows for name in row))
    return {name: np.array([row.get(name, np.nan) for row in rows], float) for name in names}


def _rows(path: Path, unread: list[Unread], needed: Sequence[str]) -> list[dict[str, float]]:
    """The lines of a log that are whole; how many are not is noted."""
    lines = _read(path, unread, str.splitlines) or []
    rows, broken = [], []
    for number, line in enumerate(lines, 1):
        try:
            row = {str(name): float(value) for name, value in json.loads(line).items()}
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
            row = {}
        if all(name in row for name in needed):
            rows.append(row)
        else:
            broken.append(number)
    if broken:
        why = f"{len(broken)} of its {len(lines)} lines are not whole, line {broken[0]} first"
        unread.append(Unread(str(path), why))
    return rows


def _evaluations(root: Path, unread: list[Unread]) -> dict[Path, list[Found]]:
    """Records by folder, the outermost first; a record that lies in several files is of the first of them."""
    features: dict[str, Path] = {}
    first: dict[str, tuple[Path, Record]] = {}
    tables = sorted(_files(root, "results.json"), key=lambda path: (len(path.parts), path))
    single = [path for name in PROTOCOLS for path in _files(root, f"{name}-*.json")]
    for path in [*tables, *single]:
        for row in _records(path, unread) or ():
            if not row.metrics:
                unread.append(Unread(str(path), f"a result of {row.model} in it has no metrics"))
                continue
            key = serialization.to_json(row)
            first.setdefault(key, (path.parent if path in tables else path.parent.parent, row))
            if path not in tables:
                features[key] = path.parent
    found: dict[Path, list[Found]] = {}
    for key, (home, row) in sorted(first.items(), key=lambda item: item[1][0]):
        kept = features.get(key, home / folder_name(row.model, row.weights))
        found.setdefault(home, []).append(Found(row, kept))
    return found


@dataclass(frozen=True)
class Subject:
    """A model, with all that is known of it."""

    name: str
    """Of its run below the folder of runs, or of its file."""
    checkpoint: Path | None
    run: Run | None
    found: tuple[Found, ...]
    """Its records, the latest first."""

    @property
    def dataset(self) -> str:
        return self.found[0].record.dataset if self.found else self.run.dataset if self.run else ""

    @property
    def shards(self) -> Path | None:
        """Of the data set that it was evaluated on, or learned from."""
        if self.found:
            return self.found[0].record.shards
        return self.run.settings.shard_folder if self.run and self.run.settings else None

    @property
    def score(self) -> float:
        """What it is ranked by within a data set: R@1 of retrieval, or else its first figure; -1 without any."""
        ranked = sorted(self.found, key=lambda found: found.record.protocol != "retrieval")
        return next(iter(ranked[0].record.metrics.values())).value if ranked else -1.0


def subjects(collected: Collected) -> list[Subject]:
    """All models there are, by name."""
    runs = {run.folder.resolve(): run for run in collected.runs}
    owned: dict[Path, list[Found]] = {folder: [] for folder in runs}
    others: dict[tuple[str, Path], list[Found]] = {}
    for found in (found for evaluation in collected.evaluations.values() for found in evaluation):
        row = found.record
        if row.model == RANDOM:
            continue
        # it may have been moved since, and its settings with it
        moved = (p for p, run in runs.items() if run.settings == row.pretraining and p.name == row.model)
        path = row.checkpoint.resolve()
        folder = next((each for each in (path, path.parent) if each in runs), None) or next(moved, None)
        place = owned[folder] if folder else others.setdefault((row.model, row.checkpoint), [])
        place.append(found)
    made = [Subject(run.name, run.checkpoint, run, _latest(owned[folder])) for folder, run in runs.items()]
    for (name, path), results in others.items():
        made.append(Subject(name, path if path.exists() else None, None, _latest(results)))
    return sorted(made, key=lambda subject: subject.name)


def _latest(found: list[Found]) -> tuple[Found, ...]:
    return tuple(sorted(found, key=lambda each: each.record.provenance.started, reverse=True))


def chosen(everyone: Sequence[Subject], named: Sequence[str], most: int) -> list[Subject]:
    """Those that are named, or the best of every data set in turn. Raises UserError where one is not there."""
    if named:
        by_name = {Path(subject.name).name: subject for subject in everyone}
        by_name |= {subject.name: subject for subject in everyone}
        if unknown := [name for name in named if name not in by_name]:
            there = ", ".join(subject.name for subject in everyone)
            raise UserError(f"there is no model '{unknown[0]}'; set --figures-of to some of {there}")
        return list({by_name[name].name: by_name[name] for name in named}.values())
    ranked: list[tuple[int, str, Subject]] = []
    for dataset in {subject.dataset for subject in everyone}:
        own = [subject for subject in everyone if subject.dataset == dataset]
        own.sort(key=lambda subject: (-subject.score, subject.name))
        ranked += [(place, dataset, subject) for place, subject in enumerate(own)]
    return [subject for _, _, subject in sorted(ranked, key=lambda row: row[:2])[:most]]
