"""What a model makes of videos: a training batch, its similarities, and whose sound finds whose picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from gdt.common.errors import UserError
from gdt.eval.page.features import Plot, maps
from gdt.eval.page.gallery import Pictures, Query, by_sound, jpeg_uri, spread
from gdt.eval.page.settings import Report
from gdt.eval.page.subjects import Subject
from gdt.eval.page.tables import short_commit
from gdt.eval.plots import keys, svg
from gdt.eval.show_batch import draw, in_words
from gdt.eval.subjects import Model
from gdt.pipeline.composition import contrast, weight
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.train import crossmodal
from gdt.train.checkpoint import NAME, Trained, load_model
from gdt.train.models.gdt import any_device, autocast, modalities_of

_CLIPS = 2
"""Per video where sound is asked for pictures here, as in a probe of pretraining."""
_FRAMES = 8
_WIDTH = 900
"""Pixels of the picture of a batch."""


@dataclass(frozen=True)
class Leaves:
    """One video of a training batch."""

    picture: str
    """Data URI of a JPEG."""
    rows: list[tuple[str, str]]
    """What each leaf is, and what it attracts and repels."""
    said: str
    similarities: Plot


@dataclass(frozen=True)
class Heard:
    """Whose sound finds whose picture."""

    said: str
    queries: list[Query]
    maps: list[Plot]


def loaded(subject: Subject) -> Trained:
    """The model. Raises UserError where there is no checkpoint, or it cannot be read."""
    if subject.checkpoint is None:
        raise UserError(f"{subject.name} has no checkpoint")
    return load_model(subject.checkpoint)


def told(path: Path, subject: Subject, trained: Trained) -> tuple[str, str]:
    """Digest of the weights in a checkpoint, and which they are: file, steps, digest, commit and time."""
    file = path / NAME if path.is_dir() else path
    when = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
    starts = subject.run.starts if subject.run else ()
    commit = f", made at commit {short_commit(starts[-1].provenance.commit)}" if starts else ""
    digest = Model(subject.name, path, trained, False).digest
    return digest, f"{path}, {trained.name}, {trained.step} steps, weights {digest[:8]}{commit}, written {when}"


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
    videos = min(train.videos_per_batch, max(2, settings.leaves // per_video))
    small = replace(train, videos_per_batch=videos)
    index = trained.normalised(Index.open(train.shard_folder))
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
    return Leaves(_jpeg(figure), rows, said, plot)


def _jpeg(figure: Figure) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=_WIDTH / figure.get_figwidth())
    return jpeg_uri(Image.open(data).convert("RGB"), 80)


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
    low, high = (
        np.floor(10 * min(positive.min(), negative.min())) / 10,
        np.ceil(10 * max(positive.max(), negative.max())) / 10,
    )
    edges = np.linspace(low, high, 41)

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
    said = (
        f"{len(np.unique(batch.plan.leaves.video))} videos, {len(embeddings)} leaves, model in evaluation mode; pairs "
        f"with weight only, before they are divided by the temperature {trained.settings.temperature:g}; mean "
        f"{_rounded(positive.mean())} of positive and "
        f"{_rounded(negative.mean())} of negative pairs; a positive pair is the more similar one in "
        f"{100 * float(np.mean(below)) / len(negative):.1f} % (chance 50)"
    )
    title = "similarities of pairs"
    return Plot(title, svg(f"{key}-pairs", f"{title}: {said}", plot), said, legend)


def _rounded(value: float) -> str:
    return f"{value:.2f}".replace("-0.00", "0.00")


def listen(trained: Trained, index: Index, split: str, settings: Report, key: str) -> Heard:
    """Held-out videos asked with their sound. Raises UserError where model or videos have no picture or no sound."""
    both = ("video", "audio")
    if not set(both) <= set(modalities_of(trained.model.state_dict())):
        raise UserError("the model was trained without sound or without pictures, so none is asked with the other")
    index = trained.normalised(index)
    clip = trained.settings.clip
    held_out = crossmodal.with_all(index, np.flatnonzero(index.split == split), clip, both)
    drawn = np.random.Generator(np.random.Philox(settings.seed)).permutation(held_out)[: settings.points]
    videos = np.sort(drawn)
    if len(videos) < 2:
        raise UserError(f"{len(videos)} of the held-out videos (split '{split}') have picture and sound for a clip")
    device, scale = any_device(), trained.settings.augmentation.scale[0]
    model = trained.model.to(device)
    found = crossmodal.embed(model, index, videos, clip, scale, _CLIPS, device, both, loading=Loading(threads=1))
    picture, sound = (found.embeddings[name].numpy() for name in both)
    shown: Sequence[int] = spread(np.arange(len(videos)).astype(str), settings.queries, settings.seed)
    first = 100 * float(crossmodal.hits(found.embeddings, (1,))["audio", "video", 1].mean())
    said = (
        f"{len(videos)} videos of the split '{split}', {_CLIPS} clips each; a sound finds its own picture first for "
        f"{first:.1f} % of them (chance {100 / len(videos):.1f} %)"
    )
    labels = np.repeat(["picture", "sound"], len(videos))
    return Heard(
        said, by_sound(Pictures(index), videos, sound, picture, settings.neighbours, shown),
        maps(np.concatenate([picture, sound]), labels, replace(settings, points=2 * settings.points), key),
    )  # fmt: skip
