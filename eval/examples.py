"""What a model finds: nearest neighbours of test videos, by the features of an evaluation or by sound."""

from __future__ import annotations

from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdt.common.errors import UserError
from gdt.common.streams import Stream, generator
from gdt.eval import extract
from gdt.eval.protocols import conditions, features_path
from gdt.eval.results import Result
from gdt.eval.retrieval import nearest
from gdt.eval.settings import Downstream
from gdt.eval.subjects import Data, folder_name, folds
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.train import crossmodal
from gdt.train.models.gdt import any_device
from gdt.train.trained import Trained

_QUERIES, _NEIGHBOURS = 5, 5
"""Queries shown, and neighbours of each."""
_CLASSES = 20
"""Most classes of a confusion matrix."""
_VIDEOS, _CLIPS = 500, 2
"""Most videos that are searched by sound, and clips of each, as in a probe of pretraining."""


class Confusion(NamedTuple):
    """Percent of the queries of a class (row) whose nearest neighbour is of each class (column)."""

    classes: list[str]
    """The classes with the lowest R@1, by name."""
    percent: np.ndarray
    """float64 [classes, classes]; rows sum to less than 100 if neighbours are of other classes."""
    hidden: int
    """Number of other classes."""


@dataclass(frozen=True)
class Found:
    """Some queries with their nearest neighbours, and the features of all."""

    how: str
    """How they were found, and how many first neighbours are right."""
    index: Index
    queries: np.ndarray
    """Rows of the index, int64 [q]."""
    neighbours: np.ndarray
    """Rows of the index, the nearest first: int64 [q, k]."""
    right: np.ndarray
    """Whether a neighbour has the query's class, or is the query itself in a search by sound: bool [q, k]."""
    features: np.ndarray
    """[n, d], of all queries; in a search by sound, of their videos and their sounds."""
    labels: np.ndarray
    """Classes, or video and audio: str [n]."""
    confusion: Confusion | None = None
    """None without classes."""


def by_features(row: Result, root: Path) -> Found:
    """Videos found by the features of an evaluation, which are below `root`.

    Raises UserError if they are missing or the data has changed.
    """
    index = Index.open(row.shards).labelled(row.label)
    settings = Downstream(folds=(row.fold,) if row.fold else (), **row.settings)
    (fold,) = folds(settings, index, row.query_split)
    data = Data(row.dataset, index, fingerprint(index), row.query_split)
    known = {conditions(settings, row.protocol, data, fold, device, None): device for device in ("cpu", "cuda")}
    if row.conditions not in known:
        raise UserError(f"videos, labels or splits of {index.folder} have changed since; evaluate again")
    name = features_path(Path(), row.data, row.settings["clips"], known[row.conditions])
    path = next(root.rglob(f"{escape(folder_name(row.model, row.weights))}/{name}"), None)
    if not path or not (features := extract.read(path)):
        raise UserError(f"there are no features of {row.model} below {root}; evaluate again")
    queries, gallery = (features.maximum[features.positions(part)] for part in (fold.queries, fold.gallery))
    found = nearest(queries, gallery, _NEIGHBOURS)
    answers = fold.gallery_label[found]
    right = answers == fold.query_label[:, None]
    order = generator(Stream.FIGURES).permutation(len(queries))
    firsts = np.sort(np.unique(fold.query_label[order], return_index=True)[1])  # of every class
    shown = order[firsts[:_QUERIES]]
    how = f"by the frames' features after {row.step} steps; correct: the same class; R@1 {_percent(right)}"
    average = features.average[features.positions(fold.queries)]
    return Found(
        how, index, fold.queries[shown], fold.gallery[found[shown]], right[shown], average, fold.query_label,
        confusion(fold.query_label, answers[:, 0]),
    )  # fmt: skip


def by_sound(trained: Trained, index: Index, split: str) -> Found:
    """Held-out videos found by their sound. Raises UserError if the model or the videos lack a modality."""
    both, clip = ("video", "audio"), trained.settings.clip
    if not set(both) <= set(trained.model.modalities):
        raise UserError("it is not evaluated with labels, and has no two networks for a search by sound")
    index = trained.normalise(index)
    held_out = crossmodal.usable_videos(index, np.flatnonzero(index.split == split), clip, both)
    order = generator(Stream.FIGURES).permutation(held_out)[:_VIDEOS]
    if len(order) < 2:
        raise UserError(f"the split '{split}' has fewer than 2 videos with frames and sound; hold out more videos")
    device, scale = any_device(), trained.settings.augmentation.scale[0]
    model = trained.model.to(device)
    embedded = crossmodal.embed(model, index, np.sort(order), clip, scale, _CLIPS, device, both)
    videos, (video, audio) = embedded.videos, (embedded.embeddings[name].numpy() for name in both)
    found = nearest(audio, video, _NEIGHBOURS)
    right = found == np.arange(len(videos))[:, None]
    shown = np.flatnonzero(np.isin(videos, order[:_QUERIES]))
    how = f"by sound among {len(videos)} videos; correct: the video itself; R@1 {_percent(right)}"
    labels, features = np.repeat(both, len(videos)), np.concatenate([video, audio])
    return Found(how, index, videos[shown], videos[found[shown]], right[shown], features, labels)


def _percent(right: np.ndarray) -> str:
    return f"{100 * right[:, 0].mean():.1f} %"


def confusion(label: np.ndarray, answer: np.ndarray) -> Confusion:
    """The confusion matrix of queries of classes `label` and nearest neighbours of classes `answer`, str [n]."""
    names = np.unique(label)
    recall = {name: (answer[label == name] == name).mean() for name in names}
    shown = sorted(sorted(names, key=lambda name: (recall[name], name))[:_CLASSES])
    rows = [answer[label == name] for name in shown]
    percent = np.array([[100 * (row == name).mean() for name in shown] for row in rows])
    return Confusion([str(name) for name in shown], percent, len(names) - len(shown))
