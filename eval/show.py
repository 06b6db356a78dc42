"""`gdt show-tree` and `gdt show-batch`: the leaves of a composition, as pairs that attract or repel, and as clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from tabulate import tabulate

from gdt.common.errors import UserError
from gdt.eval.drawing import STYLE, save
from gdt.eval.tables import format_range
from gdt.pipeline.composition import Composition, Factor, Table, Weight, contrast, weight
from gdt.pipeline.leaves import MODALITIES, Clip
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import Augment
from gdt.pipeline.transformations.base import Source
from gdt.pipeline.transformations.time_shift import TimeShift
from gdt.pipeline.tree import Tree
from gdt.preprocess.logmel import HOP, SAMPLE_RATE, corners
from gdt.train.gpu import default_size
from gdt.train.settings import SIZES, Pretrain

if TYPE_CHECKING:  # slow to import, and --help needs only the settings
    from gdt.pipeline.colour import Pixels
    from gdt.pipeline.loader import Batch

POSITIVE, NEGATIVE, IGNORED = "positive", "negative", "not compared"
_COLOURS = {POSITIVE: "#2b7bba", NEGATIVE: "#e08a3c", IGNORED: "#e4e4e4"}
_SECONDS, _FPS = 10, 30
"""Length and frame rate of the imaginary videos of a tree."""
_FRAMES = 8
"""Most frames shown of a clip."""
_HERTZ = (250, 1000, 3000, 8000)
"""Ticks of spectrograms."""


@dataclass(frozen=True, kw_only=True)
class _Show:
    preset: str = "l"
    """Row of the paper's table 1, or another preset."""
    factors: str = ""
    """Composition, instead of a preset."""
    factors_from: Path | None = None
    """Python file with custom transformations."""
    out: Path | None = None
    """The picture, .png, .svg or .pdf; default: in runs."""

    def __post_init__(self) -> None:
        if self.out is not None and self.out.suffix not in (".png", ".svg", ".pdf"):
            raise UserError(f"--out is {self.out}; its name must end in .png, .svg or .pdf")

    @property
    def title(self) -> str:
        return "your factors" if self.factors else f"preset {self.preset}"


@dataclass(frozen=True, kw_only=True)
class ShowTree(_Show):
    """Print and draw the leaves of two videos, and which pairs of them are positive and negative."""

    batch_size: int = 512
    """Batch size for which positives and negatives are counted."""


@dataclass(frozen=True, kw_only=True)
class ShowBatch(_Show):
    """Draw all leaves of one video of a batch, and which leaves they are compared with."""

    dataset: str = ""
    """Preprocessed data set; default: that of --shards, else kinetics."""
    shards: Path | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    word2vec: Path | None = None
    """word2vec file that the shards were made with; needed for text."""
    size: Literal["paper", "tiny"] | None = None
    """Size of the clips; default: paper with a GPU, else tiny."""
    seed: int = 0
    """Seed of the batch."""


def show_tree(settings: ShowTree) -> str:
    """Draw the pairs; returns the composition, its counts of pairs and the leaves as text."""
    train = Pretrain(
        preset=settings.preset, factors=settings.factors, factors_from=settings.factors_from,
        batch_size=settings.batch_size,
    )  # fmt: skip
    whole = train.composition
    two = toy(replace(train, batch_size=2).composition)
    columns = two.plan(0, 0).columns
    relation, cells = relations(whole.factors, columns, columns), labels(two, columns)
    path = settings.out or Path("runs") / f"tree-{train.short_name}.png"
    save(draw_tree(relation, cells, f"{settings.title}: the leaves of two videos of a batch"), path, dpi=130)
    kinds = [[factor.name, factor.k, _kind(factor)] for factor in whole.factors]
    rows = [
        # a tree: what is equal in the row above is not repeated
        [*("" if row[: n + 1] == above[: n + 1] else cell for n, cell in enumerate(row)), leaf, kind]
        for leaf, (row, above, kind) in enumerate(zip(cells, [[], *cells], ["", *relation[0, 1:]], strict=False))
    ]
    positives, negatives = partners(whole)
    return "\n".join([
        f"{settings.title}: {whole}", "", tabulate(kinds, ["factor", "K", "pairs"]), "",
        f"a batch of {whole.batch_size} videos holds {np.prod([f.k for f in whole.factors])} leaves; each has "
        f"{positives} positive and {negatives} negative leaves", "",
        tabulate(rows, [*(factor.name for factor in whole.factors), "leaf", "with leaf 0"]), "", f"image: {path}",
    ])  # fmt: skip


