"""`gdt show-tree`: the sampling tree of a composition, and its positive and negative pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gdt.common.errors import UserError, format_range
from gdt.pipeline.composition import Composition, Contrast, Factor, Table, Weight, contrast, weight
from gdt.pipeline.leaves import Clip
from gdt.pipeline.transformations.augmentation import Augment
from gdt.pipeline.transformations.base import Source
from gdt.pipeline.transformations.time_shift import TimeShift
from gdt.pipeline.tree import Tree
from gdt.train.settings import Pretrain

if TYPE_CHECKING:  # slow to import, and --help needs only the settings
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POSITIVE, NEGATIVE, IGNORED = "positive", "negative", "not compared"
_COLOURS = {POSITIVE: "#2b7bba", NEGATIVE: "#e08a3c", IGNORED: "#e4e4e4"}
_SECONDS, _FPS = 10, 30
"""Length and frame rate of the imaginary videos."""
_MAX_LEAVES = 256
"""Maximum number of leaves in a legible picture."""


@dataclass(frozen=True)
class ShowTree:
    """Print and draw the sampling tree of a composition, with its positive and negative pairs."""

    preset: str = "l"
    """Row of the paper's table 1, or another preset."""
    factors: str = ""
    """Composition, instead of a preset."""
    batch_size: int = 512
    """Batch size for which positives and negatives are counted."""
    videos: int = 2
    """Videos to draw."""
    out: Path | None = None
    """The picture, .png, .svg or .pdf; default: runs/tree-<preset>.png."""
    factors_from: Path | None = None
    """Python file with custom transformations."""

    def __post_init__(self) -> None:
        if self.out is not None and self.out.suffix not in (".png", ".svg", ".pdf"):
            raise UserError(f"--out is {self.out}; its name must end in .png, .svg or .pdf")


def show_tree(settings: ShowTree) -> str:
    """Draw the tree; returns it as text, with the path of the picture."""
    from gdt.eval.drawing import save

    train = Pretrain(
        preset=settings.preset, factors=settings.factors, factors_from=settings.factors_from,
        batch_size=settings.batch_size,
    )  # fmt: skip
    batch = train.composition
    first, *others = batch.factors
    drawing = TreeDrawing(Composition((replace(first, k=settings.videos), *others)))
    if drawing.n > _MAX_LEAVES:
        raise UserError(f"the picture would have {drawing.n} leaves, more than {_MAX_LEAVES}; lower --videos or a K")
    title = "your factors" if settings.factors else f"preset {settings.preset}"
    path = settings.out or Path("runs") / f"tree-{train.short_name}.png"
    save(drawing.picture(f"{title}: {settings.videos} of {batch.batch_size} videos of a batch"), path, dpi=130)
    positives, negatives = partners(batch)
    return "\n".join([
        f"{title}: {batch}", "", *map(_describe, batch.factors), "",
        f"a batch of {batch.batch_size} videos holds {np.prod([f.k for f in batch.factors])} leaves; each has "
        f"{positives} positive and {negatives} negative leaves", "",
        f"example tree of {settings.videos} videos of {_SECONDS} s; right column: the pair with leaf 0", "",
        *drawing.lines(), "", f"image: {path}",
    ])  # fmt: skip


