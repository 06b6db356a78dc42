"""The plot of an ablation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eval.ablation.tables import by_preset, label
from eval.results import Result, measured


def plot(results: list[Result], path: Path) -> None:
    """R@1 of every run as a dot, their mean as a bar, chance as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = by_preset(results)
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.2 * len(groups), 3.2), layout="constrained")
    for x, group in enumerate(groups.values()):
        values = [measure.value for measure in measured(group, "R@1")]
        axes.bar(x, np.mean(values), 0.6, color="#8fb8de")
        axes.plot([x] * len(values), values, "o", color="#1f4e79", markersize=4)
    axes.axhline(measured(results, "R@1")[0].chance, color="grey", linestyle="--", linewidth=1)
    axes.set_xticks(
        range(len(groups)), [label(preset).replace(": ", "\n").replace(", ", " ") for preset in groups], fontsize=7
    )
    axes.set_ylabel("retrieval R@1, %")
    axes.set_ylim(0, 100)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
