"""`gdt show-tree` and `gdt show-batch`: the leaves of a composition, as pairs that attract or repel, and as clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tabulate import tabulate

from gdt.eval.drawing import STYLE, save
from gdt.eval.settings import ShowBatch, ShowTree
from gdt.pipeline.composition import Columns, Composition, Factor, Weight, contrast, weight
from gdt.pipeline.leaves import MODALITIES, Clip
from gdt.pipeline.notation import read_transformations, without_batch_size
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import MEL_RATE
from gdt.pipeline.transformations.augmentation import Augment
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.transformations.time_shift import TimeShift
from gdt.pipeline.tree import Tree
from gdt.train.experiment import compose, resolve
from gdt.train.gpu import default_size
from gdt.train.settings import SIZES, Pretrain

if TYPE_CHECKING:  # slow to import, and a tree needs no torch
    from gdt.pipeline.loader import Batch

POSITIVE = "+"
NEGATIVE = "-"
IGNORED = "."
_FPS = 30
_LENGTH = 10 * _FPS
"""Frame rate and frames of the imaginary videos of a tree."""
_FRAMES = 8
"""Most frames shown of a clip."""


def show_tree(settings: ShowTree) -> str:
    """The composition, the leaves of two videos with all their pairs, and counts of pairs in a batch, as text."""
    known, _ = read_transformations(settings.factors_from)
    asked = Pretrain(preset=settings.preset, factors=settings.factors, batch_size=settings.batch_size)
    composition = compose(asked, known)
    factors = composition.factors
    two = toy(compose(replace(asked, factors=without_batch_size(settings.factors), batch_size=2), known))
    columns = two.plan(0, 0).columns
    pairs = map("".join, relations(factors, columns, columns))
    cells = [", ".join(filter(None, row)) for row in labels(two, columns)]
    rows = list(zip(range(len(cells)), cells, pairs, strict=True))
    leaves = toy(composition).plan(0, 0).columns
    partners = relations(factors, {name: values[:1] for name, values in leaves.items()}, leaves)[0].tolist()
    return (
        f"{settings.title}: {composition}\n\n"
        f"{tabulate([[factor.name, factor.k, _kind(factor)] for factor in factors], ['factor', 'K', 'pairs'])}\n\n"
        f"{tabulate(rows, ['leaf', 'of two videos', 'with each leaf'], disable_numparse=True)}\n"
        f"{POSITIVE} positive, {NEGATIVE} negative, {IGNORED} not compared\n\n"
        f"a batch of {composition.batch_size} videos holds {len(partners)} leaves; each has {partners.count(POSITIVE)} "
        f"positive and {partners.count(NEGATIVE)} negative leaves"
    )


def toy(composition: Composition) -> Tree:
    """The tree over one batch of imaginary videos."""
    n = composition.batch_size
    clip = Clip()
    starts = max(_LENGTH - (clip.frames - 1) * clip.stride, composition.starts_needed)
    return Tree(composition, VideoPool(np.arange(n), np.full(n, starts), _FPS), clip, bands=1)


def relations(factors: Sequence[Factor], rows: Columns, columns: Columns) -> np.ndarray:
    """Relations of the leaves of `rows` [n] to those of `columns` [m]: POSITIVE, NEGATIVE or IGNORED, str [n, m]."""
    attract = contrast(factors, rows, columns)
    return np.where(weight(factors, rows, columns), np.where(attract, POSITIVE, NEGATIVE), IGNORED)


def labels(tree: Tree, columns: Columns) -> list[list[str]]:
    """The values of all factors, for each leaf; those without a label are numbered, or empty if K is 1."""
    by_factor = []
    for factor in tree.composition.factors:
        values = columns[factor.name].tolist()
        number = {value: f"{factor.name} {k}" if factor.k > 1 else "" for k, value in enumerate(dict.fromkeys(values))}
        by_factor.append([factor.transformation.label(value, tree.pool) or number[value] for value in values])
    return [list(row) for row in zip(*by_factor, strict=True)]


def _kind(factor: Factor) -> str:
    """What a factor does to pairs."""
    if factor.k == 1:
        drawn = {TimeShift: "one random start per video", Augment: "drawn for every leaf"}
        return drawn.get(type(factor.transformation), "not varied")
    only = ", only pairs that differ in it count" if factor.weight is Weight.DIFFERS else ""
    return f"{factor.contrast.value}{only}"


def show_batch(settings: ShowBatch) -> str:
    """Draw the leaves of a batch's first video: the network's inputs without normalisation; returns the file's name."""
    import torch

    from gdt.pipeline.loader import Loader

    sized = SIZES[settings.size or default_size()]
    train = replace(
        sized,
        preset=sized.preset if settings.factors else settings.preset,
        factors=without_batch_size(settings.factors),
        factors_from=settings.factors_from,
        dataset=settings.dataset,
        shards=settings.shards,
        seed=settings.seed,
        word2vec=settings.word2vec,
        batch_size=2,
        group_size=0,
    )
    device = torch.device("cpu")
    index = Index.open(train.shard_folder)
    experiment = resolve(train, index, device, say=lambda _, text: print(text))
    tree = experiment.tree
    words = experiment.words
    plans = [tree.plan(0, 0)]
    with Loader(index, plans, experiment.inputs, device, train.loading, words) as loader:
        picture = draw_batch(next(iter(loader)), tree, index, settings.title, words.words if words else ())
    path = settings.out or Path("runs") / f"batch-{train.dataset_name}-{train.short_name}.png"
    save(picture, path)
    return f"image: {path}"


