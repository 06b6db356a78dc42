"""Settings of exported models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Export:
    """Write the weights of a checkpoint, or of weights from elsewhere, for other programs and to hand on."""

    ckpt: Path
    """Checkpoint of a pretrained model, or weights from elsewhere."""
    out: Path
    """The file to write."""
    format: Literal["safetensors", "published", "torchvision"] = "safetensors"
    """safetensors holds a model of any size with its settings; published is what the GDT release reads, torchvision the
    video trunk as r2plus1d_18 has it, both for networks of the paper's sizes only."""
    overwrite: bool = False
    """Replace the file where there is one."""
