"""What a model makes of videos, as far as a page shows it: who is near whom, which classes are mistaken, features on
planes, whose sound finds whose picture, and what it was trained to tell apart.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.axes import Axes
from PIL import Image

from gdt.common.errors import UserError
from gdt.eval import extract
from gdt.eval.drawing import MOST, Key, keys, svg
from gdt.eval.page.collect import Found, Subject, Unread, attempt
from gdt.eval.page.settings import Report
from gdt.eval.planes import planes
from gdt.eval.protocols import PROTOCOLS, features_name, videos_of
from gdt.eval.retrieval import nearest, unit
from gdt.eval.settings import Downstream
from gdt.eval.show_batch import draw, in_words
from gdt.eval.subjects import Fold, Model, folds
from gdt.pipeline.composition import contrast, weight
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.loading import Loading
from gdt.train import crossmodal
from gdt.train.checkpoint import NAME, Trained, load_model
from gdt.train.models.gdt import any_device, autocast

_CLASSES = 20
"""At most so many classes of a confusion matrix are shown."""
_CLIPS = 2
"""Per video where sound is asked for pictures here, as in a probe of pretraining."""
_FRAMES = 8
_WIDTH = 900
"""Pixels of the picture of a batch."""
_SIDE = 96
"""Pixels of the longer side of a thumbnail."""
_SOUND = 100
"""Log-mel rows of a spectrogram, one second."""


class Plot(NamedTuple):
    """A plot, with the legend of what is in it."""

    title: str
    svg: Markup
    said: str
    legend: list[Key]


class Thumbnail(NamedTuple):
    """A video on the page."""

    picture: str
    """Data URI of a JPEG."""
    id: str
    label: str
    right: bool
    sound: str
    """Data URI of its spectrogram, where it was asked with that."""


class Query(NamedTuple):
    """A video, and what was found nearest to it, nearest first."""

    asked: Thumbnail
    found: list[Thumbnail]
    missed: int = 0
    """The place at which its own came, from 1, where that is asked for and is not among those shown."""


class Confusion(NamedTuple):
    """Of queries of a class (row), percent whose nearest neighbour is of each class (column)."""

    classes: list[str]
    percent: np.ndarray
    """float64 [classes, classes]."""
    queries: int
    right: float
    """Percent of all queries, also of classes that are not shown."""
    left_out: int
    """Classes that are not shown: those with the most right answers."""

    @property
    def shades(self) -> list[list[float]]:
        """How strongly the cells are coloured, so weakly that text stays readable: 0 to 0.45."""
        shades: list[list[float]] = (self.percent / 100 * 0.45).round(3).tolist()
        return shades


class Neighbours(NamedTuple):
    """Which videos are near which."""

    said: str
    """Of what they are."""
    queries: list[Query]
    maps: list[Plot]
    confusion: Confusion | None = None
    """Where videos have classes."""


class Leaves(NamedTuple):
    """One video of a training batch."""

    picture: str
    """Data URI of a JPEG."""
    rows: list[tuple[str, str]]
    """What each leaf is, and what it attracts and repels."""
    said: str
    similarities: Plot


@dataclass
class Drawn:
    """A model on the page."""

    name: str
    told: str = ""
    leaves: Leaves | None = None
    looked: Neighbours | None = None
    """By the stored features of test videos."""
    heard: Neighbours | None = None
    """Of sounds, the pictures."""
    missing: list[Unread] = field(default_factory=list)


def drawn(subject: Subject, settings: Report, key: str) -> Drawn:
    """Everything there is to draw of a model; what cannot be drawn is said. `key` begins the names of its plots."""
    made = Drawn(subject.name)
    index = attempt("pictures of videos", made.missing, lambda: _index(subject))
    trained = attempt("the model", made.missing, lambda: _loaded(subject))
    # the latest whose features are stored, by retrieval if that was done
    frozen = {name for name, protocol in PROTOCOLS.items() if protocol.labels and not protocol.trains}
    stored = [each for each in subject.found if each.record.protocol in frozen]
    found = min(stored, key=lambda each: each.record.protocol != "retrieval", default=None)
    if trained is not None:
        digest, made.told = _told(subject, trained)
        if found is not None and found.record.weights != digest:
            why = f"the evaluation is of weights {found.record.weights[:8]}; 'make eval' evaluates these"
            made.missing.append(Unread("neighbours by the weights in the checkpoint", why))
        made.leaves = attempt("a training batch", made.missing, lambda: batch_of(trained, settings, key))
    if index is not None and found is not None:
        made.looked = attempt("nearest neighbours, confusion, PCA and t-SNE", made.missing,
                              lambda: look(found, index, settings, key))  # fmt: skip
    elif index is not None and trained is not None:
        split = subject.found[0].record.query_split if subject.found else "test" if "test" in index.split else "val"
        made.heard = attempt("sound that finds pictures", made.missing,
                             lambda: listen(trained, index, split, settings, key))  # fmt: skip
    return made


def _index(subject: Subject) -> Index:
    if subject.shards is None:
        raise UserError(f"it is not known of which shards {subject.name} is")
    return Index.open(subject.shards)


def _loaded(subject: Subject) -> Trained:
    if subject.checkpoint is None:
        raise UserError(f"{subject.name} has no checkpoint")
    return load_model(subject.checkpoint)


def _told(subject: Subject, trained: Trained) -> tuple[str, str]:
    """Digest of the weights in a checkpoint, and which they are: file, steps, digest, commit and time."""
    path = subject.checkpoint
    assert path is not None
    file = path / NAME if path.is_dir() else path
    when = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
    starts = subject.run.starts if subject.run else ()
    commit = f", made at commit {short_commit(starts[-1].provenance.commit)}" if starts else ""
    digest = Model(subject.name, path, trained, False).digest
    return digest, f"{path}, {trained.name}, {trained.step} steps, weights {digest[:8]}{commit}, written {when}"


def short_commit(commit: str) -> str:
    """The first digits of a commit, and whether files differed from it."""
    digits, dash, dirty = commit.partition("-")
    return digits[:12] + dash + dirty or "not known"


def look(found: Found, index: Index, settings: Report, key: str) -> Neighbours:
    """Pictures of the features that an evaluation has stored. Raises UserError where there are none."""
    row = found.record
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
    queries, gallery = (features.maximum[features.positions(part)] for part in (fold.queries, fold.gallery))
    neighbours = nearest(queries, gallery, settings.neighbours)
    pictures = Pictures(labelled)
    shown = []
    for q in spread(fold.query_label, settings.queries, settings.seed):
        near = [(fold.gallery[g], fold.gallery_label[g] == fold.query_label[q]) for g in neighbours[q]]
        shown.append(pictures.query(fold.queries[q], near))
    said = f"{path}, weights {row.weights[:8]}, evaluated {row.provenance.started}"
    said += f", fold {fold.number}" if fold.number else ""
    average = features.average[features.positions(fold.queries)]
    return Neighbours(said, shown, maps(average, fold.query_label, settings, key), confusion(fold, neighbours[:, 0]))


def confusion(fold: Fold, first: np.ndarray) -> Confusion:
    """Whose class the nearest neighbour of every query has; `first` are its places in the gallery, int64 [queries].

    Rows sum to less than 100 where classes that are not shown, or that no query has, are found.
    """
    answer = fold.gallery_label[first]
    right = answer == fold.query_label
    names = np.unique(fold.query_label)
    shares = {name: right[fold.query_label == name].mean() for name in names}
    shown = sorted(sorted(names, key=lambda name: (shares[name], name))[:_CLASSES])
    rows = [answer[fold.query_label == name] for name in shown]
    percent = np.array([[100 * (row == name).sum() / len(row) for name in shown] for row in rows])
    left_out = len(names) - len(shown)
    return Confusion([str(name) for name in shown], percent, len(answer), float(100 * right.mean()), left_out)


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
    share = 100 * found.variance
    how = f"perplexity {found.perplexity:.3g}, seed {settings.seed}; distances between groups mean nothing"
    return [
        Plot(
            name, svg(f"{key}-{short}", f"{name} of the features of {n} test videos, by class",
                      partial(_scatter, places=places, label=label, legend=legend), (4.4, 3.6)),
            f"{said}; {more}", legend,
        )
        for name, short, places, more in (
            ("PCA", "pca", found.pca, f"{share[0]:.0f} % and {share[1]:.0f} % of the variance"),
            ("t-SNE", "tsne", found.tsne, how),
        )
    ]  # fmt: skip


def _scatter(axes: Axes, places: np.ndarray, label: np.ndarray, legend: list[Key]) -> None:
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


def listen(trained: Trained, index: Index, split: str, settings: Report, key: str) -> Neighbours:
    """Held-out videos asked with their sound. Raises UserError where model or videos have no picture or no sound."""
    both = ("video", "audio")
    if not set(both) <= set(trained.model.modalities):
        raise UserError("the model was trained without sound or without pictures, so none is asked with the other")
    index = trained.normalise(index)
    clip = trained.settings.clip
    held_out = crossmodal.usable_videos(index, np.flatnonzero(index.split == split), clip, both)
    drawn = np.random.Generator(np.random.Philox(settings.seed)).permutation(held_out)[: settings.points]
    videos = np.sort(drawn)
    if len(videos) < 2:
        raise UserError(f"{len(videos)} of the held-out videos (split '{split}') have picture and sound for a clip")
    device, scale = any_device(), trained.settings.augmentation.scale[0]
    model = trained.model.to(device)
    found = crossmodal.embed(model, index, videos, clip, scale, _CLIPS, device, both, loading=Loading(threads=1))
    picture, sound = (found.embeddings[name].numpy() for name in both)
    shown = spread(np.arange(len(videos)).astype(str), settings.queries, settings.seed)
    neighbours, similarity = nearest(sound[shown], picture, settings.neighbours), unit(sound[shown]) @ unit(picture).T
    pictures, queries = Pictures(index), []
    for q, row, near in zip(shown, similarity, neighbours, strict=True):
        missed = 0 if q in near else int((row >= row[q]).sum())
        queries.append(pictures.query(videos[q], [(videos[g], g == q) for g in near], missed, with_sound=True))
    first = 100 * float(crossmodal.hits(found.embeddings, (1,))["audio", "video", 1].mean())
    said = (
        f"{len(videos)} videos of the split '{split}', {_CLIPS} clips each; a sound finds its own picture first for "
        f"{first:.1f} % of them (chance {100 / len(videos):.1f} %)"
    )
    labels = np.repeat(["picture", "sound"], len(videos))
    twice = replace(settings, points=2 * settings.points)
    return Neighbours(said, queries, maps(np.concatenate([picture, sound]), labels, twice, key))


class Pictures:
    """Small pictures of the videos of an index."""

    def __init__(self, index: Index) -> None:
        self._index, self._reader = index, ShardReader(index)

    def query(self, asked: int, found: Sequence[tuple[int, bool]], missed: int = 0, with_sound: bool = False) -> Query:
        """A row of the index with those that were found, each with whether it is right. UserError if damaged."""
        sound = self._spectrogram(asked) if with_sound else ""
        near = [self._thumbnail(video, bool(right)) for video, right in found]
        return Query(self._thumbnail(asked, False, sound), near, missed)

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
    """A picture as a data URI."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


