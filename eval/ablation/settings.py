"""Settings of the ablation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from gdt.common.errors import UserError, require_positive
from gdt.eval.search.settings import RECALL
from gdt.pipeline import notation, presets
from gdt.pipeline.composition import Composition


@dataclass(frozen=True)
class Ablation:
    """Pretrain rows of table 1 at equal clips per step, evaluate them frozen, and compare."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "data": ("dataset", "shards", "word2vec"),
        "pretraining": ("rows", "factors_from", "seeds", "size", "clips_per_step", "bn_group_size", "steps"),
        "evaluation": ("labels", "query_split", "gallery_per_class", "clips", "factors"),
        "run": ("out", "jobs"),
    }
    """Of `--help`, and the settings below them."""

    dataset: str = "synthetic"
    """Preprocessed data set with a train and a test split; without labels, recall across modalities is compared."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    rows: tuple[str, ...] = ("a", "e", "l")
    """Rows of the paper's table 1, other names of --preset help, or compositions in quotes, as for --factors."""
    factors_from: Path | None = None
    """Python file with transformations of your own, for compositions in quotes."""
    word2vec: Path | None = None
    """For rows with words: the file of word vectors with which the shards were made."""
    seeds: tuple[int, ...] = (0,)
    """One run of every row for each seed."""
    size: Literal["tiny", "paper"] = "tiny"
    """Size of networks, clips and schedule."""
    clips_per_step: int = 64
    """Video clips in a batch, the same for every row: rows with more leaves per video take fewer videos."""
    bn_group_size: int | None = None
    """Leaves of one modality over which batch norm takes its statistics, as in pretraining; 0 is the whole batch."""
    steps: int = 0
    """Training steps of every run; 0 takes the size's own."""
    labels: tuple[str, ...] = ()
    """Columns of labels that count, `label` for the classes; default the classes and all columns that part the videos
    in another way. The word recall alone compares recall across modalities instead, as where there are no labels."""
    query_split: str = "test"
    """Videos that are evaluated; use val while choosing settings."""
    gallery_per_class: int = 0
    """Search only so many training videos of each class, drawn at random; 0 for all."""
    clips: int = 10
    """Uniform clips per video that is evaluated, over which features are averaged."""
    factors: Literal["first", "all", "no"] = "first"
    """Also see what features know of each factor, as `gdt eval factors` does, of the first seed or of all:
    minutes per small model on one core."""
    jobs: int = 0
    """Runs at a time; 0 for one per GPU, or one single-threaded run per core."""
    out: Path | None = None
    """Folder of the runs and the table; default runs/ablation-<dataset>."""

    def __post_init__(self) -> None:
        require_positive(self, "", "jobs", least=0)
        require_positive(self, "", "clips")
        if RECALL in self.labels and len(self.labels) > 1:
            raise UserError("--labels recall stands alone: recall across modalities takes no labels")
        if self.factors_from and not any(map(is_written_out, self.rows)):
            raise UserError("--factors-from has no effect: no row is a composition in quotes")
        of_rows = {name: self.composition(name) for name in self.rows}
        if self.word2vec and not any("text" in each.modalities for each in of_rows.values()):
            raise UserError(f"--word2vec has no effect: words are no modality of the rows {' '.join(self.rows)}")
        for name, composition in of_rows.items():
            clips = composition.clips_per_video
            if self.clips_per_step % clips:
                raise UserError(
                    f"--clips-per-step {self.clips_per_step} is no multiple of the {clips} clips that row {name} takes "
                    "of a video"
                )

    def composition(self, row: str) -> Composition:
        """Of a row: what holds for any number of videos per batch. Raises UserError where there is no such row."""
        if not is_written_out(row):
            return presets.composition(row, batch_size=2)
        known = notation.load_factors(self.factors_from) if self.factors_from else notation.TRANSFORMATIONS
        return notation.parse(row, 2, known=known)


def is_written_out(row: str) -> bool:
    """Whether a row is a composition, and no name of one."""
    return ":" in row