def partners(composition: Composition) -> tuple[str, str]:
    """The numbers of positive and negative leaves of each leaf in a batch; ranges if leaves differ."""
    columns = toy(composition).plan(0, 0).columns
    own = {name: values[: len(columns["leaf"]) // composition.batch_size] for name, values in columns.items()}
    c, w = (f(composition.factors, own, columns) for f in (contrast, weight))
    counted = ((c & w).sum(1), (~c & w).sum(1))
    positives, negatives = (format_range(each.tolist()) for each in counted)
    return positives, negatives


def relations(factors: Sequence[Factor], rows: Table, columns: Table) -> np.ndarray:
    """Relations of the leaves of `rows` [n] to those of `columns` [m]: POSITIVE, NEGATIVE or IGNORED, str [n, m]."""
    c, w = (f(factors, rows, columns) for f in (contrast, weight))
    return np.where(w, np.where(c, POSITIVE, NEGATIVE), IGNORED)


def toy(composition: Composition) -> Tree:
    """The tree over one batch of imaginary videos."""
    n = composition.batch_size
    clip = Clip()
    starts = max(_SECONDS * _FPS - (clip.frames - 1) * clip.stride, composition.starts_needed)
    return Tree(composition, Source(np.arange(n), np.full(n, starts), _FPS), clip, bands=1)


_ONE_VALUE = {TimeShift: "one random start per video", Augment: "drawn for every leaf"}
"""The meaning of K = 1 for factors that it does not keep constant."""


def _describe(factor: Factor) -> str:
    kind = factor.contrast.value if factor.k > 1 else _ONE_VALUE.get(type(factor.transformation), "not varied")
    if factor.k == 1 and factor.contrast is Contrast.DISTINCTIVE:
        kind += "; distinctive has no effect with K = 1"
    only = ", only pairs that differ in it count" if factor.weight is Weight.DIFFERS else ""
    return f"  {factor.name:14}  K = {factor.k:<4}  {kind}{only}"


class TreeDrawing:
    """A tree of a few videos, level by level."""

    def __init__(self, composition: Composition) -> None:
        tree = toy(composition)
        columns = tree.plan(0, 0).columns
        self.factors = [factor for factor in composition.factors if factor.k > 1]
        self.n = len(columns["leaf"])
        self.relation = relations(composition.factors, columns, columns)
        """Between leaves: str [n, n]."""
        self._labels: list[list[str]] = []
        """Per level and leaf."""
        for factor in self.factors:
            values = columns[factor.name].tolist()
            number = {value: k for k, value in enumerate(dict.fromkeys(values))}
            label = factor.transformation.label
            self._labels.append([label(value, tree.source) or f"{factor.name} {number[value]}" for value in values])

    def leaves_below(self, level: int) -> int:
        """Leaves per branch of a level."""
        return int(np.prod([factor.k for factor in self.factors[level + 1 :]], dtype=int))

    def _branches(self) -> Iterator[tuple[int, int, str]]:
        """Level, first leaf and label of every branch, each followed by those below it."""
        for leaf in range(self.n):
            for level, labels in enumerate(self._labels):
                if leaf % self.leaves_below(level) == 0:
                    yield level, leaf, labels[leaf]

    def lines(self) -> list[str]:
        """One line per branch; lines of leaves also have the leaf's number and its relation to leaf 0."""
        lines = []
        for level, leaf, label in self._branches():
            is_last = [(leaf // self.leaves_below(k) + 1) % factor.k == 0 for k, factor in enumerate(self.factors)]
            stems = "".join("  " if last else "│ " for last in is_last[1:level])
            line = stems + ("" if level == 0 else "└ " if is_last[level] else "├ ") + label
            if level == len(self.factors) - 1:
                line = f"{line:44}  leaf {leaf:<3}  {self.relation[0, leaf] if leaf else ''}".rstrip()
            lines.append(line)
        return lines

    def picture(self, title: str) -> Figure:
        """The tree, one row per leaf, next to the matrix of relations."""
        from matplotlib.figure import Figure

        height = max(3.0, 0.28 * self.n + 1.2)
        figure = Figure(figsize=(2.2 + 1.7 * len(self.factors) + height - 1, height), layout="constrained")
        tree, matrix = figure.subplots(1, 2, width_ratios=(1.5 * len(self.factors), height - 1))
        self._draw_tree(tree)
        for name, colour in _COLOURS.items():
            rows, columns = np.nonzero(self.relation == name)
            matrix.scatter(columns, rows, s=150, c=colour, marker="s", linewidths=0, label=name)
        matrix.set(xlim=(-0.6, self.n - 0.4), ylim=tree.get_ylim())  # rows next to their leaves
        matrix.set_axis_off()
        matrix.text(-0.5, -1.4, "pairs of leaves (rows and columns: the leaves on the left)", fontsize=8, va="bottom")
        matrix.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, fontsize=8, frameon=False)
        figure.suptitle(title, fontsize=11)
        return figure

    def _draw_tree(self, axes: Axes) -> None:
        def middle(level: int, leaf: int) -> float:
            """Height of the branch of a leaf."""
            below = self.leaves_below(level)
            return leaf // below * below + (below - 1) / 2

        for level, leaf, label in self._branches():
            y = middle(level, leaf)
            if level:
                above = middle(level - 1, leaf)
                x = [level - 0.45, level - 0.3, level - 0.3, level - 0.2]
                axes.plot(x, [above, above, y, y], color="#999999", linewidth=0.8)
            axes.text(level - 0.18, y, label, fontsize=8, va="center")
        for level, factor in enumerate(self.factors):
            count = f", K = {factor.k}" if level else ""  # videos are drawn in part
            head = f"{factor.name}\n{factor.contrast.value}{count}"
            axes.text(level - 0.18, -1.4, head, fontsize=8, va="bottom", color="#444444", style="italic")
        axes.set(xlim=(-0.25, len(self.factors) - 0.2), ylim=(self.n - 0.4, -1.6))
        axes.set_axis_off()
