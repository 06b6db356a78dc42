"""Settings of the search over compositions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from gdt.common.errors import UserError, require_positive
from gdt.pipeline import presets

SEARCH = "search.json"
"""File in the folder of a search that holds its settings."""
RECALL = "recall"
"""The metric that needs no labels."""


@dataclass(frozen=True)
class Search:
    """Search for the best composition with Optuna. Run the same command again to resume."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "search": ("dataset", "factors", "metric", "trials", "steps", "baseline", "out", "jobs"),
        "advanced": ("shards", "size", "clips_per_step", "batch_size", "seed", "k", "query_split",
                     "looks", "clips", "factors_from"),
    }  # fmt: skip

    dataset: str = "synthetic"
    """Preprocessed data set with a split val."""
    shards: Path | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    factors: tuple[str, ...] = ("time_shift:2,4", "modality", "time_reversal", "speed", "order(2)")
    """Factors to compose; time_shift:2,4 tries K = 2 and 4."""
    factors_from: Path | None = None
    """Python file with custom transformations."""
    baseline: str = "e"
    """Preset of the first trial; also evaluated on test, next to the best."""
    trials: int = 30
    """Compositions to train."""
    size: Literal["tiny", "paper"] = "tiny"
    """Size of networks and clips."""
    clips_per_step: int = 0
    """Video clips per step of all trials; 0: 64, or fewer for few videos."""
    batch_size: int = 0
    """Videos per step, the same in all trials; 0: --clips-per-step."""
    steps: int = 300
    """Training steps per trial."""
    seed: int = 0
    """Seed of the sampler and of every training run."""
    metric: str = RECALL
    """A label column, or 'recall' between modalities."""
    k: Literal[1, 5] = 1
    """R@1 or R@5."""
    query_split: str = "val"
    """Split of the queries; neither test nor train."""
    clips: int = 3
    """Clips per evaluated video."""
    looks: int = 4
    """Evaluations per trial, at evenly spaced steps."""
    jobs: int = 0
    """Trials in parallel; 0: one per GPU, else per core."""
    out: Path | None = None
    """Folder of results; default: runs/search-<dataset>."""

    def __post_init__(self) -> None:
        require_positive(self, "", "trials", "steps", "clips", "looks")
        require_positive(self, "", "seed", "jobs", "batch_size", "clips_per_step", least=0)
        if self.batch_size and self.clips_per_step:
            raise UserError("--clips-per-step has no effect with --batch-size; remove one of them")
        if self.query_split in ("test", "train"):
            why = "which is kept for the end" if self.query_split == "test" else "which trials train on"
            raise UserError(
                f"--query-split is {self.query_split}, {why}; set it to another split, such as val, which "
                "'make preprocess' with VAL=0.1 creates"
            )
        if not self.factors:
            raise UserError(
                "--factors is empty; set it to one or more of those that 'make pretrain FACTORS=help' lists"
            )
        presets.preset(self.baseline, is_option=False)

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / f"search-{self.dataset}"

    @property
    def label(self) -> str:
        """The label column; empty for recall."""
        return "" if self.metric == RECALL else self.metric