@rc_context(STYLE)
def draw_batch(batch: Batch, tree: Tree, index: Index, title: str, words: Sequence[str] = ()) -> Figure:
    """The clip of each leaf of the batch's first video."""
    columns = batch.plan.columns
    video = batch.plan.leaves.video
    mine = np.flatnonzero(video == video[0])
    mine = mine[np.argsort(columns["leaf"][mine])]
    cells = labels(tree, {name: values[mine] for name, values in columns.items()})
    figure = Figure(figsize=(8, 1.5 * len(mine) + 0.5), layout="constrained")
    rows = figure.subplots(len(mine), squeeze=False)[:, 0]
    for axes, place, (_, *values) in zip(rows, mine, cells, strict=True):
        _draw_leaf(axes, batch, int(place), index, words)
        axes.set_title(f"leaf {columns['leaf'][place]}: {', '.join(filter(None, values))}", loc="left", pad=3)
        axes.spines[:].set_visible(False)
    figure.suptitle(f"{title}: the leaves of video '{index.id[video[0]]}'")
    return figure


def _draw_leaf(axes: Axes, batch: Batch, leaf: int, index: Index, words: Sequence[str]) -> None:
    """Some frames, the spectrogram or the text of a leaf, with times in the video, which decrease if it is reversed."""
    from gdt.pipeline.sources.text import NOTHING

    leaves = batch.plan.leaves
    name = MODALITIES[leaves.modality[leaf]]
    row = int((leaves.modality[:leaf] == leaves.modality[leaf]).sum())  # in the inputs of its modality
    inputs = batch.inputs[name]
    if name == "text":
        tokens = inputs.tokens[row]
        text = " ".join(words[token] for token in tokens[tokens != NOTHING]) or "(no words)"
        axes.text(0.5, 0.5, text, ha="center", va="center", wrap=True)
        axes.set_axis_off()
        return
    if name == "video":
        seconds = (leaves.start[leaf] + leaves.frames[leaf]) / index.fps
        shown = np.linspace(0, len(seconds) - 1, min(_FRAMES, len(seconds))).round().astype(int)
        pixels = inputs[row : row + 1].floats()[0].permute(1, 2, 3, 0).cpu().numpy()[shown]
        coloured = pixels * index.statistics.pixel_std + index.statistics.pixel_mean
        framed = np.pad(coloured, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=255)
        strip = np.concatenate([*framed], 1)
        axes.imshow(np.clip(strip, 0, 255).astype(np.uint8))
        places = (np.arange(len(shown)) + 0.5) * strip.shape[1] / len(shown) - 0.5
    else:
        seconds = (index.mel_position(leaves.start[leaf]) + leaves.mel_frames[leaf]) / MEL_RATE
        shown = np.linspace(0, len(seconds) - 1, 9).round().astype(int)
        places = shown
        axes.imshow(inputs[row, 0].cpu().numpy(), origin="lower", aspect="auto", cmap="magma", vmin=-3, vmax=3)
    axes.set_xticks(places, [f"{second:.2f} s" for second in seconds[shown]])
    axes.set_yticks([])
    axes.tick_params(length=2, labelsize=6, pad=1)
