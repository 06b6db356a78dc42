"""What stored features of test videos look like: who is near whom, which classes are mistaken, and two maps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from gdt.common.errors import UserError
from gdt.eval import extract
from gdt.eval.page.collect import Found
from gdt.eval.page.gallery import Pictures, Query, by_class, spread
from gdt.eval.page.svg import MOST, Key, keys, svg
from gdt.eval.planes import planes
from gdt.eval.protocols import features_name, videos_of
from gdt.eval.retrieval import nearest
from gdt.eval.settings.downstream import Downstream
from gdt.eval.settings.report import Report
from gdt.eval.subjects import Fold, folds
from gdt.pipeline.shards.index import Index, fingerprint

_CLASSES = 20
"""At most so many classes of a confusion matrix are shown."""


@dataclass(frozen=True)
class Confusion:
    """Of queries of a class (row), percent whose nearest neighbour is of each class (column)."""

    classes: list[str]
    percent: np.ndarray
    """float64 [classes, classes]."""
    queries: int
    right: float
    """Percent of all queries, also of classes that are not shown."""
    left_out: int
    """Classes that are not shown: those with the most right answers."""


@dataclass(frozen=True)
class Plot:
    """A plot of a model, with the legend of its points."""

    title: str
    svg: Markup
    said: str
    legend: list[Key]


@dataclass(frozen=True)
class Looked:
    """What features show."""

    said: str
    """Whose features of what they are."""
    queries: list[Query]
    confusion: Confusion
    maps: list[Plot]


def look(found: Found, index: Index, settings: Report, key: str) -> Looked:
    """Pictures of the features that an evaluation has stored. Raises UserError where there are none."""
    row = found.result
    if fingerprint(index) != row.data:
        raise UserError(f"{index.folder} holds other shards than those that {row.model} was evaluated on")
    labelled = index.labelled(row.label)
    parts = folds(row.settings_as(Downstream), labelled, row.query_split)
    fold = next((part for part in parts if part.number == row.fold), None)
    if fold is None or fold.digest != row.labels:
        raise UserError(f"labels or splits of {index.folder} have changed since {row.model} was evaluated")
    videos = videos_of(parts)
    device = "cpu" if row.how.get("precision") == "float32" else "cuda"
    path = found.features / features_name(row.data, videos, row.clips, device)
    features = extract.read(path, videos)
    if features is None:
        raise UserError(f"{found.features} holds no features of the videos of this evaluation")
    queries, gallery = (features.maximum[features.places(part)] for part in (fold.queries, fold.gallery))
    neighbours = nearest(queries, gallery, settings.neighbours)
    shown = spread(fold.query_label, settings.queries, settings.seed)
    labels = (fold.query_label, fold.gallery_label)
    average = features.average[features.places(fold.queries)]
    return Looked(
        f"{path}, weights {row.weights[:8]}, evaluated {row.provenance.started}"
        + (f", fold {fold.number}" if fold.number else ""),
        by_class(Pictures(labelled), fold.queries, fold.gallery, labels, neighbours, shown),
        confusion(fold, neighbours[:, 0]),
        maps(average, fold.query_label, settings, key),
    )  # fmt: skip


def confusion(fold: Fold, first: np.ndarray) -> Confusion:
    """Whose class the nearest neighbour of every query has; `first` are its places in the gallery, int64 [queries].

    Rows sum to less than 100 where classes that are not shown, or that no query has, are found.
    """
    answer = fold.gallery_label[first]
    right = answer == fold.query_label
    names = np.unique(fold.query_label)
    shares = {name: right[fold.query_label == name].mean() for name in names}
    shown = sorted(sorted(names, key=lambda name: (shares[name], name))[:_CLASSES])
    counts = np.array([[((fold.query_label == a) & (answer == b)).sum() for b in shown] for a in shown], float)
    totals = np.array([(fold.query_label == name).sum() for name in shown], float)[:, None]
    return Confusion(
        [str(name) for name in shown], 100 * counts / totals, len(answer), float(100 * right.mean()),
        len(names) - len(shown),
    )  # fmt: skip


def maps(values: np.ndarray, label: np.ndarray, settings: Report, key: str) -> list[Plot]:
    """PCA and t-SNE of features [n, d], a colour and shape for each label [n], for the most frequent ones."""
    chosen = np.sort(np.random.Generator(np.random.Philox(settings.seed)).permutation(len(values))[: settings.points])
    values, label = values[chosen], label[chosen]
    n = len(values)
    if n < 5:
        return []
    common = [str(name) for name, _ in Counter(sorted(map(str, label))).most_common(MOST)]
    legend = keys(sorted(common))
    some = f", {len(set(label)) - len(common)} classes with fewer videos as small grey points"
    said = f"{n} points" + (some if len(set(label)) > len(common) else "")
    found = planes(values, settings.perplexity, settings.seed)
    share = found.variance
    told = f"{said}; {100 * share[0]:.0f} % and {100 * share[1]:.0f} % of the variance"
    neighbours = (
        f"{said}; perplexity {found.perplexity:.3g}, seed {settings.seed}; distances between groups mean nothing"
    )
    return [
        Plot("PCA", _scatter(f"{key}-pca", "PCA", found.pca, label, legend), told, legend),
        Plot("t-SNE", _scatter(f"{key}-tsne", "t-SNE", found.tsne, label, legend), neighbours, legend),
    ]


def _scatter(key: str, name: str, places: np.ndarray, label: np.ndarray, legend: list[Key]) -> Markup:
    def draw(axes: Axes) -> None:
        known = np.zeros(len(label), bool)
        for mark in legend:
            mine = label == mark.name
            known |= mine
            x, y = places[mine].T
            axes.scatter(x, y, s=16, c=mark.colour, marker=mark.marker, linewidths=0, alpha=0.8)
        x, y = places[~known].T
        axes.scatter(x, y, s=4, c="#7f7f7f", linewidths=0)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)

    return svg(key, f"{name} of the features of {len(places)} test videos, by class", draw, (4.4, 3.6))
