"""Settings of the ablation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gdt.common.commandline import Location
from gdt.common.errors import UserError, require_range
from gdt.eval.settings import FrozenName
from gdt.pipeline.shards.naming import dataset_name
from gdt.train.gpu import Size
from gdt.train.models.network import ReadsWeights


@dataclass(frozen=True)
class Ablation(ReadsWeights):
    """Pretrain compositions and compare their features. Run the same command again to resume, or to add rows."""

    dataset: str = ""
    """Preprocessed data set with splits train and test; default: that of --shards, else kinetics."""
    shards: Location | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    rows: tuple[str, ...] = ("a", "e", "l")
    """Presets or quoted compositions."""
    factors_from: Path | None = None
    """Python file with custom transformations."""
    word2vec: Path | None = None
    """word2vec file that the shards were made with; needed for text."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; one run per row and seed."""
    size: Size | None = None
    """Size of networks, clips and schedule; default: paper with a GPU, else small."""
    equal: tuple[Literal["videos", "compute"], ...] = ("videos",)
    """What rows share besides the videos per step: steps, compute (cheap rows get more steps), or both."""
    batch_size: int = 0
    """Videos per step; 0: as --size, or fewer."""
    group_size: int | None = None
    """Videos of a group, as for gdt pretrain."""
    steps: int = 0
    """Training steps (--equal compute: of row l); 0: those of --size."""
    lr: float = 0.0
    """Learning rate of all rows, as for gdt pretrain; 0: that of --size."""
    label: str = ""
    """Label columns, such as label,weather; default: the classes."""
    protocols: tuple[FrozenName, ...] = ()
    """Protocols of 'gdt evaluate'; default: retrieval few-shot, or cross-modal without labels."""
    query_split: str = "test"
    """Split of the queries; val while you tune, test for the final number."""
    clips: int = 10
    """Clips per evaluated video."""
    jobs: int = 0
    """Runs in parallel; 0: one per GPU, else per core."""
    out: Path | None = None
    """Folder of results; default: runs/ablation-<dataset>."""

    def __post_init__(self) -> None:
        dataset_name(self.dataset, self.shards)  # validates
        require_range(self, "jobs", "batch_size", "steps", "lr", least=0)
        for name in ("rows", "seeds", "equal"):
            if not getattr(self, name):
                raise UserError(f"--{name} is empty; give one or more, or leave it out")

    @property
    def dataset_name(self) -> str:
        return dataset_name(self.dataset, self.shards)

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / f"ablation-{self.dataset_name}"

    @property
    def kept_factors(self) -> Path | None:
        """The copy of the Python file that the runs read; None without one."""
        return self.folder / "factors.py" if self.factors_from else None
