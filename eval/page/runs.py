"""Pretraining runs: their logs and their learning curves."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.signal import convolve

from gdt.common.errors import UserError
from gdt.eval.drawing import STYLE, marker, picture
from gdt.train import provenance
from gdt.train.record import from_file
from gdt.train.run import METRICS, PROBES, SETTINGS_FILE, VERDICT, logged
from gdt.train.settings import Pretrain

CURVES = 20
"""Most runs in a plot."""
_SMOOTHING = 21
_POINTS = 1000
"""Steps over which curves are averaged, and most points of a curve."""
_TITLES = {
    "loss": "training loss (dashed: at chance)",
    "clips_per_second": "clips per second",
    "data_wait": "waiting for data, share",
}


@dataclass(frozen=True)
class LoggedRun:
    folder: Path
    name: str
    """Its folder, relative to the folder of all runs."""
    settings: Pretrain
    started: str
    metrics: dict[str, np.ndarray]
    """Per step, float64 [steps] by name: step, loss, clips_per_second, data_wait."""
    probes: dict[str, np.ndarray]
    """Per probe, float64 [probes] by name: step, R@k in percent, and measures of collapse."""
    verdict: str
    """Whether it has learned; empty if it has not finished."""


def read(folder: Path, root: Path) -> LoggedRun:
    """Read a run below `root`. Raises UserError, OSError, ValueError or KeyError for files of another kind."""
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    started = json.loads((folder / provenance.NAME).read_text())["started"]
    metrics = _columns(folder / METRICS)
    if not metrics:
        raise UserError("it has not done a step")
    verdict = folder / VERDICT
    said = verdict.read_text().strip() if verdict.is_file() else ""
    return LoggedRun(folder, name, from_file(folder / SETTINGS_FILE), started, metrics, _columns(folder / PROBES), said)


def _columns(path: Path) -> dict[str, np.ndarray]:
    rows = logged(path)
    return {name: np.array([row.get(name, np.nan) for row in rows], float) for name in (rows or [{}])[0]}


def smooth(values: np.ndarray, width: int = _SMOOTHING) -> np.ndarray:
    """Centred moving mean over `width` steps, fewer at both ends: float64 [n]."""
    window = np.ones(2 * (width // 2) + 1)
    return convolve(values, window, "same", "direct") / convolve(np.ones(len(values)), window, "same", "direct")


@rc_context(STYLE)
def curves(runs: Sequence[LoggedRun]) -> str:
    """Learning curves of runs on a data set: moving means of what is logged, and probes."""
    probes = dict.fromkeys(name for run in runs for name in run.probes if name.endswith(" R@1"))
    titles = _TITLES | {name: f"probe: {name}, %" for name in probes}
    down = -(-len(titles) // 3)
    figure = Figure(figsize=(12, 3 * down + 0.25 * -(-len(runs) // 5)), layout="constrained")
    grid = figure.subplots(down, 3, squeeze=False).flat
    for axes in grid[len(titles) :]:
        axes.remove()
    for axes, (name, title) in zip(grid, titles.items(), strict=False):
        axes.set(xlabel="step", title=title)
        for k, run in enumerate(runs):
            logged = run.metrics if name in _TITLES else run.probes
            if name in logged:
                values = smooth(logged[name]) if name in _TITLES else logged[name]
                every = -(-len(values) // _POINTS)
                steps = logged["step"][::every]
                marked = max(1, len(steps) // 6)
                axes.plot(steps, values[::every], **marker(k), markersize=4, markevery=marked, linewidth=1.4)
                if name == "loss" and "chance" in logged:
                    at_chance = smooth(logged["chance"])[::every]
                    axes.plot(steps, at_chance, color=marker(k)["color"], linestyle="--", linewidth=0.8)
    return picture(figure, [run.name for run in runs])
