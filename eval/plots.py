"""The plot of an ablation."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from gdt.eval.results import RANDOM, Result
from gdt.eval.tables import Table, mean_of, metrics_of

_COLUMNS = 4
"""Maximum number of panels side by side."""


def bars(tables: Sequence[Table]) -> Figure:
    """A panel for the first metric of each protocol and label column of an ablation.

    Bars: means over runs; dots: single runs; vertical lines: 95 % intervals; dashed line: chance.
    """
    panels: dict[tuple[int, str], tuple[Table, Result]] = {}
    for table in tables:
        for each in (each for group in table.groups.values() for each in group):
            panels.setdefault((id(table), each.protocol), (table, each))
    names = list(dict.fromkeys(name for table in tables for name in table.groups))
    across = min(len(panels), _COLUMNS)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(across * max(1.5 + 0.32 * len(names), 2.4), 2.4 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).flat
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes, (table, example) in zip(grid, panels.values(), strict=False):
        metric = next(iter(example.metrics))
        for x, name in enumerate(names):
            if values := metrics_of(table.groups.get(name, ()), metric):
                mean = mean_of(values)
                axes.bar(x, mean.value, 0.6, color="#8fb8de")
                axes.plot([x] * len(values), [m.value for m in values], "o", color="#1f4e79", markersize=4)
                axes.vlines(x, *mean.interval, color="#1f4e79", linewidth=1)
                axes.axhline(values[0].chance, color="grey", linestyle="--", linewidth=1)
        axes.set_ylim(0, 100)
        axes.set_title(f"{f'{example.label}, ' if example.label else ''}{metric}, %", fontsize=9)
        axes.set_xticks(range(len(names)), map(_tick, names), fontsize=7)
    return figure


def _tick(name: str) -> str:
    """The preset of a row, with the steps of longer runs below."""
    steps = f"\n{name.rpartition(', ')[2]}" if name.endswith(" steps") else ""
    return "random" if name == RANDOM else name.removeprefix("row ").partition(":")[0] + steps
