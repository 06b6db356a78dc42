"""Figures of a model for the page: nearest neighbours, confusion matrix, PCA and t-SNE, recall from audio to video, and
a training batch.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from PIL import Image

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError, plural
from gdt.common.streams import Stream, generator
from gdt.eval import extract
from gdt.eval.drawing import MOST, Key, Plot, keys, svg
from gdt.eval.page.collect import Result, Subject, Unread, attempt
from gdt.eval.page.deviation import deviation
from gdt.eval.page.settings import Report
from gdt.eval.planes import planes
from gdt.eval.protocols import PROTOCOLS, features_name, videos_of
from gdt.eval.record import Record
from gdt.eval.retrieval import nearest, unit
from gdt.eval.settings import Downstream
from gdt.eval.subjects import Fold, Model, folds
from gdt.pipeline.composition import contrast, weight
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.layout import shard_folder
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.loading import Loading
from gdt.train import crossmodal
from gdt.train.checkpoint import NAME, Trained, load_model
from gdt.train.models.gdt import any_device, autocast

_NEIGHBOURS = 5
_CLASSES = 20
"""Maximum in a confusion matrix."""
_POINTS = 500
"""Maximum test videos on a plane or in a search by audio."""
_PERPLEXITY = 30.0
"""Of t-SNE; lower with few videos."""
_LEAVES = 128
"""Maximum of a training batch."""
_CLIPS = 2
"""Per video in a search by audio, as in a probe of pretraining."""
_SIDE = 96
"""Pixels of the longer side of a thumbnail."""
_SOUND = 100
"""Log-mel rows of a spectrogram, one second."""


class Thumbnail(NamedTuple):
    """A video on the page."""

    picture: str
    """Data URI of a JPEG."""
    id: str
    label: str
    right: bool
    sound: str
    """Data URI of its spectrogram, if the query is audio."""


class Query(NamedTuple):
    """A video and its nearest neighbours, the nearest first."""

    query: Thumbnail
    neighbours: list[Thumbnail]
    rank: int = 0
    """In a search by audio, the rank of the query's own video, from 1, if it is not shown; else 0."""


class Confusion(NamedTuple):
    """Percent of the queries of a class (row) whose nearest neighbour is of each class (column)."""

    classes: list[str]
    percent: np.ndarray
    """float64 [classes, classes]."""
    queries: int
    right: float
    """R@1 of all queries, percent."""
    hidden: int
    """Number of classes that are not shown: those with the highest R@1."""

    @property
    def shades(self) -> list[list[float]]:
        """Opacity of the cells' colour, 0 to 0.45, so that the text stays readable."""
        shades: list[list[float]] = (self.percent / 100 * 0.45).round(3).tolist()
        return shades


class Neighbours(NamedTuple):
    """Queries with their nearest neighbours, and features on planes."""

    source: str
    """The features and their provenance."""
    queries: list[Query]
    maps: list[Plot]
    confusion: Confusion | None = None
    """None if videos have no classes."""


@dataclass
class Figures:
    """A model on the page."""

    name: str
    source: str = ""
    """Its weights and their provenance."""
    similarities: Plot | None = None
    """Of the pairs in a training batch."""
    deviation: Plot | None = None
    """Of clips of a video, of a class and of any videos."""
    by_features: Neighbours | None = None
    """Of stored features of test videos."""
    by_audio: Neighbours | None = None
    """Videos retrieved by their audio."""
    missing: list[Unread] = field(default_factory=list)

    @property
    def neighbours(self) -> Neighbours | None:
        return self.by_features or self.by_audio


