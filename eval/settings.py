"""Settings of the evaluation protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from gdt.common.errors import UserError, require_positive

Protocol = Literal["cross-modal", "retrieval", "few-shot", "linear", "finetune"]
_OF_LABELS = ("label", "folds", "gallery_per_class")
DECIDES: dict[Protocol, tuple[str, ...]] = {
    "cross-modal": ("word2vec",),
    "retrieval": _OF_LABELS,
    "few-shot": (*_OF_LABELS, "seed"),
    "linear": (*_OF_LABELS, "seed", "train_samples", "linear_c"),
    "finetune": (*_OF_LABELS, "seed", "train_samples", "recipe", "size", "epochs", "lr", "clips_per_epoch"),
}
"""Of each protocol, in the order of the table's columns, the settings that decide its numbers beside --clips."""
PROTOCOLS = tuple(DECIDES)
LABELLED = tuple(protocol for protocol in PROTOCOLS if "label" in DECIDES[protocol])
"""Those that need labels."""
KS = (1, 5, 20)
"""Of retrieval, as in the paper."""
SHOTS = (1, 5, 20)
"""Videos per class of few-shot classification."""
_EVERYWHERE = ("seed", "size")
"""Settings that may be given for any protocol."""


@dataclass(frozen=True)
class Downstream:
    """Evaluate models by the paper's protocols, in one table with random weights and chance; again: resumes."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("ckpt", "random"),
        "data": (
            "dataset",
            "shards",
            "label",
            "folds",
            "gallery_split",
            "query_split",
            "gallery_per_class",
            "word2vec",
        ),
        "protocol": ("protocols", "clips", "linear_c", "train_samples", "seed"),
        "finetuning": ("recipe", "size", "epochs", "lr", "clips_per_epoch"),
        "run": ("out", "jobs", "threads", "tables"),
    }
    """Of `--help`, and the settings below them."""

    ckpt: tuple[Path, ...]
    """Checkpoints, ours or from elsewhere; each is a row of the table."""
    dataset: str = ""
    """Preprocessed data set; default the one that the first checkpoint was pretrained on."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    protocols: tuple[Protocol, ...] = ()
    """Which; default all that need no training and that models and data are fit for."""
    folds: tuple[int, ...] = ()
    """Official folds whose splits count, from 1; default all there are, and the splits as they are where there are
    none."""
    word2vec: Path | None = None
    """For recall with words: the file of word vectors with which the shards were made."""
    label: str = ""
    """Column of the labels that count; default `label`, the classes of the data set. Several, as label,weather, each in
    a table of its own."""
    gallery_split: str = "train"
    """Videos that are searched, from which shots are drawn, and with which classifiers are trained."""
    query_split: str = ""
    """Videos that are evaluated; default test, or val where there are none of test."""
    clips: int = 10
    """Uniform clips per video, over which features, embeddings and scores are averaged."""
    gallery_per_class: int = 0
    """Use only so many gallery videos of each class, drawn at random, to save time; 0 for all."""
    random: Literal["also", "only", "no"] = "also"
    """Random weights of the same network as a row, which finetuning trains from scratch: beside the checkpoints, in
    their place, or not at all."""
    recipe: Literal["paper", "published"] = "paper"
    """How to finetune: as the paper has it, or as the published release's script does it."""
    size: Literal["paper", "tiny"] = "paper"
    """Clips and epochs of finetuning: the recipe's, or those that the checkpoint was pretrained with and fewer."""
    epochs: int = 0
    """Epochs of finetuning, over which the recipe's schedule is spread; 0 takes the recipe's."""
    lr: float = 0.0
    """Highest learning rate of finetuning; 0 takes the recipe's."""
    clips_per_epoch: int = 0
    """Random clips of every training video in an epoch of finetuning; 0 takes the recipe's."""
    train_samples: int = 0
    """Finetune and probe on so many training videos, drawn at random (SEVERE takes 1,000); 0 for all."""
    linear_c: float = 1.0
    """Inverse strength of the linear probe's L2 regularisation, on features of unit variance."""
    seed: int = 0
    """Decides the shots, the drawn training videos, the classifier's first weights and the order of clips."""
    jobs: int = 0
    """Finetuning runs at a time, each of one fold; 0 for one per GPU, or one single-threaded run per core."""
    threads: int = 0
    """CPU threads of one process; 0 leaves it to torch."""
    out: Path | None = None
    """Folder of results and tables; default runs/eval-<dataset>."""
    tables: bool = True
    """Write the tables; not where another call, of which this is a part, will do so."""

    def __post_init__(self) -> None:
        require_positive(self, "", "clips")
        counts = ("epochs", "clips_per_epoch", "train_samples", "gallery_per_class", "seed", "threads", "jobs")
        require_positive(self, "", *counts, least=0)
        if self.lr < 0 or not self.linear_c > 0:
            raise UserError("--lr must be 0 or more and --linear-c above 0")
        if min(self.folds, default=1) < 1:
            raise UserError(f"--folds is {' '.join(map(str, self.folds))}; official folds are numbered from 1")
        if self.protocols:
            self._require_effect()

    def _require_effect(self) -> None:
        """Raise UserError where a setting is of no protocol that was asked for."""
        plain = {field.name: field.default for field in fields(self)}
        for name in dict.fromkeys(name for names in DECIDES.values() for name in names):
            of = [protocol for protocol in PROTOCOLS if name in DECIDES[protocol]]
            if getattr(self, name) != plain[name] and name not in _EVERYWHERE and not set(of) & set(self.protocols):
                raise UserError(
                    f"--{name.replace('_', '-')} has no effect on {', '.join(self.protocols)}; it is of "
                    f"{' and '.join(of)}"
                )

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of `label`, in order; empty for the classes of the data set."""
        return tuple("" if name == "label" else name for name in dict.fromkeys(self.label.split(",")))

    @property
    def asks_labels(self) -> bool:
        """Whether a setting says that protocols with labels are meant."""
        return bool(self.label or self.folds or self.gallery_per_class or self.gallery_split != "train")