def spread(labels: np.ndarray, n: int, seed: int) -> list[int]:
    """Places of n queries, drawn once, of different classes as far as there are so many."""
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(labels)).tolist()
    seen: Counter[str] = Counter()
    turns = []
    for place in order:
        turns.append(seen[str(labels[place])])
        seen[str(labels[place])] += 1
    return [place for _, place in sorted(zip(turns, order, strict=True), key=lambda pair: pair[0])[:n]]


def batch_of(trained: Trained, settings: Report, key: str) -> Leaves:
    """A batch of the model's own composition through the model. Raises UserError where it cannot be made."""
    train = trained.settings
    if trained.foreign is not None:
        raise UserError("how weights from elsewhere were trained is not known, so no batch of theirs is drawn")
    if train.factors_from is not None:  # a page must not run code that a file it reads has named
        raise UserError(
            f"its factors are of {train.factors_from}, which is not run for a page; "
            f"see 'make show-batch FACTORS=\"{train.factors}\" FACTORS_FROM={train.factors_from}'"
        )
    per_video = int(np.prod([factor.k for factor in train.composition.factors[1:]]))
    videos = min(train.composition.batch_size, max(2, settings.leaves // per_video))
    small = replace(train, batch_size=videos)
    index = trained.normalise(Index.open(train.shard_folder))
    tree, words = small.tree(index), small.words(index)
    device = any_device()
    with Loader(index, [tree.plan(0, 0)], train.clip, device, Loading(threads=1), words) as loader:
        batch = next(iter(loader))
        figure = draw(batch, tree, index, train.name, _FRAMES, words.words if words else ())
        rows = in_words(batch, tree)
        with torch.inference_mode(), autocast(device):
            embeddings = trained.model.to(device).eval()(batch.inputs).float().cpu()
        plot = _similarities(trained, batch, embeddings, key)
    said = f"video {index.id[batch.plan.leaves.video[0]]}, first batch of the first epoch, seed {train.seed}"
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=_WIDTH / figure.get_figwidth())
    return Leaves(_jpeg(Image.open(png).convert("RGB"), 80), rows, said, plot)


def _similarities(trained: Trained, batch: Batch, embeddings: torch.Tensor, key: str) -> Plot:
    """Of the pairs that the loss compares, positive and negative ones, between embeddings [n, d] of a batch."""
    factors = trained.settings.composition.factors
    table = {name: column.cpu() for name, column in batch.table.items()}
    w, c = weight(factors, table, table), contrast(factors, table, table)
    if "usable" in table:
        w = w & (table["usable"][:, None] * table["usable"][None, :]).bool()
    similarity = embeddings @ embeddings.T
    positive, negative = (similarity[w & mask].numpy() for mask in (c, ~c))
    if not len(positive) or not len(negative) or not np.isfinite(similarity.numpy()).all():
        raise UserError("the batch has no positive or no negative pairs, or their similarities are no numbers")
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
    said = (
        f"{len(np.unique(batch.plan.leaves.video))} videos, {len(embeddings)} leaves, model in evaluation mode; pairs "
        f"with weight only, before they are divided by the temperature {trained.settings.temperature:g}; mean "
        f"{means[0]} of positive and {means[1]} of negative pairs; a positive pair is the more similar one in "
        f"{100 * float(np.mean(below)) / len(negative):.1f} % (chance 50)"
    )
    title = "similarities of pairs"
    return Plot(title, svg(f"{key}-pairs", f"{title}: {said}", plot), said, legend)