def figures_of(subject: Subject, settings: Report, key: str) -> Figures:
    """All figures of a model, with the reasons for missing ones. `key` is the prefix of its plots' ids."""
    figures = Figures(subject.name)
    index = attempt("frames of videos", figures.missing, lambda: _index(subject))
    trained = attempt("the model", figures.missing, lambda: _load(subject))
    # the latest result whose features are stored, of retrieval if possible
    frozen = {name for name, protocol in PROTOCOLS.items() if "modalities" in protocol.settings}
    stored = [
        each
        for each in subject.results
        if each.record.protocol in frozen and each.record.settings["modalities"] == ["video"]
    ]
    result = min(stored, key=lambda each: each.record.protocol != "retrieval", default=None)
    if trained is not None:
        digest, figures.source = _weights(subject, trained)
        if result is not None and result.record.weights != digest:
            reason = f"the evaluation used weights {result.record.weights[:8]}; {_repeat(result.record)}"
            figures.missing.append(Unread("neighbours with the weights of the checkpoint", reason))
        figures.similarities = attempt("a training batch", figures.missing, lambda: pair_similarities(trained, key))
    first = subject.results[0].record.query_split if subject.results else ""
    if index is not None and trained is not None:
        split = first or ("test" if "test" in index.split else "val")
        figures.deviation = attempt("the deviation of clips", figures.missing,
                                    lambda: deviation(trained, index, split, settings.seed, key))  # fmt: skip
    if index is not None and result is not None:
        figures.by_features = attempt("nearest neighbours, confusion matrix, PCA and t-SNE", figures.missing,
                                      lambda: search_features(result, index, settings, key))  # fmt: skip
    elif index is not None and trained is not None:
        figures.by_audio = attempt("search by audio", figures.missing,
                                   lambda: search_by_audio(trained, index, split, settings, key))  # fmt: skip
    return figures


def _index(subject: Subject) -> Index:
    if subject.shards is None:
        raise UserError(f"the shards of {subject.name} are unknown")
    return Index.open(subject.shards)


def _load(subject: Subject) -> Trained:
    if subject.checkpoint is None:
        raise UserError(f"{subject.name} has no checkpoint")
    return load_model(subject.checkpoint)


def _weights(subject: Subject, trained: Trained) -> tuple[str, str]:
    """The digest of the weights in a checkpoint, and their file, steps, digest, commit and time in one line."""
    path = subject.checkpoint
    assert path is not None
    file = path / NAME if path.is_dir() else path
    when = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
    start = subject.run.start if subject.run else {}
    commit = f", commit {short_commit(start['commit'])}" if start else ""
    digest = Model(subject.name, path, trained, False).digest
    return digest, f"{path}, {trained.name}, {trained.step} steps, weights {digest[:8]}{commit}, written {when}"


def eval_command(checkpoint: Path, dataset: str, shards: Path | None) -> str:
    """The command that evaluates a model."""
    elsewhere = ["--shards", shards] if shards and shards != shard_folder(dataset) else []
    return gdt_command("evaluate", "--ckpt", checkpoint, "--dataset", dataset, *elsewhere)


def _repeat(row: Record) -> str:
    return f"run {eval_command(row.checkpoint, row.dataset, row.shards)}"


def short_commit(commit: str) -> str:
    """The first digits of a commit, and its suffix if files differed."""
    digits, dash, dirty = commit.partition("-")
    return digits[:12] + dash + dirty or "unknown"


