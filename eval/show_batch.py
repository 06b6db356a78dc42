"""`gdt show-batch`: the leaves of one video of a batch as frames, spectrograms or text, with their relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from gdt.common.errors import UserError, format_range
from gdt.common.gpu import default_size
from gdt.eval.show_tree import NEGATIVE, POSITIVE, relations
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.shards.index import Index
from gdt.pipeline.tree import Tree
from gdt.preprocess.logmel import HOP, SAMPLE_RATE, corners
from gdt.train.settings import SIZES, Pretrain

if TYPE_CHECKING:  # slow to import, and --help needs only the settings
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gdt.pipeline.colour import Pixels
    from gdt.pipeline.loader import Batch

_MEL_RATE = SAMPLE_RATE // HOP
"""Log-mel rows per second."""
_TICKS_HERTZ = (250, 1000, 3000, 8000)
_ROW_INCHES = 1.5
_FRAMES = 8
"""Most frames shown of a clip."""


@dataclass(frozen=True)
class ShowBatch:
    """Draw all leaves of one video of a batch as a PNG."""

    dataset: str = ""
    """Preprocessed data set; default: that of --shards, else kinetics."""
    shards: Path | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    preset: str = "l"
    """Row of the paper's table 1, or another preset."""
    factors: str = ""
    """Composition, instead of a preset."""
    factors_from: Path | None = None
    """Python file with custom transformations."""
    word2vec: Path | None = None
    """word2vec file that the shards were made with; needed for text."""
    size: Literal["paper", "tiny"] | None = None
    """Size of the clips; default: paper with a GPU, else tiny."""
    batch: int = 0
    """Index of the batch in the first epoch."""
    seed: int = 0
    """Seed of the batches."""
    out: Path | None = None
    """The picture; default: runs/batch-<dataset>-<preset>.png."""

    def __post_init__(self) -> None:
        if self.out is not None and self.out.suffix != ".png":
            raise UserError(f"--out is {self.out}; its name must end in .png")


def show_batch(settings: ShowBatch) -> str:
    """Draw the leaves of a batch's first video: the network's inputs without normalisation; returns the file's name."""
    import torch

    from gdt.eval.drawing import save
    from gdt.pipeline.loader import Loader

    base = SIZES[settings.size or default_size()]
    train = Pretrain(
        dataset=settings.dataset, shards=settings.shards, preset=settings.preset, seed=settings.seed,
        factors=settings.factors, factors_from=settings.factors_from, word2vec=settings.word2vec,
        batch_size=2, clip=base.clip, augmentation=base.augmentation, loading=base.loading,
    )  # fmt: skip
    index = Index.open(train.shard_folder)
    tree = train.tree(index, print)
    if not 0 <= settings.batch < tree.batches_per_epoch:
        raise UserError(f"--batch is {settings.batch}; it must be 0 to {tree.batches_per_epoch - 1}")
    words = train.words(index)
    plans = [tree.plan(0, settings.batch)]
    with Loader(index, plans, train.clip, torch.device("cpu"), train.loading, words) as loader:
        title = "your factors" if settings.factors else f"preset {settings.preset}"
        picture = draw(next(iter(loader)), tree, index, title, words.words if words else ())
    path = settings.out or Path("runs") / f"batch-{train.dataset_name}-{train.short_name}.png"
    save(picture, path, dpi=130)
    return f"image: {path}"