def toy(composition: Composition) -> Tree:
    """The tree over one batch of imaginary videos."""
    n, clip = composition.batch_size, Clip()
    starts = max(_SECONDS * _FPS - (clip.frames - 1) * clip.stride, composition.starts_needed)
    return Tree(composition, Source(np.arange(n), np.full(n, starts), _FPS), clip, bands=1)


def relations(factors: Sequence[Factor], rows: Table, columns: Table) -> np.ndarray:
    """Relations of the leaves of `rows` [n] to those of `columns` [m]: POSITIVE, NEGATIVE or IGNORED, str [n, m]."""
    c, w = (f(factors, rows, columns) for f in (contrast, weight))
    return np.where(w, np.where(c, POSITIVE, NEGATIVE), IGNORED)


def partners(composition: Composition) -> tuple[str, str]:
    """The numbers of positive and negative leaves of each leaf in a batch; ranges if leaves differ."""
    columns = toy(composition).plan(0, 0).columns
    own = {name: values[: len(columns["leaf"]) // composition.batch_size] for name, values in columns.items()}
    found = relations(composition.factors, own, columns)
    positives, negatives = (format_range((found == kind).sum(1).tolist()) for kind in (POSITIVE, NEGATIVE))
    return positives, negatives


def labels(tree: Tree, columns: Table) -> list[list[str]]:
    """The values of all factors, for each leaf; those without a label are numbered, or empty if K is 1."""
    found = []
    for factor in tree.composition.factors:
        values = columns[factor.name].tolist()
        number = {value: f"{factor.name} {k}" if factor.k > 1 else "" for k, value in enumerate(dict.fromkeys(values))}
        found.append([factor.transformation.label(value, tree.source) or number[value] for value in values])
    return [list(row) for row in zip(*found, strict=True)]


def _kind(factor: Factor) -> str:
    """What a factor does to pairs."""
    one = {TimeShift: "one random start per video", Augment: "drawn for every leaf"}
    only = ", only pairs that differ in it count" if factor.weight is Weight.DIFFERS else ""
    return f"{factor.contrast.value}{only}" if factor.k > 1 else one.get(type(factor.transformation), "not varied")


@rc_context(STYLE)
def draw_tree(relation: np.ndarray, cells: Sequence[Sequence[str]], title: str) -> Figure:
    """The relations of some leaves [n, n], with their labels on the left."""
    n = len(relation)
    side = max(3.0, min(0.28 * n, 60.0))
    figure = Figure(figsize=(side + 3.5, side + 1), layout="constrained")
    axes = figure.subplots()
    draw_pairs(axes, relation)
    axes.set_yticks(range(n), [f"{', '.join(filter(None, row))}   {leaf}" for leaf, row in enumerate(cells)])
    _finish(figure, title)
    return figure


def show_batch(settings: ShowBatch) -> str:
    """Draw the leaves of a batch's first video: the network's inputs without normalisation; returns the file's name."""
    import torch

    from gdt.pipeline.loader import Loader

    base = SIZES[settings.size or default_size()]
    train = Pretrain(
        dataset=settings.dataset, shards=settings.shards, preset=settings.preset, seed=settings.seed,
        factors=settings.factors, factors_from=settings.factors_from, word2vec=settings.word2vec,
        batch_size=2, clip=base.clip, augmentation=base.augmentation, loading=base.loading,
    )  # fmt: skip
    index = Index.open(train.shard_folder)
    tree, words = train.tree(index, print), train.words(index)
    with Loader(index, [tree.plan(0, 0)], train.clip, torch.device("cpu"), train.loading, words) as loader:
        picture = draw_batch(next(iter(loader)), tree, index, settings.title, words.words if words else ())
    path = settings.out or Path("runs") / f"batch-{train.dataset_name}-{train.short_name}.png"
    save(picture, path, dpi=130)
    return f"image: {path}"


@rc_context(STYLE)
def draw_batch(batch: Batch, tree: Tree, index: Index, title: str, words: Sequence[str] = ()) -> Figure:
    """A row per leaf of the batch's first video: its clip, and its relations to all leaves of the batch."""
    plan, order = batch.plan, np.argsort(batch.plan.columns["leaf"])
    columns = {name: values[order] for name, values in plan.columns.items()}
    mine = np.flatnonzero(plan.leaves.video[order] == plan.leaves.video[0])
    own = {name: values[mine] for name, values in columns.items()}
    relation = relations(tree.composition.factors, own, columns)
    if "usable" in batch.table:  # captions without known words are not in the loss
        usable = batch.table["usable"].cpu().numpy()[order] > 0
        relation[~(usable[mine, None] & usable)] = IGNORED
    figure = Figure(figsize=(12, 1.5 * len(mine) + 0.5), layout="constrained")
    grid = figure.subplots(len(mine), 2, squeeze=False, width_ratios=(2, 1))
    for (clip, pairs), leaf, row, (_, *cells) in zip(grid, mine, relation, labels(tree, own), strict=True):
        _draw_leaf(clip, batch, int(order[leaf]), index, words)
        clip.set_title(f"leaf {leaf}: {', '.join(filter(None, cells))}", loc="left", pad=3)
        draw_pairs(pairs, row[None])
        pairs.set_yticks([0], [f"leaf {leaf}"])
    _finish(figure, f"{title}: the leaves of video '{index.id[plan.leaves.video[0]]}'")
    return figure


def draw_pairs(axes: Axes, relation: np.ndarray) -> None:
    """Relations [n, m] as squares, a column per leaf of the batch."""
    colours = np.array([to_rgb(_COLOURS[kind]) for kind in relation.flat])
    axes.imshow(colours.reshape(*relation.shape, 3))
    for edges, line in zip(relation.shape, (axes.axhline, axes.axvline), strict=True):
        for edge in range(1, edges):
            line(edge - 0.5, color="white", linewidth=1)
    axes.set_xticks(range(relation.shape[1]))
    axes.tick_params(length=0, labelsize=7)


def _finish(figure: Figure, title: str) -> None:
    """A title, and what the colours of pairs mean."""
    figure.suptitle(title)
    for axes in figure.axes:
        axes.spines[:].set_visible(False)
    squares = [Patch(color=colour, label=kind) for kind, colour in _COLOURS.items()]
    figure.legend(handles=squares, loc="outside lower center", ncols=3)


def _draw_leaf(axes: Axes, batch: Batch, leaf: int, index: Index, words: Sequence[str]) -> None:
    """Some frames, the spectrogram or the text of a leaf, with times in the video."""
    from gdt.pipeline.sources.text import NOTHING

    leaves = batch.plan.leaves
    name = MODALITIES[leaves.modality[leaf]]
    row = int((leaves.modality[:leaf] == leaves.modality[leaf]).sum())  # in the inputs of its modality
    axes.tick_params(length=2, labelsize=6, pad=1)
    if name == "video":
        seconds = (leaves.start[leaf] + leaves.frames[leaf]) / index.fps
        _draw_clip(axes, batch.inputs[name].part(row), index, seconds)
    elif name == "audio":
        seconds = (index.mel_position(leaves.start[leaf]) + leaves.mel_frames[leaf]) * HOP / SAMPLE_RATE
        _draw_sound(axes, batch.inputs[name][row, 0].cpu().numpy(), seconds)
    else:
        tokens = batch.inputs[name].tokens[row]
        text = " ".join(words[token] for token in tokens[tokens != NOTHING]) or "(no words)"
        axes.text(0.5, 0.5, text, ha="center", va="center", wrap=True)
        axes.set_axis_off()


def _draw_clip(axes: Axes, clip: Pixels, index: Index, seconds: np.ndarray) -> None:
    """Some frames, each with its time in the video, which decreases if time is reversed."""
    pixels = clip.floats()[0].permute(1, 2, 3, 0).cpu().numpy()
    shown = np.linspace(0, len(pixels) - 1, min(_FRAMES, len(pixels))).round().astype(int)
    coloured = pixels[shown] * index.statistics.pixel_std + index.statistics.pixel_mean
    strip = np.concatenate(list(np.pad(coloured, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=255)), 1)
    axes.imshow(np.clip(strip, 0, 255).astype(np.uint8))
    width = strip.shape[1] / len(shown)
    axes.set_xticks((np.arange(len(shown)) + 0.5) * width - 0.5, [f"{second:.2f} s" for second in seconds[shown]])
    axes.set_yticks([])


def _draw_sound(axes: Axes, bank: np.ndarray, seconds: np.ndarray) -> None:
    """A log-mel bank [bands, mel_frames], with times in the video and frequencies."""
    axes.imshow(bank, origin="lower", aspect="auto", cmap="magma", vmin=-3, vmax=3)
    columns = np.linspace(0, bank.shape[1] - 1, 9).round().astype(int)
    axes.set_xticks(columns, [f"{second:.2f} s" for second in seconds[columns]])
    peaks = corners()[1:-1]
    bands = np.searchsorted(peaks, _HERTZ)
    axes.set_yticks(bands, [f"{peaks[band] / 1000:.1f} kHz" for band in bands])
