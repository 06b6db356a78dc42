"""One picture of many models: factors by invariance and decodability."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdt.eval.factors.promises import Seen
from gdt.eval.factors.results import Result

RANDOM = "random"
_SIGNS = {"distinctive": "d", "invariant": "i", "not varied": "·", "not known": ""}


def matrix(results: Sequence[Result]) -> Figure:
    """Factors down, models across: how far embeddings and trunks move with each, and how well they tell it.

    The models may be of several calls, as the rows of an ablation. The first column of each panel is that of random
    weights, the mean over those that the models with this row began with. Letters are promises, a ! one that is not
    kept.
    """
    names = list(dict.fromkeys(row.name for result in results for row in result.rows))
    columns = 1 + len(results)
    figure = Figure(figsize=(3.2 + 2 * (0.5 + 0.62 * columns), 2.4 + 2 * 0.27 * len(names)), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, place in zip(panels[0], ("embedding", "trunk"), strict=True):
        axes.set_title(f"invariance: {place} moves", fontsize=9)
        _draw(axes, results, names, place, told=False)
    for axes, place in zip(panels[1], ("embedding", "trunk"), strict=True):
        axes.set_title(f"decodability: told from the {place}, %", fontsize=9)
        _draw(axes, results, names, place, told=True)
        axes.set_xticks(range(columns), [RANDOM, *(result.model for result in results)], fontsize=7, rotation=90)
    for axes in panels[:, 0]:
        axes.set_yticks(range(len(names)), names, fontsize=7)
    figure.suptitle(
        "d distinctive, i invariant, · not varied, ! not kept\n"
        "moves: 0 ignores the factor, 1 as far as another video; told: from chance (white) to 100 %", fontsize=8,
    )  # fmt: skip
    return figure


def _draw(axes: Axes, results: Sequence[Result], names: Sequence[str], place: str, told: bool) -> None:
    rows = [{row.name: row for row in result.rows} for result in results]
    shade = np.full((len(names), 1 + len(results)), np.nan)
    for y, name in enumerate(names):
        having = [of[name] for of in rows if name in of]
        random = [found for row in having if (found := _number(getattr(row, place), told, random=True)) is not None]
        cells = [(tuple(np.mean(random, axis=0)) if random else None, "")]
        for row in (of.get(name) for of in rows):
            sign = _SIGNS[row.promise] + "!" * (row.kept is False) if row and place == "embedding" else ""
            cells.append((_number(getattr(row, place), told) if row else None, sign))
        for x, (found, sign) in enumerate(cells):
            if found is None:
                axes.text(x, y, "—", ha="center", va="center", fontsize=6, color="#999999")
                continue
            value, shade[y, x] = found
            number = f"{value:.0f}" if told else f"{value:.2f}"
            colour = "white" if shade[y, x] > 0.6 else "black"
            weight = "bold" if "!" in sign else "normal"
            axes.text(
                x, y, f"{number} {sign}".strip(), ha="center", va="center", fontsize=6, color=colour, weight=weight
            )
    axes.imshow(shade, cmap="Greens" if told else "Blues", vmin=0, vmax=1.1, aspect="auto")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _number(seen: Seen | None, told: bool, random: bool = False) -> tuple[float, float] | None:
    """What stands in a cell, and how dark it is, 0 to 1."""
    if seen is None:
        return None
    if told:
        measure = seen.told_random if random else seen.told
        return measure.value, float(np.clip((measure.value - measure.chance) / (100 - measure.chance), 0, 1))
    interval = seen.moved_random if random else seen.moved
    return None if interval is None else (interval.value, min(1.0, interval.value))