def draw(batch: Batch, tree: Tree, index: Index, title: str, words: Sequence[str] = ()) -> Figure:
    """One row per leaf of the batch's first video: some of its frames, its spectrogram, or its text.

    Above each row: the leaf's values, and its positive and negative leaves; below: times in the video.
    """
    from matplotlib.figure import Figure

    from gdt.pipeline.sources.text import NOTHING

    leaves, described = batch.plan.leaves, describe_leaves(batch, tree)
    picture = Figure(figsize=(8, _ROW_INCHES * len(described)), layout="constrained")
    axes = picture.subplots(len(described), 1, squeeze=False)[:, 0]
    for axis, (leaf, (label, relation)) in zip(axes, described.items(), strict=True):
        name = MODALITIES[leaves.modality[leaf]]
        row = int((leaves.modality[:leaf] == leaves.modality[leaf]).sum())  # in the inputs of its modality
        if name == "video":
            seconds = (leaves.start[leaf] + leaves.frames[leaf]) / index.fps
            _draw_clip(axis, batch.inputs[name].part(row), index, seconds)
        elif name == "audio":
            seconds = (index.mel_position(leaves.start[leaf]) + leaves.mel_frames[leaf]) / _MEL_RATE
            _draw_sound(axis, batch.inputs[name][row, 0].cpu().numpy(), seconds)
        else:
            tokens = batch.inputs[name].tokens[row]
            text = " ".join(words[token] for token in tokens[tokens != NOTHING]) or "(no words)"
            axis.text(0.5, 0.5, text, ha="center", va="center", wrap=True, fontsize=10, parse_math=False)
            axis.set_axis_off()
        axis.set_title(label, fontsize=8, loc="left", pad=3, parse_math=False)
        axis.set_title(relation, fontsize=8, loc="right", pad=3, parse_math=False)
        axis.tick_params(length=2, labelsize=6, pad=1)
        axis.spines[:].set_visible(False)
    picture.suptitle(f"{title}: the leaves of video '{index.id[leaves.video[0]]}'", fontsize=9, parse_math=False)
    return picture


def describe_leaves(batch: Batch, tree: Tree) -> dict[int, tuple[str, str]]:
    """The values of every leaf of the batch's first video, and its positive and negative leaves, by row of the plan."""
    columns, video, factors = batch.plan.columns, batch.plan.leaves.video, tree.composition.factors
    leaves = np.flatnonzero(video == video[0])
    relation = relations(factors, {name: values[leaves] for name, values in columns.items()}, columns)
    usable = batch.table["usable"].cpu().numpy() > 0 if "usable" in batch.table else np.ones(len(video), bool)
    described = {}
    for leaf, row in zip(leaves.tolist(), relation, strict=True):
        values = [factor.transformation.label(int(columns[factor.name][leaf]), tree.source) for factor in factors]
        parts = [_partners(kind, usable & (row == kind), columns["leaf"], video) for kind in (POSITIVE, NEGATIVE)]
        label = f"leaf {columns['leaf'][leaf]}: {', '.join(filter(None, values))}"
        described[leaf] = label, "; ".join(filter(None, parts)) if usable[leaf] else "not in the loss"
    return described


def _partners(kind: str, chosen: np.ndarray, leaf: np.ndarray, video: np.ndarray) -> str:
    """Numbers of the chosen leaves of the first video, and their count in every other video."""
    first = video == video[0]
    parts = [", ".join(map(str, sorted(leaf[chosen & first].tolist())))]
    if counts := {int(chosen[video == other].sum()) for other in np.unique(video[~first])} - {0}:
        parts.append(f"{format_range(counts)} {'leaf' if counts == {1} else 'leaves'} of every other video")
    return f"{kind}: {' and '.join(filter(None, parts))}" if any(parts) else ""


def _draw_clip(axis: Axes, clip: Pixels, index: Index, seconds: np.ndarray) -> None:
    """Some frames, each with its time in the video, which decreases if time is reversed."""
    pixels = clip.floats()[0].permute(1, 2, 3, 0).cpu().numpy()
    shown = np.linspace(0, len(pixels) - 1, min(_FRAMES, len(pixels))).round().astype(int)
    coloured = pixels[shown] * index.statistics.pixel_std + index.statistics.pixel_mean
    strip = np.concatenate(list(np.pad(coloured, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=255)), 1)
    axis.imshow(np.clip(strip, 0, 255).astype(np.uint8))
    width = strip.shape[1] / len(shown)
    axis.set_xticks((np.arange(len(shown)) + 0.5) * width - 0.5, [f"{second:.2f} s" for second in seconds[shown]])
    axis.set_yticks([])


def _draw_sound(axis: Axes, bank: np.ndarray, seconds: np.ndarray) -> None:
    """A log-mel bank [bands, mel_frames], with times in the video and frequencies."""
    axis.imshow(bank, origin="lower", aspect="auto", cmap="magma", vmin=-3, vmax=3)
    columns = np.linspace(0, bank.shape[1] - 1, 9).round().astype(int)
    axis.set_xticks(columns, [f"{second:.2f} s" for second in seconds[columns]])
    peaks = corners()[1:-1]
    bands = np.searchsorted(peaks, _TICKS_HERTZ)
    axis.set_yticks(bands, [f"{peaks[band] / 1000:.1f} kHz" for band in bands])
