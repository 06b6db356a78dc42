"""What lies below a folder of runs, read into frozen dataclasses; what cannot be read is named with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gdt.common import serialization
from gdt.common.errors import UserError, first_line
from gdt.eval.record import RANDOM, Record, parsed
from gdt.eval.settings.downstream import PROTOCOLS
from gdt.eval.subjects import folder_name
from gdt.preprocess.summary import SUMMARY
from gdt.train import checkpoint, provenance
from gdt.train.provenance import Start
from gdt.train.settings import METRICS, PROBES, SETTINGS, Pretrain
from gdt.train.settings import from_json as settings_from_json

T = TypeVar("T")
_COLUMNS = ("step", "loss", "clips_per_second", "waiting")


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
    """Of every step that could be read, float64 [steps] by name: step, loss, clips_per_second, waiting."""
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


@dataclass(frozen=True)
class Found:
    """A result and where its features are kept."""

    result: Record
    features: Path
    """Folder of the model in that of the evaluation."""


@dataclass(frozen=True)
class Evaluation:
    """A folder of results."""

    folder: Path
    found: tuple[Found, ...]

    @property
    def is_ablation(self) -> bool:
        """Whether its models are runs in this very folder, whose rows are told by their presets and seeds."""
        rows = [found.result for found in self.found if found.result.model != RANDOM]
        own = all((self.folder / row.model / "eval").is_dir() for row in rows)
        return bool(rows) and own and all(row.pretraining.factors_from is None for row in rows)


@dataclass(frozen=True)
class Counted:
    """What preprocessing counted; see `preprocess.summary`."""

    videos: int
    kept: int
    left_out: dict[str, int]
    notes: dict[str, int]
    splits: dict[str, int]
    classes: int
    hours: float
    gigabytes: float
    without_sound: int
    silent_seconds: float
    words: int


@dataclass(frozen=True)
class Data:
    """Shards that runs or evaluations name."""

    dataset: str
    folder: Path
    counted: Counted | None


@dataclass
class Collected:
    """Everything below a folder."""

    runs: list[Run]
    evaluations: list[Evaluation]
    data: list[Data]
    figures: list[tuple[Path, list[Record]]] = field(default_factory=list)
    """What `gdt study figures` found, and where."""
    unread: list[Unread] = field(default_factory=list)


def collect(folder: Path) -> Collected:
    """Read all runs and evaluations below a folder. Raises UserError where there is none."""
    found = Collected([], [], [])
    logs = {path.parent for name in (METRICS, checkpoint.NAME) for path in _files(folder, name)}
    found.runs += [_run(path, folder, found.unread) for path in sorted(logs)]
    found.evaluations += _evaluations(folder, found.unread)
    if not found.runs and not found.evaluations:
        broken = f" that can be read ({found.unread[0].what}: {found.unread[0].why})" if found.unread else ""
        raise UserError(
            f"{folder} holds no runs and no evaluations{broken}; make one with 'make pretrain', or set --runs to the "
            "folder of yours"
        )
    for path in _files(folder, "figures.json"):
        if (drawn := _attempt(path, found.unread, lambda text, path=path: parsed(text, str(path)))) is not None:  # type: ignore[misc]
            found.figures.append((path.parent, drawn))
    named = {(run.dataset, run.settings.shard_folder) for run in found.runs if run.settings}
    named |= {(row.result.dataset, row.result.shards) for e in found.evaluations for row in e.found}
    for dataset, shards in sorted(named, key=str):
        counted = _attempt(shards / SUMMARY, found.unread, _counted) if (shards / SUMMARY).is_file() else None
        found.data.append(Data(dataset, shards, counted))
    return found


def _files(folder: Path, name: str) -> Iterable[Path]:
    return sorted(path for path in folder.rglob(name) if path.is_file())


def _attempt(path: Path, unread: list[Unread], read: Callable[[str], T]) -> T | None:
    """What `read` makes of the text of a file; None, which is noted, where it cannot."""
    try:
        return read(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        unread.append(Unread(str(path), error.strerror or first_line(error)))
    except UserError as error:
        unread.append(Unread(str(path), str(error)))
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        unread.append(Unread(str(path), f"it is not what this program writes there ({first_line(error)})"))
    return None


def _counted(text: str) -> Counted:
    values = json.loads(text)
    return serialization.rebuilt(Counted, {each.name: values[each.name] for each in fields(Counted)})


def _run(folder: Path, root: Path, unread: list[Unread]) -> Run:
    def read(name: str, parse: Callable[[str], T]) -> T | None:
        path = folder / name
        return _attempt(path, unread, parse) if path.is_file() else None

    settings = read(SETTINGS, lambda text: settings_from_json(text, str(folder / SETTINGS)))
    starts = read(provenance.NAME, lambda text: tuple(serialization.rebuilt(Start, row) for row in json.loads(text)))
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    metrics = _rows(folder / METRICS, unread)
    columns = {key: np.array([row[key] for row in metrics], float) for key in _COLUMNS}
    return Run(folder, name, settings, starts or (), columns, _probes(folder / PROBES, unread))


def _probes(path: Path, unread: list[Unread]) -> dict[str, np.ndarray]:
    if not path.is_file():
        return {}
    rows = _rows(path, unread, ("step",))
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows], float) for name in names}


def _rows(path: Path, unread: list[Unread], needed: tuple[str, ...] = _COLUMNS) -> list[dict[str, float]]:
    """The lines of a log that are whole; how many are not is noted."""
    if not path.is_file():
        return []
    lines = (_attempt(path, unread, str.splitlines)) or []
    rows, broken = [], []
    for number, line in enumerate(lines, 1):
        row = _numbers(line)
        if row is not None and all(name in row for name in needed):
            rows.append(row)
        else:
            broken.append(number)
    if broken:
        unread.append(
            Unread(str(path), f"{len(broken)} of its {len(lines)} lines are not whole, line {broken[0]} first")
        )
    return rows


def _numbers(line: str) -> dict[str, float] | None:
    try:
        row: Any = json.loads(line)
        return {str(name): float(value) for name, value in row.items()}
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def _evaluations(root: Path, unread: list[Unread]) -> list[Evaluation]:
    """Folders of results, the outermost first; a result that lies in several files is of the first of them."""
    features: dict[str, Path] = {}
    places: dict[Path, dict[str, Record]] = {}
    tables = sorted(_files(root, "results.json"), key=lambda path: (len(path.parts), path))
    single = [path for name in PROTOCOLS for path in _files(root, f"{name}-*.json")]
    for path in [*tables, *single]:
        rows = _attempt(path, unread, lambda text, path=path: parsed(text, str(path)))  # type: ignore[misc]
        for row in rows or ():
            if not row.measures:
                unread.append(Unread(str(path), f"a result of {row.model} in it has no measures"))
                continue
            key = serialization.to_json(row)
            home = path.parent if path in tables else path.parent.parent
            if path not in tables:
                features[key] = path.parent
            if all(key not in others for others in places.values()):
                places.setdefault(home, {})[key] = row
    made = []
    for home, rows_of in sorted(places.items()):
        found = [
            Found(row, features.get(key, home / folder_name(row.model, row.weights))) for key, row in rows_of.items()
        ]
        made.append(Evaluation(home, tuple(found)))
    return made
