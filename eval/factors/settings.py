"""Settings of `gdt factors`."""

from dataclasses import dataclass
from pathlib import Path

from gdt.common.commandline import Location
from gdt.common.errors import require_range
from gdt.common.folders import Folder
from gdt.pipeline.shards.index import require_index
from gdt.train.models.network import ReadsWeights
from gdt.train.run import require_weights

PROBE_FOLDS = 5
"""Folds of the probe's cross-validation over videos."""


@dataclass(frozen=True)
class Factors(ReadsWeights):
    """Measure how far each factor moves the features, and how well a linear probe reads it off them."""

    ckpt: tuple[str, ...] = ()
    """Checkpoints or external weights, compared in a table; default: the latest in runs."""
    dataset: str = ""
    """Preprocessed data set; default: that of the first checkpoint."""
    shards: Location | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    split: str = ""
    """Split to measure on; default: test, or val if there is no test split."""
    videos: int = 100
    """Videos to measure on; more give narrower intervals."""
    factors_from: Path | None = None
    """Python file with custom transformations, to measure them, too."""
    out: Path | None = None
    """Folder of results; default: runs/factors-<dataset>."""

    def __post_init__(self) -> None:
        require_range(self, "videos", least=PROBE_FOLDS, why="at least one per fold of the probe's cross-validation")

    def require_inputs(self) -> None:
        """Raise UserError if weights or shards are missing."""
        require_weights(self.ckpt)
        if self.shards:
            require_index(Folder(self.shards))
