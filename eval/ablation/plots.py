"""The plot of an ablation."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from gdt.eval.metrics import over_seeds
from gdt.eval.results import RANDOM, Result
from gdt.eval.tables import Table, metrics_of

_COLUMNS = 4
"""Maximum number of panels side by side."""


def bars(tables: Sequence[Table]) -> Figure:
    """A panel for the first metric of each protocol and label column of an ablation.

    Bars: means over runs; dots: single runs; vertical lines: 95 % intervals; dashed line: chance.
    """
    panels: dict[tuple[int, str], tuple[Table, Result]] = {}
    for table in tables:
        for result in (result for group in table.groups.values() for result in group):
            panels.setdefault((id(table), result.protocol), (table, result))
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
            measured = metrics_of(table.groups.get(name, ()), metric)
            if measured:
                mean = over_seeds(measured)
                axes.bar(x, mean.value, 0.6, color="#8fb8de")
                axes.plot([x] * len(measured), [run.value for run in measured], "o", color="#1f4e79", markersize=4)
                axes.vlines(x, *mean.interval, color="#1f4e79", linewidth=1)
                axes.axhline(measured[0].chance, color="grey", linestyle="--", linewidth=1)
        axes.set_ylim(0, 100)
        column = f"{example.label}, " if example.label else ""
        axes.set_title(f"{column}{metric}, %", fontsize=9)
        axes.set_xticks(range(len(names)), map(_tick, names), fontsize=7)
    return figure


def _tick(name: str) -> str:
    """The preset of a row, or its factors one below the other, with the steps of longer runs at the end."""
    if name == RANDOM:
        return "random"
    label, _, steps = name.rpartition(", ") if name.endswith(" steps") else (name, "", "")
    short = label.removeprefix("row ").partition(": ")[0]
    return "\n".join([*short.split(), *([steps] if steps else [])])
