"""Plots of records: rows of an ablation, and factors in the features of models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdt.eval.ablation.compare import LINEAR, by_preset, label, title_of
from gdt.eval.factors.promises import ACCURACY, ACCURACY_RANDOM, DISTANCE, DISTANCE_RANDOM
from gdt.eval.factors.tables import EMBEDDING, TRUNK, by_model, factor_of, metrics_at, row_name, verdict_sign
from gdt.eval.record import RANDOM, Record
from gdt.eval.tables import metrics_of

_COLUMNS = 4
"""Maximum number of panels side by side."""
_SIGNS = {"distinctive": "d", "invariant": "i", "not varied": "·", "not known": ""}


def bars(records: Sequence[Record]) -> Figure:
    """A panel for the first metric of each label column, and one for its linear probe if there is one.

    Bars: means over runs; dots: single runs; vertical lines: 95 % intervals of rows with one run; dashed line: chance.
    """
    columns: dict[str, list[str]] = {}
    for record in records:
        columns.setdefault(record.label, []).extend(record.metrics)
    panels = [
        (name, metric) for name, metrics in columns.items()
        for metric in dict.fromkeys((metrics[0], *({LINEAR} & set(metrics))))
    ]  # fmt: skip
    groups = by_preset(records)
    across = len(panels) if len(panels) <= _COLUMNS else 2 if len(panels) == 2 * len(columns) else _COLUMNS
    down, single = -(-len(panels) // across), len(panels) == 1
    width = 1.5 + (1.2 if single else 0.32) * len(groups)
    figure = Figure(figsize=(across * max(width, 2.4), 3.2 if single else 2.4 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True)
    for axes, (name, metric) in zip(grid.flat, panels, strict=False):
        for x, group in enumerate(groups.values()):
            if values := metrics_of([record for record in group if record.label == name], metric):
                mean = float(np.mean([m.value for m in values]))
                axes.bar(x, mean, 0.6, color="#8fb8de")
                axes.plot([x] * len(values), [m.value for m in values], "o", color="#1f4e79", markersize=4)
                if len(values) == 1:
                    axes.vlines(x, *values[0].interval, color="#1f4e79", linewidth=1)
                axes.axhline(values[0].chance, color="grey", linestyle="--", linewidth=1)
        axes.set_ylim(0, 100)
        axes.spines[["top", "right"]].set_visible(False)
        column = "" if len(columns) == 1 else f"{name or 'class'}, "
        axes.set_title(f"{column}{metric}, %", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.set_xticks(range(len(groups)), [_tick(preset, not single) for preset in groups], fontsize=7)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(title_of(records), fontsize=8)
    return figure


def _tick(preset: str, short: bool) -> str:
    if short:
        return "random" if preset == RANDOM else preset if len(preset) < 12 else "own"
    return label(preset).replace(": ", "\n").replace(", ", " ")


def matrix(records: Sequence[Record]) -> Figure:
    """Distance and probe accuracy of each factor (rows) in embeddings and trunks of models (columns).

    The models may be of several calls, such as the rows of an ablation. The first column of each panel is the mean over
    the random weights that were measured with each model.
    """
    names = list(dict.fromkeys(map(row_name, records)))
    models = {model: {row_name(record): record for record in rows} for model, rows in by_model(records).items()}
    columns = 1 + len(models)
    figure = Figure(figsize=(3.2 + 2 * (0.5 + 0.62 * columns), 2.4 + 2 * 0.27 * len(names)), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, accuracy in zip(panels, (False, True), strict=True):
        for axes, layer in zip(row, (EMBEDDING, TRUNK), strict=True):
            axes.set_title(f"probe accuracy, {layer}, %" if accuracy else f"distance, {layer}", fontsize=9)
            _draw(axes, list(models.values()), names, layer, accuracy)
    for axes in panels[1]:
        axes.set_xticks(range(columns), ["random", *models], fontsize=7, rotation=90)
    for axes in panels[:, 0]:
        axes.set_yticks(range(len(names)), names, fontsize=7)
    figure.suptitle(
        "d distinctive, i invariant, · not varied, ! broken promise, ? too few videos to tell\n"
        "distance: 0 ignores the factor, 1 as far as another video; accuracy: from chance (white) to 100 %", fontsize=8,
    )  # fmt: skip
    return figure


def _draw(axes: Axes, models: Sequence[dict[str, Record]], names: Sequence[str], layer: str, accuracy: bool) -> None:
    own, of_random = (ACCURACY, ACCURACY_RANDOM) if accuracy else (DISTANCE, DISTANCE_RANDOM)
    shade = np.full((len(names), 1 + len(models)), np.nan)
    for y, name in enumerate(names):
        rows = [of.get(name) for of in models]
        random = [found for row in rows if (found := _number(row, layer, of_random)) is not None]
        cells = [(tuple(np.mean(random, axis=0)) if random else None, "")]
        for row in rows:
            factor = factor_of(row) if row and layer == EMBEDDING else None
            sign = _SIGNS[factor.promise] + verdict_sign(factor) if factor else ""
            cells.append((_number(row, layer, own), sign))
        for x, (found, sign) in enumerate(cells):
            if found is None:
                axes.text(x, y, "—", ha="center", va="center", fontsize=6, color="#999999")
                continue
            value, shade[y, x] = found
            number = f"{value:.0f}" if accuracy else f"{value:.2f}"
            colour = "white" if shade[y, x] > 0.6 else "black"
            weight = "bold" if "!" in sign else "normal"
            axes.text(
                x, y, f"{number} {sign}".strip(), ha="center", va="center", fontsize=6, color=colour, weight=weight
            )
    axes.imshow(shade, cmap="Greens" if accuracy else "Blues", vmin=0, vmax=1.1, aspect="auto")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _number(record: Record | None, layer: str, name: str) -> tuple[float, float] | None:
    """The number in a cell and its shade, 0 to 1."""
    metric = metrics_at(layer, record).get(name) if record else None
    if metric is None:
        return None
    if name in (ACCURACY, ACCURACY_RANDOM):
        return metric.value, float(np.clip((metric.value - metric.chance) / (100 - metric.chance), 0, 1))
    return metric.value, min(1.0, metric.value)
