"""Which videos are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.subjects import held_out
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import Index
from gdt.studies.figures.settings import Figures

_FEWEST = 3
"""Videos below which there are no numbers."""


@dataclass(frozen=True)
class Chosen:
    """Rows of the index, int64, ascending; all offer as many different starts as there are clips."""

    spread: np.ndarray
    """Whose clips' deviations are looked at: [n]."""
    shown: np.ndarray
    """That are drawn on planes: [m]."""
    of_class: str
    """Of all `shown`; empty where they are drawn from all videos."""
    too_short: int
    """Videos of the split that are left out."""
    apart: float
    """Seconds from the start of a clip to that of the next one, median over `spread`."""

    def on_planes(self, index: Index) -> str:
        """Those, in words."""
        if self.of_class:
            return f"{len(self.shown)} videos of the class '{self.of_class}'"
        labelled = bool((index.label[self.videos] != "").any())
        why = "no class has two of the videos" if labelled else "the videos have no labels"
        return f"{len(self.shown)} videos drawn from all, as {why}"

    @property
    def videos(self) -> np.ndarray:
        """All of them."""
        return np.union1d(self.spread, self.shown)


def chosen(index: Index, split: str, clips: Sequence[Clip], settings: Figures) -> Chosen:
    """Videos of a held-out split, drawn at random, with room for the clips of every model.

    The index has the labels that count. Raises UserError where there are too few.
    """
    every = held_out(index, split).queries
    starts = np.min([index.start_counts(clip.frames, clip.stride) for clip in clips], axis=0)
    long_enough = every[starts[every] >= settings.clips]
    if len(long_enough) < _FEWEST:
        raise UserError(
            f"{len(long_enough)} of the {len(every)} videos of the split '{split}' are long enough for "
            f"{settings.clips} clips with different starts, and {_FEWEST} are needed; set --clips lower, or --split to "
            "another"
        )
    order = np.random.default_rng(settings.seed).permutation(long_enough)
    spread = np.sort(order[: settings.videos])
    of_class = _class(index, order, split, settings)
    shown = np.sort((order[index.label[order] == of_class] if of_class else order)[: settings.shown])
    gap = float(np.median(starts[spread] - 1)) / (settings.clips - 1) / index.fps
    return Chosen(spread, shown, of_class, len(every) - len(long_enough), gap)


def _class(index: Index, videos: np.ndarray, split: str, settings: Figures) -> str:
    """The one that was asked for, or has the most of the videos; "" where none has two."""
    counts = Counter(sorted(label for label in map(str, index.label[videos]) if label))
    if not settings.of_class:
        name, most = counts.most_common(1)[0] if counts else ("", 0)
        return name if most > 1 else ""
    if (n := counts[settings.of_class]) < 2:
        there = ", ".join(name for name, many in counts.items() if many > 1) or "none"
        raise UserError(
            f"--of-class is '{settings.of_class}', which {n} of the {len(videos)} videos of the "
            f"split '{split}' are of; two are needed, and the classes that have them are {there}"
        )
    return settings.of_class
