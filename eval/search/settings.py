"""Settings of the search over compositions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from gdt.common.errors import UserError, require_positive
from gdt.pipeline import presets

RECALL = "recall"
"""The metric that needs no labels."""


@dataclass(frozen=True)
class Search:
    """Try compositions of given factors, stop poor ones early, and test the best once; again: goes on."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "data": ("dataset", "shards", "word2vec"),
        "compositions": ("factors", "factors_from", "augmentations", "baseline", "trials"),
        "pretraining": ("size", "clips_per_step", "bn_group_size", "steps", "seed"),
        "evaluation": ("metric", "k", "query_split", "gallery_per_class", "clips", "looks"),
        "run": ("out", "jobs", "best"),
    }
    """Of `--help`, and the settings below them."""

    dataset: str = "synthetic"
    """Preprocessed data set with a split to search on."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    factors: tuple[str, ...] = ("time_shift:2,4", "modality", "time_reversal", "speed", "order(2)")
    """Factors to compose from, each not varied, invariant or distinctive, with the numbers of values that a batch may
    hold of it: time_shift:2,4 holds 2 or 4, and time_reversal all there are (2 where there is no end of them)."""
    factors_from: Path | None = None
    """Python file with transformations of your own, for --factors."""
    word2vec: Path | None = None
    """For factors with words: the file of word vectors with which the shards were made."""
    augmentations: tuple[int, ...] = (1, 2)
    """Numbers of augmentations, the last factor, that a batch may hold; compositions of one modality need 2."""
    baseline: str = "e"
    """Row of table 1, or another name of --preset help, that is the first trial and is tested beside the best."""
    trials: int = 30
    """Different compositions that are trained, those that are stopped early among them."""
    size: Literal["tiny", "paper"] = "tiny"
    """Size of networks and clips."""
    clips_per_step: int = 64
    """Video clips in a batch, the same for every composition: one with more leaves per video takes fewer videos."""
    bn_group_size: int | None = None
    """Leaves of one modality over which batch norm takes its statistics, as in pretraining; 0 is the whole batch."""
    steps: int = 300
    """Training steps of a trial that is not stopped."""
    seed: int = 0
    """Decides which compositions are drawn, and the training of each."""
    metric: str = RECALL
    """What compositions are compared by, on held-out videos: recall is recall across modalities, a mean over the
    directions, without labels; label, or the name of another column of labels, is retrieval of the same class."""
    k: Literal[1, 5] = 1
    """Nearest neighbours among which the right one has to be: R@1 or R@5."""
    query_split: str = "val"
    """Videos on which compositions are compared. The split test is used once, at the end."""
    gallery_per_class: int = 50
    """For a label: search so many training videos of each class, drawn at random; 0 for all."""
    clips: int = 3
    """Uniform clips per video that is evaluated, over which features are averaged."""
    looks: int = 4
    """Times that a trial is measured, evenly over its steps; it is stopped where even the upper end of its 95 %
    interval is below the median of at least five trials that came to their end."""
    jobs: int = 0
    """Trials at a time; 0 for one per GPU, or one single-threaded one per core."""
    out: Path | None = None
    """Folder of the runs and the tables; default runs/search-<dataset>."""
    best: int = 10
    """Lines of the table that is printed; the files have all trials."""

    def __post_init__(self) -> None:
        require_positive(self, "", "trials", "steps", "clips", "looks", "clips_per_step", "best")
        require_positive(self, "", "seed", "gallery_per_class", "jobs", least=0)
        if self.query_split in ("test", "train"):
            why = "which is for the one figure at the end" if self.query_split == "test" else "which is learned from"
            raise UserError(
                f"--query-split is {self.query_split}, {why}; search on another, val, that 'make preprocess' with "
                'ARGS="--val 0.1" sets apart'
            )
        if not self.factors:
            raise UserError("--factors is empty; name one or more of those that 'make pretrain FACTORS=help' lists")
        if min(self.augmentations, default=0) < 1 or len(set(self.augmentations)) < len(self.augmentations):
            raise UserError(
                f"--augmentations is {' '.join(map(str, self.augmentations)) or 'empty'}; it must be one or more "
                "different numbers, 1 or more"
            )
        if self.metric == RECALL and self.gallery_per_class != type(self).gallery_per_class:
            raise UserError("--gallery-per-class has no effect on recall across modalities; it is of labels")
        presets.preset(self.baseline)

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / f"search-{self.dataset}"

    @property
    def label(self) -> str:
        """The column of the labels; empty for recall across modalities."""
        return "" if self.metric == RECALL else self.metric
