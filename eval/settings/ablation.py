"""Settings of the ablation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from eval.settings.downstream import require_places
from pipeline import presets
from pipeline.composition import Composition
from pipeline.errors import UserError, require_positive


@dataclass(frozen=True)
class Ablation:
    """Pretrain rows of table 1 at equal clips per step, evaluate them frozen, and compare."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "data": ("dataset", "shards", "word2vec"),
        "pretraining": ("rows", "seeds", "size", "clips_per_step", "norm_leaves", "steps"),
        "evaluation": ("query_split", "gallery_per_class", "clips"),
        "run": ("out", "side_by_side"),
    }
    """Of `--help`, and the settings below them."""

    dataset: str = "synthetic"
    """Preprocessed data set with labels, a train and a test split."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    rows: tuple[str, ...] = ("a", "e", "l")
    """Rows of the paper's table 1, or other names of --preset help."""
    word2vec: Path | None = None
    """For rows with words: the file of word vectors with which the shards were made."""
    seeds: tuple[int, ...] = (0,)
    """One run of every row for each seed."""
    size: Literal["tiny", "paper"] = "tiny"
    """Size of networks, clips and schedule."""
    clips_per_step: int = 64
    """Video clips in a batch, the same for every row: rows with more leaves per video take fewer videos."""
    norm_leaves: int | None = None
    """Leaves of one modality over which batch norm takes its statistics, as in pretraining; 0 is the whole batch."""
    steps: int = 0
    """Training steps of every run; 0 takes the size's own."""
    query_split: str = "test"
    """Videos that are evaluated; use val while choosing settings."""
    gallery_per_class: int = 0
    """Search only so many training videos of each class, drawn at random; 0 for all."""
    clips: int = 10
    """Uniform clips per video that is evaluated, over which features are averaged."""
    side_by_side: int = 0
    """Runs at a time; 0 for one per GPU, or one single-threaded run per core."""
    out: Path | None = None
    """Folder of the runs and the table; default runs/ablation-<dataset>."""

    def __post_init__(self) -> None:
        require_places(self.side_by_side)
        if self.word2vec and not any("text" in presets.modalities(name) for name in self.rows):
            raise UserError(f"--word2vec has no effect: words are no modality of the rows {' '.join(self.rows)}")
        require_positive(self, "", "clips")
        for name in self.rows:
            clips = composition(name).clips_per_video
            if self.clips_per_step % clips:
                raise UserError(
                    f"--clips-per-step {self.clips_per_step} is no multiple of the {clips} clips that row {name} takes "
                    "of a video"
                )


def composition(preset: str) -> Composition:
    """What holds for any number of videos per batch."""
    return presets.composition(preset, videos_per_batch=2)
