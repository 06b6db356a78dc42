"""The plot of an ablation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gdt.eval.ablation.tables import by_preset, label
from gdt.eval.results import RANDOM, Result, measured

_COLUMNS = 3
"""Panels side by side."""


def plot(results: Sequence[Result], path: Path) -> None:
    """A panel for each column of labels: every run's first measure as a dot, their mean as a bar, chance as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(result.evaluation.label for result in results))
    groups = by_preset(results)
    across = min(len(names), _COLUMNS)
    down = -(-len(names) // across)
    width = 1.5 + (1.2 if len(names) == 1 else 0.32) * len(groups)
    figure, panels = pyplot.subplots(
        down, across, figsize=(across * width, 3.2 * down if len(names) == 1 else 2.4 * down), layout="constrained",
        squeeze=False, sharex=True,
    )  # fmt: skip
    for axes, name in zip(panels.flat, names, strict=False):
        column = next(iter(next(result for result in results if result.evaluation.label == name).measures))
        for x, group in enumerate(groups.values()):
            values = measured([result for result in group if result.evaluation.label == name], column)
            if values:
                axes.bar(x, np.mean([m.value for m in values]), 0.6, color="#8fb8de")
                axes.plot([x] * len(values), [m.value for m in values], "o", color="#1f4e79", markersize=4)
                axes.axhline(values[0].chance, color="grey", linestyle="--", linewidth=1)
        axes.set_ylim(0, 100)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(name if name or len(names) == 1 else "class", fontsize=9)
        axes.set_ylabel(f"{'retrieval ' if column.startswith('R@') else ''}{column}, %", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_xticks(range(len(groups)), [_tick(preset, len(names) > 1) for preset in groups], fontsize=7)
    for axes in list(panels.flat)[len(names) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _tick(preset: str, short: bool) -> str:
    if short:
        return "rnd" if preset == RANDOM else preset if len(preset) < 12 else "own"
    return label(preset).replace(": ", "\n").replace(", ", " ")
