"""Pretraining runs: their logs, smoothed, and a table of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gdt.train import provenance
from gdt.train.run import METRICS, PROBES, SETTINGS, from_file
from gdt.train.settings import Pretrain

SMOOTHING = 21
"""Steps over which curves are averaged."""


@dataclass(frozen=True)
class Run:
    """A pretraining run."""

    folder: Path
    name: str
    """Its folder, relative to the folder of all runs."""
    settings: Pretrain
    started: str
    """Date and time."""
    metrics: dict[str, np.ndarray]
    """Per step, float64 [steps] by name: step, loss, clips_per_second, data_wait."""
    probes: dict[str, np.ndarray]
    """Per probe, float64 [probes] by name: step, and metrics in percent."""


def read(folder: Path, root: Path) -> Run:
    """Read a run below `root`. Raises UserError, OSError, ValueError or KeyError for files of another kind."""
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    started = json.loads((folder / provenance.NAME).read_text())["started"]
    metrics = _columns(folder / METRICS, ("step", "loss", "clips_per_second", "data_wait"))
    return Run(folder, name, from_file(folder / SETTINGS), started, metrics, _columns(folder / PROBES))


def _columns(path: Path, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns of a log by name, by default all; the last line may still be being written."""
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    rows = [json.loads(line) for line in lines]
    names = names or list(dict.fromkeys(name for row in rows for name in row))
    return {name: np.array([row[name] for row in rows], float) for name in names}


def smooth(values: np.ndarray, width: int = SMOOTHING) -> np.ndarray:
    """Centred moving mean over `width` steps, fewer at both ends: float64 [n]."""
    half, n = width // 2, len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    low, high = np.maximum(np.arange(n) - half, 0), np.minimum(np.arange(n) + half + 1, n)
    mean: np.ndarray = (sums[high] - sums[low]) / (high - low)
    return mean


def table(runs: Sequence[Run]) -> list[list[str]]:
    """A line of cells per run, headings first; clips/s and data wait are medians, the loss is a moving mean."""
    lines = [["run", "data set", "composition", "steps", "seed", "final loss", "clips/s", "data wait", "started"]]
    for run in runs:
        settings, logged = run.settings, run.metrics
        numbers = ["0", str(settings.seed), "", "", ""]
        if len(logged["step"]):
            numbers = [
                f"{logged['step'][-1] + 1:.0f}", str(settings.seed), f"{smooth(logged['loss'])[-1]:.3f}",
                f"{np.median(logged['clips_per_second']):.0f}", f"{100 * np.median(logged['data_wait']):.0f} %",
            ]  # fmt: skip
        composition = settings.factors or settings.preset
        lines.append([run.name, settings.dataset, composition, *numbers, run.started[:16].replace("T", " ")])
    return lines
