"""A picture of what the loader makes: every leaf of one video, frames, spectrograms and words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.settings.pictures import ShowBatch
from pipeline.colour import Pixels
from pipeline.errors import UserError
from pipeline.leaves import MODALITIES
from pipeline.loader import Batch, Loader
from pipeline.shards.index import Index
from pipeline.sources.text import NOTHING
from pipeline.tree import Tree
from train.settings import SIZES, Pretrain


def show_batch(settings: ShowBatch) -> Path:
    """Draw the leaves of the first video of a batch, as the network gets them but for the normalisation."""
    base = SIZES[settings.size][1]
    train = Pretrain(
        dataset=settings.dataset, shards=settings.shards, preset=settings.preset, seed=settings.seed,
        factors=settings.factors, factors_from=settings.factors_from, word2vec=settings.word2vec,
        videos_per_batch=2, clip=base.clip, augmentation=base.augmentation, loading=base.loading,
    )  # fmt: skip
    index = Index.open(train.shard_folder)
    tree = train.tree(index, print)
    if not 0 <= settings.batch < tree.batches_per_epoch:
        raise UserError(f"--batch is {settings.batch}; an epoch has the batches 0 to {tree.batches_per_epoch - 1}")
    words = train.words(index)
    plans = [tree.plan(0, settings.batch)]
    with Loader(index, plans, train.clip, torch.device("cpu"), train.loading, words) as loader:
        title = "your factors" if settings.factors else f"preset {settings.preset}"
        picture = draw(next(iter(loader)), tree, index, title, settings.frames, words.words if words else ())
    path = settings.out or Path("runs") / f"batch-{settings.dataset}-{train.name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=130)
    return path


def draw(batch: Batch, tree: Tree, index: Index, title: str, frames: int, words: Sequence[str] = ()) -> Figure:
    """A row for each leaf of the batch's first video: so many of its frames, side by side, its spectrogram or words."""
    columns, modality = batch.plan.columns, batch.plan.leaves.modality
    leaves = np.flatnonzero(batch.plan.leaves.video == batch.plan.leaves.video[0])
    picture = Figure(figsize=(8, 1.35 * len(leaves)), layout="constrained")
    for axis, leaf in zip(picture.subplots(len(leaves), 1, squeeze=False)[:, 0], leaves, strict=True):
        name = MODALITIES[modality[leaf]]
        place = int((modality[:leaf] == modality[leaf]).sum())  # among the leaves of its modality
        if name == "video":
            _draw_clip(axis, batch.inputs[name].part(place), index, frames)
        elif name == "audio":
            bank = batch.inputs[name][place, 0].numpy()
            axis.imshow(bank, origin="lower", aspect="auto", cmap="magma", vmin=-3, vmax=3)
        else:
            tokens = batch.inputs[name].tokens[place]
            said = " ".join(words[token] for token in tokens[tokens != NOTHING])
            axis.text(0.5, 0.5, said or "(nothing is said)", ha="center", va="center", wrap=True, fontsize=10)
        labels = [
            factor.transformation.label(int(columns[factor.name][leaf]), tree.source)
            for factor in tree.composition.factors
        ]
        axis.set_title(", ".join(filter(None, labels)), fontsize=8, loc="left", pad=2)
        axis.set_axis_off()
    picture.suptitle(f"{title}: the leaves of video '{index.id[batch.plan.leaves.video[0]]}'", fontsize=9)
    return picture


def _draw_clip(axis: Axes, clip: Pixels, index: Index, frames: int) -> None:
    pixels = clip.floats()[0].permute(1, 2, 3, 0).numpy()
    shown = np.linspace(0, len(pixels) - 1, min(frames, len(pixels))).round().astype(int)
    coloured = pixels[shown] * index.statistics.pixel_std + index.statistics.pixel_mean
    strip = np.concatenate(list(np.pad(coloured, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=255)), 1)
    axis.imshow(np.clip(strip, 0, 255).astype(np.uint8))
