"""Settings of `gdt evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gdt.common.errors import UserError, require_positive
from gdt.common.location import Location
from gdt.eval.embed import FeatureModality
from gdt.eval.protocols import PROTOCOLS
from gdt.train.models.network import NO_NETWORKS, CheckpointNetworks

if TYPE_CHECKING:
    ProtocolName = str
    FrozenName = str
else:
    ProtocolName = Literal[tuple(PROTOCOLS)]
    FrozenName = Literal[tuple(name for name, protocol in PROTOCOLS.items() if not protocol.trains)]


@dataclass(frozen=True)
class Downstream:
    """Evaluate checkpoints by the paper's protocols. Run the same command again to resume."""

    ckpt: tuple[str, ...] = ()
    """Checkpoints or external weights, a row of the table each; default: the latest in runs."""
    dataset: str = ""
    """Preprocessed data set; default: that of the first checkpoint."""
    shards: Location | None = None
    """Folder of shards, or s3://…; default: data/shards/<dataset>."""
    protocols: tuple[ProtocolName, ...] = ()
    """Protocols; default: cross-modal, retrieval, few-shot, knn if they apply."""
    folds: tuple[int, ...] = ()
    """Official folds, from 1; default: all."""
    word2vec: Path | None = None
    """word2vec file that the shards were made with; needed for text."""
    label: str = ""
    """Label columns, such as label,weather; default: the classes."""
    gallery_split: str = ""
    """Split of the gallery; default: train, or val if train has no labels."""
    query_split: str = ""
    """Split of the queries; default: test, or val if there is no test split."""
    clips: int = 10
    """Uniformly spaced clips per video, which are averaged."""
    random_weights: Literal["include", "only", "exclude"] = "include"
    """Random weights as a baseline: include, only these rows, or exclude."""
    modalities: tuple[FeatureModality, ...] = ("video",)
    """Networks to take features from; both: L2-normalised and concatenated."""
    epochs: int = 0
    """Epochs of finetune and attentive; the schedule is scaled to them; 0: 12."""
    lr: float = 0.0
    """Peak learning rate of finetune and attentive; 0: 0.02 and 0.001."""
    clips_per_epoch: int = 0
    """Random clips per training video and epoch; 0: 10 (tiny: 4)."""
    train_samples: int = 0
    """Random training videos of finetune, attentive and linear; 0: all."""
    linear_c: float = 1.0
    """Inverse strength of L2 regularisation of linear probe and SVM."""
    seed: int = 0
    """Seed of shots, samples, classifier and order of clips."""
    jobs: int = 0
    """Finetuning runs in parallel; 0: one per GPU, else per core."""
    out: Path | None = None
    """Folder of results; default: runs/eval-<dataset>."""
    networks: Annotated[CheckpointNetworks, tyro.conf.arg(name="")] = NO_NETWORKS
    """Those that the checkpoint was trained with."""
    tables: bool = True
    """Write the tables, alone in the folder; off in processes that a command starts."""
    cache: str = ""
    """Size of this machine's cache of shards in a store, such as 500GB; default: most of the free disk."""

    def __post_init__(self) -> None:
        require_positive(self, "", "clips", most=1000)
        counts = ("epochs", "clips_per_epoch", "train_samples", "seed", "jobs")
        require_positive(self, "", *counts, least=0)
        if self.lr < 0:
            raise UserError(f"--lr is {self.lr:g}; it must be 0 or more")
        if not self.linear_c > 0:
            raise UserError(f"--linear-c is {self.linear_c:g}; it must be above 0")
        if min(self.folds, default=1) < 1:
            raise UserError(f"--folds is {' '.join(map(str, self.folds))}; official folds are numbered from 1")
        if len(set(self.modalities)) != max(1, len(self.modalities)):
            raise UserError(f"--modalities is '{' '.join(self.modalities)}'; set it to video, audio, or video audio")
        trained = [name for name in self.protocols if PROTOCOLS[name].trains]
        if len(self.modalities) > 1 and trained:
            raise UserError(
                f"--modalities is {' '.join(self.modalities)}, but {' and '.join(trained)} trains one network; name "
                "one of them"
            )
        if self.protocols:
            self._require_effect()

    def _require_effect(self) -> None:
        """Raise UserError if a setting affects none of the chosen protocols."""
        users: dict[str, list[str]] = {}
        for protocol in PROTOCOLS.values():
            for name in protocol.settings:
                users.setdefault(name, []).append(protocol.name)
        for name, protocols in users.items():
            changed = getattr(self, name) != getattr(type(self), name)
            if changed and name != "seed" and not set(protocols) & set(self.protocols):  # a seed is never refused
                raise UserError(
                    f"--{name.replace('_', '-')} has no effect on {', '.join(self.protocols)}; it applies only to "
                    f"{' and '.join(protocols)}"
                )

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of `label` in order; "" stands for the classes of the data set."""
        return tuple("" if name == "label" else name for name in dict.fromkeys(self.label.split(",")))

    @property
    def requires_labels(self) -> bool:
        """Whether a setting is given that applies only to protocols with labels."""
        return any([self.label, self.folds, self.gallery_split, self.modalities != ("video",)])
