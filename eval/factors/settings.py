"""Settings of the test of factors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gdt.common.errors import UserError, require_positive
from gdt.eval.of_run import OfRun


@dataclass(frozen=True)
class Factors(OfRun):
    """Test which factors the features encode, against the composition's promises.

    A composition promises embeddings that encode its distinctive factors and ignore its invariant ones.
    """

    ckpt: tuple[Path, ...] = ()
    """Checkpoints or external weights, a table each; default: that of one run."""
    dataset: str = ""
    """Preprocessed data set; default: that of the first checkpoint."""
    shards: Path | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    split: str = ""
    """Split to test on; default: test, or val if there is no test split."""
    videos: int = 100
    """Videos to test on; more give narrower intervals."""
    starts: int = 3
    """Clips per video; time_shift: per third of it; video: always 2."""
    draws: int = 4
    """Number of augmentations, the same for all videos."""
    cv_folds: int = 5
    """Folds of the probe's cross-validation over videos."""
    probe_c: float = 0.1
    """Inverse strength of L2 regularisation of the probe."""
    seed: int = 0
    """Seed of videos, folds and augmentation draws."""
    out: Path | None = None
    """Folder of results; default: runs/factors-<dataset>."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "", "starts")
        require_positive(
            self, "", "cv_folds", least=2, why="because probes are tested on videos that they were not trained on"
        )
        require_positive(self, "", "draws", least=2, why="because a probe must tell at least two draws apart")
        require_positive(
            self,
            "",
            "videos",
            least=self.min_videos,
            why="at least one per fold of cross-validation (--cv-folds), and 3 for distances between videos",
        )
        if not 0 < self.probe_c < float("inf"):
            raise UserError(f"--probe-c is {self.probe_c}; it must be above 0")
        require_positive(self, "", "seed", least=0)

    @property
    def min_videos(self) -> int:
        return max(3, self.cv_folds)
