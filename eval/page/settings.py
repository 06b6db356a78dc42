"""Settings of the HTML report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gdt.train.models.network import NO_NETWORKS, CheckpointNetworks


@dataclass(frozen=True)
class Report:
    """Write report.html, a page of all runs in a folder: tables, learning curves, examples."""

    runs: Path = Path("runs")
    """Folder of runs and evaluations, with its subfolders."""
    models: int = 4
    """Maximum number of models with examples: the best."""
    networks: Annotated[CheckpointNetworks, tyro.conf.arg(name="")] = NO_NETWORKS
    """Those that the checkpoints were trained with."""
