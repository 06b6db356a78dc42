"""How runs learned: loss, probes, speed and waiting, all runs of a data set in one figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from gdt.eval.page.collect import Run
from gdt.eval.plots import Key, keys, svg

_POINTS = 1000
"""At most so many of a curve are drawn; more cannot be seen."""
_SHOWN = {"loss": "loss (equation 1)", "clips_per_second": "video clips per second", "waiting": "waiting for data, %"}


def curves(runs: Sequence[Run], key: str, smoothing: int) -> tuple[list[tuple[str, Markup]], list[Key]]:
    """Titles and plots of the runs of a data set, and the legend of them all."""
    drawn = [run for run in runs if len(run.metrics["step"])]
    if not drawn:
        return [], []
    legend = keys([run.name for run in drawn])
    plots = []
    for name, title in _SHOWN.items():
        scale = 100 if name == "waiting" else 1
        series = [
            (*_thin(run.metrics["step"], smooth(scale * run.metrics[name], smoothing)), mark)
            for run, mark in zip(drawn, legend, strict=True)
        ]
        plots.append((title, _plot(f"{key}-{name}", title, series)))
    for name in dict.fromkeys(name for run in drawn for name in run.probes if name.endswith(" R@1")):
        probed = [
            (run.probes["step"], run.probes[name], mark)
            for run, mark in zip(drawn, legend, strict=True)
            if name in run.probes
        ]
        title = f"probe: {name}, %"
        plots.append((title, _plot(f"{key}-{len(plots)}", title, probed)))
    return plots, legend


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Centred moving mean over `width` steps, over fewer at both ends: float64 [n]; of steps that are no numbers the
    mean of the others.
    """
    half, n = width // 2, len(values)
    known = np.isfinite(values)
    sums, counts = (np.concatenate([[0], np.cumsum(x)]) for x in (np.where(known, values, 0.0), known.astype(float)))
    low, high = np.maximum(np.arange(n) - half, 0), np.minimum(np.arange(n) + half + 1, n)
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = (sums[high] - sums[low]) / (counts[high] - counts[low])
    return mean


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _POINTS)).round().astype(int))
    return steps[chosen], values[chosen]


def _plot(key: str, title: str, series: Sequence[tuple[np.ndarray, np.ndarray, Key]]) -> Markup:
    def draw(axes: Axes) -> None:
        for k, (steps, values, mark) in enumerate(series):
            every = max(1, len(steps) // 6)
            axes.plot(steps, values, color=mark.colour, linewidth=1.4, marker=mark.marker, markersize=4,
                      markevery=(k % every, every))  # fmt: skip
        axes.set_xlabel("step")
        axes.set_ylabel(title)
        if title != _SHOWN["loss"]:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25, linewidth=0.6)

    last = "; ".join(f"{mark.name}: {values[-1]:.3g} at step {steps[-1]:.0f}" for steps, values, mark in series)
    return svg(key, f"{title} by step. At the end {last}.", draw)