def search_features(result: Result, index: Index, settings: Report, key: str) -> Neighbours:
    """Figures of the features that an evaluation stored. Raises UserError if they are missing or outdated."""
    row = result.record
    if fingerprint(index) != row.data:
        raise UserError(f"the shards in {index.folder} have changed since the evaluation; {_repeat(row)}")
    labelled = index.labelled(row.label)
    parts = folds(row.settings_as(Downstream), labelled, row.query_split)
    fold = next((part for part in parts if part.number == row.fold), None)
    if fold is None or fold.digest != row.labels:
        raise UserError(f"labels or splits of {index.folder} have changed since the evaluation; {_repeat(row)}")
    videos = videos_of(parts)
    device = "cpu" if row.details.get("precision") == "float32" else "cuda"
    path = result.features / features_name(row.data, videos, row.clips, device)
    features = extract.read(path, videos)
    if features is None:
        raise UserError(f"{result.features} has lost the features; remove it and {_repeat(row)}")
    queries, gallery = (features.maximum[features.positions(part)] for part in (fold.queries, fold.gallery))
    neighbours = nearest(queries, gallery, _NEIGHBOURS)
    thumbnails = Thumbnails(labelled)
    shown = []
    for q in spread(fold.query_label, settings.queries, settings.seed):
        near = [(fold.gallery[g], fold.gallery_label[g] == fold.query_label[q]) for g in neighbours[q]]
        shown.append(thumbnails.query(fold.queries[q], near))
    source = f"{path}, weights {row.weights[:8]}, evaluated {row.provenance['started']}"
    source += f", fold {fold.number}" if fold.number else ""
    average = features.average[features.positions(fold.queries)]
    return Neighbours(
        source, shown, maps(average, fold.query_label, settings.seed, key), confusion(fold, neighbours[:, 0])
    )


def confusion(fold: Fold, first: np.ndarray) -> Confusion:
    """The confusion matrix of nearest neighbours, whose indices in the gallery are `first`, int64 [queries].

    Rows sum to less than 100 if neighbours are of classes that are not shown.
    """
    answer = fold.gallery_label[first]
    right = answer == fold.query_label
    names = np.unique(fold.query_label)
    shares = {name: right[fold.query_label == name].mean() for name in names}
    shown = sorted(sorted(names, key=lambda name: (shares[name], name))[:_CLASSES])
    rows = [answer[fold.query_label == name] for name in shown]
    percent = np.array([[100 * (row == name).sum() / len(row) for name in shown] for row in rows])
    hidden = len(names) - len(shown)
    return Confusion([str(name) for name in shown], percent, len(answer), float(100 * right.mean()), hidden)


def maps(values: np.ndarray, label: np.ndarray, seed: int, key: str, points: int = _POINTS) -> list[Plot]:
    """PCA and t-SNE of features [n, d], with a colour and shape for each of the most frequent labels [n]."""
    chosen = np.sort(generator(Stream.MAPS, seed).permutation(len(values))[:points])
    values, label = values[chosen], label[chosen]
    n = len(values)
    if n < 5:
        return []
    common = [str(name) for name, _ in Counter(sorted(map(str, label))).most_common(MOST)]
    legend = keys(sorted(common))
    some = f", {len(set(label)) - len(common)} classes with fewer videos as small grey points"
    shown = f"{n} points" + (some if len(set(label)) > len(common) else "")
    projected = planes(values, _PERPLEXITY, seed)
    share = 100 * projected.variance
    how = f"perplexity {projected.perplexity:.3g}, seed {seed}; distances between groups have no meaning"
    return [
        Plot(
            name, svg(f"{key}-{short}", f"{name} of the features of {n} test videos",
                      partial(_scatter, positions=positions, label=label, legend=legend), (4.4, 3.6)),
            f"{shown}; {more}", legend,
        )
        for name, short, positions, more in (
            ("PCA", "pca", projected.pca, f"{share[0]:.0f} % and {share[1]:.0f} % of the variance"),
            ("t-SNE", "tsne", projected.tsne, how),
        )
    ]  # fmt: skip


