"""The model that a command takes without --ckpt: that of a run, found as `gdt pretrain` names it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gdt.common.errors import UserError
from gdt.pipeline.shards.layout import dataset_name
from gdt.train.run import CHECKPOINT
from gdt.train.settings import Pretrain


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """Options that find the run of a model."""

    pretrained_on: str = ""
    """Without --ckpt: data set that the model was pretrained on; default: --dataset, else kinetics."""
    preset: str = "l"
    """Without --ckpt: its preset."""
    factors: str = ""
    """Without --ckpt: its composition, instead of a preset."""
    factors_from: Path | None = None
    """Python file with custom transformations of --factors."""
    run_seed: int = 0
    """Without --ckpt: the seed of its pretraining."""

    def __post_init__(self) -> None:
        for name in ("preset", "factors", "factors_from", "run_seed"):
            if getattr(self, "ckpt", None) and getattr(self, name) != NO_RUN[name]:
                raise UserError(
                    f"--{name.replace('_', '-')} finds a run, but --ckpt already names the model; leave one of them out"
                )

    def checkpoint(self, dataset: str = "", shards: Path | None = None) -> Path:
        """The checkpoint of `gdt pretrain` with the same options. Raises UserError if there is none."""
        run = Pretrain(
            self.pretrained_on or dataset_name(dataset, shards), preset=self.preset, factors=self.factors,
            factors_from=self.factors_from, seed=self.run_seed,
        )  # fmt: skip
        path = run.run_folder / CHECKPOINT
        if not path.is_file():
            others = sorted(map(str, Path("runs").glob(f"*/{CHECKPOINT}")))
            there = f"; there are {', '.join(others[:5])}" if others else ""
            raise UserError(
                f"there is no checkpoint {path}{there}; set --ckpt to one, or make it with 'gdt pretrain "
                f"--dataset {run.dataset_name}'"
            )
        return path


NO_RUN: dict[str, Any] = {field.name: field.default for field in fields(OfRun)}
"""Values of these options when the checkpoint is known."""
