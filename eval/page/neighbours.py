"""What a model finds: nearest neighbours of test videos, by the features of an evaluation or by sound."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.eval import extract
from gdt.eval.drawing import COLOURS, STYLE, marker, picture
from gdt.eval.extract import features_file
from gdt.eval.page.found import Shown, figures
from gdt.eval.results import ANSWERS, Result, answers
from gdt.eval.similarity import nearest_rows
from gdt.pipeline.clips import usable
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.train import recall
from gdt.train.models.gdt import any_device
from gdt.train.trained import Trained

_QUERIES = 5
_NEIGHBOURS = 5
"""Queries shown, and neighbours of each."""
_CAPTIONS = {"asked": "query", "right": "✓", "wrong": "✗"}
_CLASSES = 20
"""Most classes of a confusion matrix."""
_VIDEOS = 500
_CLIPS = 2
"""Most videos that are searched by sound, and clips of each, as in a probe of pretraining."""
_POINTS = 500
_PERPLEXITY = 30.0
"""Most points on a plane, and perplexity of t-SNE, which is lower with few videos."""


class Neighbours(NamedTuple):
    """Some queries with their nearest neighbours, and pictures of the features of all."""

    how: str
    """How they were found, and how many first neighbours are right."""
    pictures: list[list[dict[str, str]]]
    """Figures of queries, each followed by its neighbours."""
    maps: str
    confusion: dict[str, dict[str, float]]
    """What `confusion` returns; empty without classes."""


def by_features(row: Result, index: Index, page: Path) -> Neighbours:
    """What an evaluation by one modality has found, in an index; its files are beside the page, or below.

    Raises UserError if they are missing or the data has changed.
    """
    index = index.labelled(row.label)
    root = page.parent
    (modality,) = row.settings["modalities"]
    name = features_file(row.weights, row.data, row.settings["clips"], row.device, modality)
    path = next(root.rglob(name), None)
    features = extract.read(path) if path else None
    found = next(filter(None, (answers(folder.parent, row.key) for folder in root.rglob(ANSWERS))), None)
    if not features or not found or found.neighbours is None:
        raise UserError(f"there are no features and neighbours of {row.model} below {root}; evaluate again")
    asked = index.label[found.queries].astype(str)
    neighbours = index.label[found.neighbours].astype(str)
    right = neighbours == asked[:, None]
    if fingerprint(index) != row.data or not np.array_equal(right[:, 0], found.values["R@1"]):
        raise UserError(f"videos, splits or labels of {index.folder} have changed since; evaluate again")
    order = generator(Stream.FIGURES).permutation(len(right))
    firsts = np.sort(np.unique(asked[order], return_index=True)[1])  # of every class
    shown = order[firsts[:_QUERIES]]
    what = "frames'" if modality == "video" else "sounds'"
    how = f"by the {what} features after {row.step} steps; correct: the same class; R@1 {_percent(right)}"
    pictures = _figures(page, index, found.queries[shown], found.neighbours[shown], right[shown])
    plane = maps(features.average[features.positions(found.queries)], asked)
    return Neighbours(how, pictures, plane, confusion(asked, neighbours[:, 0]))


def by_sound(trained: Trained, index: Index, page: Path, split: str) -> Neighbours:
    """Held-out videos found by their sound. Raises UserError if the model or the videos lack a modality."""
    both = ("video", "audio")
    clip = trained.settings.clip
    if not set(both) <= set(trained.model.modalities):
        raise UserError("it has no results of retrieval (gdt evaluate), and no two networks for a search by sound")
    held_out = np.flatnonzero((index.split == split) & usable(index, clip, both))
    order = generator(Stream.FIGURES).permutation(held_out)[:_VIDEOS]
    if len(order) < 2:
        raise UserError(f"the split '{split}' has fewer than 2 videos with frames and sound; hold out more videos")
    embedded = recall.embed_videos(trained, index, np.sort(order), _CLIPS, any_device(), both)
    videos = embedded.videos
    video, audio = (embedded.embeddings[name].numpy() for name in both)
    neighbours = nearest_rows(audio, video, _NEIGHBOURS)
    right = neighbours == np.arange(len(videos))[:, None]
    shown = np.flatnonzero(np.isin(videos, order[:_QUERIES]))
    how = f"by sound among {len(videos)} videos; correct: the video itself; R@1 {_percent(right)}"
    plane = maps(np.concatenate([video, audio]), np.repeat(both, len(videos)))
    pictures = _figures(page, index, videos[shown], videos[neighbours[shown]], right[shown])
    return Neighbours(how, pictures, plane, {})


def _percent(right: np.ndarray) -> str:
    return f"{100 * right[:, 0].mean():.1f} %"


def confusion(label: np.ndarray, answer: np.ndarray) -> dict[str, dict[str, float]]:
    """Percent of the queries of a class whose nearest neighbour is of each class, by their names.

    `label` and `answer`, str [n], are the classes of queries and neighbours. Of many, those with the lowest R@1.
    """
    recall_of = {name: (answer[label == name] == name).mean() for name in np.unique(label)}
    lowest_first = sorted(recall_of, key=lambda name: (recall_of[name], name))
    rows = {str(name): answer[label == name] for name in sorted(lowest_first[:_CLASSES])}
    return {name: {column: 100 * float((row == column).mean()) for column in rows} for name, row in rows.items()}


def _figures(
    page: Path, index: Index, queries: np.ndarray, neighbours: np.ndarray, right: np.ndarray
) -> list[list[dict[str, str]]]:
    """Queries, each followed by its neighbours, given rows of the index: int64 [q] and [q, k].

    Raises UserError if a shard is damaged.
    """

    def video(row: int, kind: str) -> Shown:
        return Shown(index.id[row], None, _CAPTIONS[kind], kind, index.label[row])

    kinds = np.where(right, "right", "wrong")
    each = zip(queries, neighbours, kinds, strict=True)
    return figures([[video(query, "asked"), *map(video, near, kind)] for query, near, kind in each], page, index)


@rc_context(STYLE)
def maps(features: np.ndarray, labels: np.ndarray) -> str:
    """PCA and t-SNE of features [n, d], with a mark for each of the most frequent labels [n]; empty for n below 4.

    Raises UserError if features are all equal, or contain NaN or infinity.
    """
    chosen = np.sort(generator(Stream.FIGURES).permutation(len(features))[:_POINTS])
    values = features[chosen].astype(np.float64)
    label = labels[chosen]
    if len(values) < 4:
        return ""
    if not np.isfinite(values).all() or np.ptp(values, 0).max() == 0:
        reason = "are the same, or contain NaN or infinity"
        raise UserError(f"the features of all {len(values)} points {reason}: training has collapsed or diverged")
    pca = PCA(2, svd_solver="full").fit(values)
    perplexity = min(_PERPLEXITY, (len(values) - 1) / 3)
    with threadpool_limits(1):  # several threads are up to 100 times slower on busy cores
        tsne = TSNE(2, perplexity=perplexity, random_state=0, init="pca").fit_transform(values)
    common = sorted(name for name, _ in Counter(sorted(map(str, label))).most_common(len(COLOURS)))
    share = " and ".join(f"{100 * ratio:.0f} %" for ratio in pca.explained_variance_ratio_)
    planes = {f"PCA: {share} of the variance": pca.transform(values), f"t-SNE, perplexity {perplexity:.3g}": tsne}
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    for axes, (title, positions) in zip(figure.subplots(1, 2), planes.items(), strict=True):
        for k, name in enumerate(common):
            axes.plot(*positions[label == name].T, linestyle="", markersize=5, alpha=0.8, **marker(k))
        axes.plot(*positions[~np.isin(label, common)].T, ".", markersize=3, color="#7f7f7f")
        axes.set_title(title)
        axes.set_axis_off()
    return picture(figure, common)
