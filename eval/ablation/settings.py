"""Settings of the ablation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gdt.common.errors import UserError, require_positive
from gdt.pipeline import notation, presets
from gdt.pipeline.composition import Composition
from gdt.pipeline.shards.layout import dataset_name

RECALL = "recall"
"""Label column that stands for recall between modalities."""
CLIPS_PER_STEP = 64
"""Video clips per step if neither the option nor few videos decide."""


@dataclass(frozen=True)
class Ablation:
    """Pretrain compositions and compare their features. Run the same command again to resume."""

    dataset: str = ""
    """Preprocessed data set with splits train and test; default: that of --shards, else kinetics."""
    shards: Path | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    rows: tuple[str, ...] = ("a", "e", "l")
    """Presets or quoted compositions."""
    factors_from: Path | None = None
    """Python file with custom transformations."""
    word2vec: Path | None = None
    """word2vec file that the shards were made with; needed for text."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; one run per row and seed."""
    size: Literal["paper", "tiny"] | None = None
    """Size of networks, clips and schedule; default: paper with a GPU, else tiny."""
    equal: Literal["videos", "clips", "compute"] = "videos"
    """What rows share: videos, clips, or compute (cheap rows get more steps)."""
    batch_size: int = 0
    """Videos per step (--equal videos, compute); 0: as --size, or fewer."""
    clips_per_step: int = 0
    """Video clips per step (--equal clips); 0: 64, or fewer for few videos."""
    group_size: int | None = None
    """Videos of a group, as for gdt pretrain."""
    steps: int = 0
    """Training steps (--equal compute: of row l); 0: those of --size."""
    label: str = ""
    """Label columns, such as label,weather, or 'recall'; default: all."""
    protocols: tuple[Literal["retrieval", "few-shot", "linear"], ...] = ("retrieval", "few-shot")
    """Protocols of 'gdt evaluate', for label columns."""
    gallery_split: str = ""
    """Split of the gallery; default: train, or val if train has no labels."""
    query_split: str = "test"
    """Split of the queries; val while you tune, test for the final number."""
    gallery_per_class: int = 0
    """Random gallery videos per class; 0: all."""
    clips: int = 10
    """Clips per evaluated video."""
    test_factors: Literal["first", "all", "none"] = "first"
    """Seeds to run 'gdt factors' on."""
    jobs: int = 0
    """Runs in parallel; 0: one per GPU, else per core."""
    out: Path | None = None
    """Folder of results; default: runs/ablation-<dataset>[-clips]."""
    overwrite: bool = False
    """Replace runs of other settings in that folder."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of `label` in order."""
        return tuple(dict.fromkeys(self.label.split(","))) if self.label else ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", dataset_name(self.dataset, self.shards))
        require_positive(self, "", "jobs", "batch_size", "clips_per_step", least=0)
        require_positive(self, "", "clips")
        if RECALL in self.labels and len(self.labels) > 1:
            raise UserError("--label recall cannot be combined with label columns; run one ablation for each")
        if self.factors_from and not any(map(is_composition, self.rows)):
            raise UserError("--factors-from has no effect, as no row is a quoted composition; remove it")
        if part := next((row for row in self.rows if is_composition(row) and " " not in row), ""):
            raise UserError(
                f"--rows: '{part}' is only a part of a composition; put quotes around each composition, as in "
                "'video:d modality:i:2:differs augmentation:i:1'"
            )
        compositions = {row: self.composition(row) for row in self.rows}
        if self.word2vec and not any("text" in each.modalities for each in compositions.values()):
            raise UserError(f"--word2vec has no effect, as no row ({' '.join(self.rows)}) has text; remove it")
        used, unused = ("clips_per_step", "batch_size") if self.equal == "clips" else ("batch_size", "clips_per_step")
        if getattr(self, unused):
            raise UserError(
                f"--{unused.replace('_', '-')} has no effect with --equal {self.equal}; set "
                f"--{used.replace('_', '-')}, or another --equal"
            )
        for row, composition in compositions.items():
            clips = composition.clips_per_video
            if self.clips_per_step % clips:
                raise UserError(
                    f"--clips-per-step is {self.clips_per_step}; it must be a multiple of {clips}, the number of "
                    f"clips per video of row {row}"
                )

    def composition(self, row: str) -> Composition:
        """The composition of a row, for two videos per batch. Raises UserError if it is unknown or invalid."""
        if not is_composition(row):
            return presets.composition(row, batch_size=2)
        known = notation.load_factors(self.factors_from) if self.factors_from else notation.TRANSFORMATIONS
        return notation.parse(row, 2, known=known)


def is_composition(row: str) -> bool:
    """Whether a row is a composition rather than the name of a preset."""
    return ":" in row
