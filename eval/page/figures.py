"""Pictures of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gdt.common.streams import Stream, generator
from gdt.eval.deviation import CLIPS, Deviation
from gdt.eval.drawing import COLOURS, STYLE, data_uri, mark, picture
from gdt.eval.examples import Found
from gdt.eval.planes import planes
from gdt.eval.runs import Run, smooth
from gdt.pipeline.shards.reader import ShardReader

CURVES = 20
"""Most runs in a plot."""
_POINTS = 500
"""Most points on a plane."""
_PERPLEXITY = 30.0
"""Of t-SNE; lower with few videos."""
_TITLES = {"loss": "training loss", "clips_per_second": "video clips per second", "data_wait": "waiting for data, %"}


def thumbnails(found: Found) -> list[list[dict[str, str]]]:
    """Middle frames of queries, each followed by its neighbours. Raises UserError if a shard is damaged."""
    index, reader = found.index, ShardReader(found.index)

    def thumbnail(video: int, kind: str) -> dict[str, str]:
        (jpeg,) = reader.frames(video, np.array([int(index.frame_count[video]) // 2]))
        image = data_uri(jpeg.tobytes(), "jpeg")
        return {"image": image, "id": index.id[video], "label": index.label[video], "kind": kind}

    kinds = np.where(found.right, "right", "wrong")
    return [
        [thumbnail(query, "asked"), *map(thumbnail, near, kind)]
        for query, near, kind in zip(found.queries, found.neighbours, kinds, strict=True)
    ]


@rc_context(STYLE)
def curves(runs: Sequence[Run]) -> str:
    """Learning curves of runs on a data set: moving means of what is logged, and probes."""
    probes = dict.fromkeys(name for run in runs for name in run.probes if name.endswith(" R@1"))
    titles = _TITLES | {name: f"probe: {name}, %" for name in probes}
    down = -(-len(titles) // 3)
    figure = Figure(figsize=(12, 3 * down + 0.25 * -(-len(runs) // 5)), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(down, 3, squeeze=False).flat, titles.items(), strict=False):
        for k, run in enumerate(runs):
            steps, values = _curve(run, name)
            axes.plot(steps, values, **mark(k), markersize=4, markevery=max(1, len(steps) // 6), linewidth=1.4)
        axes.set(xlabel="step", title=title)
    for axes in figure.axes[len(titles) :]:
        axes.set_visible(False)
    return _with_legend(figure, [run.name for run in runs])


def _curve(run: Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values, at most a thousand."""
    if name not in run.metrics:
        return run.probes.get("step", np.zeros(0)), run.probes.get(name, np.zeros(0))
    values = smooth(run.metrics[name]) * (100 if name == "data_wait" else 1)
    every = -(-len(values) // 1000) or 1
    return run.metrics["step"][::every], values[::every]


@rc_context(STYLE)
def maps(found: Found) -> str:
    """PCA and t-SNE of features, with a mark for each of the most frequent labels."""
    chosen = np.sort(generator(Stream.FIGURES).permutation(len(found.features))[:_POINTS])
    label = found.labels[chosen]
    flat = planes(found.features[chosen], _PERPLEXITY, seed=0)
    common = sorted(name for name, _ in Counter(sorted(map(str, label))).most_common(len(COLOURS)))
    share = " and ".join(f"{100 * each:.0f} %" for each in flat.variance)
    titles = (f"PCA: {share} of the variance", f"t-SNE, perplexity {flat.perplexity:.3g}")
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    for axes, title, positions in zip(figure.subplots(1, 2), titles, (flat.pca, flat.tsne), strict=True):
        for k, name in enumerate(common):
            axes.plot(*positions[label == name].T, linestyle="", markersize=5, alpha=0.8, **mark(k))
        axes.plot(*positions[~np.isin(label, common)].T, ".", markersize=3, color="#7f7f7f")
        axes.set_title(title)
        axes.set_axis_off()
    return _with_legend(figure, common)


@rc_context(STYLE)
def histograms(found: Deviation) -> str:
    """Histograms of deviations, with their medians and those of random weights."""
    names = [
        f"clips of {name}: median {np.median(values):.4f} (random weights {np.median(found.random[name]):.4f})"
        for name, values in found.own.items()
    ]
    edges = np.linspace(0, 1.02 * max(float(each.max()) for each in found.own.values()) or 1.0, 31)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for k, values in enumerate(found.own.values()):
        share = np.histogram(values, edges)[0] * (100 / len(values))
        axes.stairs(share, edges, color=COLOURS[k], linewidth=1.3)
        axes.plot((edges[share.argmax()] + edges[share.argmax() + 1]) / 2, share.max(), **mark(k))
    axes.set(xlabel="standard deviation of features, mean over dimensions", ylabel="share, %", ylim=(0, None))
    axes.set_title(f"{found.videos} videos, {CLIPS} clips each")
    return _with_legend(figure, names, 1)


def _with_legend(figure: Figure, names: Sequence[str], columns: int = 5) -> str:
    """The picture of a figure, with a legend of the marks of some names."""
    handles = [Line2D([], [], linestyle="", **mark(k)) for k in range(len(names))]
    figure.legend(handles, list(names), loc="outside lower left", ncols=columns)
    return picture(figure)