def _scatter(axes: Axes, positions: np.ndarray, label: np.ndarray, legend: list[Key]) -> None:
    known = np.zeros(len(label), bool)
    for mark in legend:
        mine = label == mark.name
        known |= mine
        x, y = positions[mine].T
        axes.scatter(x, y, s=16, c=mark.colour, marker=mark.marker, linewidths=0, alpha=0.8)
    x, y = positions[~known].T
    axes.scatter(x, y, s=4, c="#7f7f7f", linewidths=0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def search_by_audio(trained: Trained, index: Index, split: str, settings: Report, key: str) -> Neighbours:
    """Held-out videos retrieved by their audio. Raises UserError if the model or the videos lack a modality."""
    both = ("video", "audio")
    if not set(both) <= set(trained.model.modalities):
        raise UserError("the model has no video or no audio network")
    index = trained.normalise(index)
    clip = trained.settings.clip
    held_out = crossmodal.usable_videos(index, np.flatnonzero(index.split == split), clip, both)
    drawn = generator(Stream.SHOWN_SOUNDS, settings.seed).permutation(held_out)[:_POINTS]
    videos = np.sort(drawn)
    if len(videos) < 2:
        raise UserError(
            f"the split '{split}' has {plural(len(videos), 'video')} with frames and sound as long as a clip, but 2 "
            "are needed; hold out more videos"
        )
    device, scale = any_device(), trained.settings.augmentation.scale[0]
    model = trained.model.to(device)
    embedded = crossmodal.embed(model, index, videos, clip, scale, _CLIPS, device, both, loading=Loading(threads=1))
    video, audio = (embedded.embeddings[name].numpy() for name in both)
    shown = spread(np.arange(len(videos)).astype(str), settings.queries, settings.seed)
    neighbours, similarity = nearest(audio[shown], video, _NEIGHBOURS), unit(audio[shown]) @ unit(video).T
    thumbnails, queries = Thumbnails(index), []
    for q, row, near in zip(shown, similarity, neighbours, strict=True):
        rank = 0 if q in near else int((row >= row[q]).sum())
        queries.append(thumbnails.query(videos[q], [(videos[g], g == q) for g in near], rank, with_sound=True))
    first = 100 * float(crossmodal.hits(embedded.embeddings, (1,))["audio", "video", 1].mean())
    source = (
        f"{len(videos)} videos of the split '{split}', {_CLIPS} clips each; audio-to-video R@1 {first:.1f} % (chance "
        f"{100 / len(videos):.1f} %)"
    )
    labels, values = np.repeat(["video", "audio"], len(videos)), np.concatenate([video, audio])
    return Neighbours(source, queries, maps(values, labels, settings.seed, key, 2 * _POINTS))


class Thumbnails:
    """Thumbnails of the videos of an index."""

    def __init__(self, index: Index) -> None:
        self._index, self._reader = index, ShardReader(index)

    def query(self, video: int, near: Sequence[tuple[int, bool]], rank: int = 0, with_sound: bool = False) -> Query:
        """A video with its neighbours and whether each is right. Raises UserError if a shard is damaged."""
        sound = self._spectrogram(video) if with_sound else ""
        neighbours = [self._thumbnail(other, bool(right)) for other, right in near]
        return Query(self._thumbnail(video, False, sound), neighbours, rank)

    def _thumbnail(self, video: int, right: bool, sound: str = "") -> Thumbnail:
        """The middle frame of a video."""
        index = self._index
        (jpeg,) = self._reader.frames(video, np.array([int(index.frame_count[video]) // 2]))
        with Image.open(io.BytesIO(jpeg.tobytes())) as image:
            picture = image.convert("RGB")
        picture.thumbnail((_SIDE, _SIDE))
        return Thumbnail(_jpeg(picture), str(index.id[video]), str(index.label[video]), right, sound)

    def _spectrogram(self, video: int) -> str:
        """A second of sound from the middle."""
        count = int(self._index.mel_count[video])
        rows = min(_SOUND, count)
        bank = self._reader.logmel(video, min(count // 2, count - rows), rows).T[::-1]
        statistics = self._index.statistics
        shade = np.clip(((bank - statistics.mel_mean) / statistics.mel_std + 3) / 6, 0, 1)
        image = Image.fromarray((colormaps["magma"](shade)[..., :3] * 255).astype(np.uint8))
        return _jpeg(image.resize((_SOUND, 2 * len(bank))))


def _jpeg(image: Image.Image, quality: int = 72) -> str:
    """An image as a data URI."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


def spread(labels: np.ndarray, n: int, seed: int) -> list[int]:
    """Indices of n random queries, of different classes as far as possible."""
    order = generator(Stream.SHOWN_QUERIES, seed).permutation(len(labels)).tolist()
    seen: Counter[str] = Counter()
    turns = []
    for index in order:
        turns.append(seen[str(labels[index])])
        seen[str(labels[index])] += 1
    return [index for _, index in sorted(zip(turns, order, strict=True), key=lambda pair: pair[0])[:n]]


def pair_similarities(trained: Trained, key: str) -> Plot:
    """Similarities of positive and negative pairs in a training batch. Raises UserError if it cannot be loaded."""
    train = trained.settings
    if trained.foreign is not None:
        raise UserError("external weights do not record their training")
    if train.factors_from is not None:  # the report does not run code that a checkpoint names
        command = gdt_command("show-batch", "--factors", train.factors, "--factors-from", train.factors_from)
        raise UserError(f"the report does not run custom factors; draw a batch with {command}")
    per_video = int(np.prod([factor.k for factor in train.composition.factors[1:]]))
    videos = min(train.composition.batch_size, max(2, _LEAVES // per_video))
    small = replace(train, batch_size=videos)
    index = trained.normalise(Index.open(train.shard_folder))
    tree, words = small.tree(index), small.words(index)
    device = any_device()
    with Loader(index, [tree.plan(0, 0)], train.clip, device, Loading(threads=1), words) as loader:
        batch = next(iter(loader))
        with torch.inference_mode(), autocast(device):
            embeddings = trained.model.to(device).eval()(batch.inputs).float().cpu()
    factors = trained.settings.composition.factors
    table = {name: column.cpu() for name, column in batch.table.items()}
    w, c = weight(factors, table, table), contrast(factors, table, table)
    if "usable" in table:
        w = w & (table["usable"][:, None] * table["usable"][None, :]).bool()
    similarity = embeddings @ embeddings.T
    positive, negative = (similarity[w & mask].numpy() for mask in (c, ~c))
    if not len(positive) or not len(negative) or not np.isfinite(similarity.numpy()).all():
        raise UserError("the batch has no positive or no negative pairs, or similarities are NaN")
    legend = keys([f"positive pairs ({len(positive)})", f"negative pairs ({len(negative)})"])
    low, high = min(positive.min(), negative.min()), max(positive.max(), negative.max())
    edges = np.linspace(np.floor(10 * low) / 10, np.ceil(10 * high) / 10, 41)

    def plot(axes: Axes) -> None:
        for values, mark, line in zip((positive, negative), legend, ("-", "--"), strict=True):
            height = np.histogram(values, edges)[0] / len(values) * 100
            axes.stairs(height, edges, color=mark.colour, linewidth=1.5, linestyle=line)
            top = int(height.argmax())
            axes.plot((edges[top] + edges[top + 1]) / 2, height[top], mark.marker, color=mark.colour, markersize=6)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("cosine similarity")
        axes.set_ylabel("share of pairs, %")
        axes.set_ylim(bottom=0)

    order = np.sort(negative)
    below = (np.searchsorted(order, positive, "left") + np.searchsorted(order, positive, "right")) / 2
    means = [f"{values.mean():.2f}".replace("-0.00", "0.00") for values in (positive, negative)]
    caption = (
        f"{len(np.unique(batch.plan.leaves.video))} videos, {len(embeddings)} leaves, model in evaluation mode; pairs "
        f"in the loss, before the temperature {trained.settings.temperature:g}; mean {means[0]} of positive and "
        f"{means[1]} of negative pairs; a positive pair is more similar than a negative one in "
        f"{100 * float(np.mean(below)) / len(negative):.1f} % of cases (chance 50 %)"
    )
    title = "similarities of pairs"
    return Plot(title, svg(f"{key}-pairs", f"{title}: {caption}", plot), caption, legend)
