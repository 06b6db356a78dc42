"""The plot of an ablation."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from gdt.eval.ablation.compare import by_row, label, title_of
from gdt.eval.record import RANDOM, Record
from gdt.eval.tables import mean_of, metrics_of

_COLUMNS = 4
"""Maximum number of panels side by side."""


def bars(records: Sequence[Record]) -> Figure:
    """A panel for the first metric of each protocol and label column.

    Bars: means over runs; dots: single runs; vertical lines: 95 % intervals; dashed line: chance.
    """
    panels = list(dict.fromkeys((record.label, next(iter(record.metrics))) for record in records))
    groups = by_row(records)
    across = min(len(panels), _COLUMNS)
    down, single = -(-len(panels) // across), len(panels) == 1
    width = 1.5 + (1.2 if single else 0.32) * len(groups)
    figure = Figure(figsize=(across * max(width, 2.4), 3.2 if single else 2.4 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True)
    for axes, (column, metric) in zip(grid.flat, panels, strict=False):
        for x, group in enumerate(groups.values()):
            if values := metrics_of([record for record in group if record.label == column], metric):
                mean = mean_of(values)
                axes.bar(x, mean.value, 0.6, color="#8fb8de")
                axes.plot([x] * len(values), [m.value for m in values], "o", color="#1f4e79", markersize=4)
                axes.vlines(x, *mean.interval, color="#1f4e79", linewidth=1)
                axes.axhline(values[0].chance, color="grey", linestyle="--", linewidth=1)
        axes.set_ylim(0, 100)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"{f'{column}, ' if column else ''}{metric}, %", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.set_xticks(range(len(groups)), [_tick(*row, not single) for row in groups], fontsize=7)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(title_of(records), fontsize=8)
    return figure


def _tick(preset: str, steps: int, short: bool) -> str:
    if short:
        name = "random" if preset == RANDOM else preset if len(preset) < 12 else "own"
        return f"{name}\n{steps}" if steps else name
    return label(preset, steps).replace(": ", "\n").replace(", ", "\n")
