"""The files of a run: their names, its logs, and the latest of all runs."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.common.folders import Folder, local_path
from gdt.train.hub import EXPORTED, is_on_hub
from gdt.train.published import PUBLISHED

CHECKPOINT = "checkpoint.pt"
SETTINGS_FILE = "settings.json"
METRICS = "metrics.jsonl"
"""A line per step."""
PROBES = "probe.jsonl"
"""A line per probe."""
VERDICT = "verdict.txt"
"""Whether the finished run has learned, in a sentence."""
WANDB = "wandb.id"
"""The id of the run's curves in Weights & Biases."""


def logged(path: Path) -> list[dict[str, Any]]:
    """The lines of METRICS or PROBES, without those that are damaged or not complete; none without the file."""
    lines = path.read_text(errors="replace").split("\n")[:-1] if path.is_file() else []
    rows = []
    for line in lines:
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict) and "step" in row]


def keep_until(path: Path, last: int) -> None:
    """Remove the lines of METRICS or PROBES after step `last`, which a resumed run repeats, and an incomplete one."""
    kept = "".join(json.dumps(row) + "\n" for row in logged(path) if row["step"] <= last)
    if not path.is_file() or path.read_text(errors="replace") != kept:
        write_text(path, kept)


def require_checkpoint(path: Path) -> Path:
    """The checkpoint at a path, which may be the folder of a run or an export. Raises UserError if there is none."""
    if path.is_dir():
        exported = (path / EXPORTED).is_file() and not (path / CHECKPOINT).exists()
        path = path / (EXPORTED if exported else CHECKPOINT)
    if not path.is_file():
        raise UserError(
            f"there is no checkpoint {path}; make one with 'gdt pretrain', or give the path of yours, "
            f"hf://owner/name, or a name: {', '.join(PUBLISHED)}"
        )
    return path


def require_weights(names: Sequence[str]) -> None:
    """Raise UserError if a file of these weights is missing; without names, if no run has a checkpoint."""
    for name in names:
        if name not in PUBLISHED and not is_on_hub(name):
            require_checkpoint(local_path(name))
    if not names and not checkpoints():
        raise UserError("there is no checkpoint in runs; make one with 'gdt pretrain', or set --ckpt")


def home_of(path: Path) -> Path:
    """The folder of a run, given its checkpoint; any other path stays."""
    return path.parent if path.name == CHECKPOINT else path


def verdict_of(checkpoint: str) -> list[str]:
    """What a finished run has said of its model, if this is one, as a line."""
    place = Folder(checkpoint)
    path = Path() if place.remote else home_of(place.root) / VERDICT
    return [f"of the model: {path.read_text().strip()}"] if path.is_file() else []


def checkpoints() -> list[Path]:
    """The checkpoints in runs/<run>, the latest first."""
    return sorted(Path("runs").glob(f"*/{CHECKPOINT}"), key=lambda path: path.stat().st_mtime, reverse=True)


def latest_checkpoint(paths: Sequence[Path] | None = None) -> Path:
    """The first of these checkpoints, by default of all in runs. Raises UserError if there is none in runs."""
    require_weights([])
    latest, *_ = checkpoints() if paths is None else paths
    print(f"checkpoint: {latest}, the latest in runs (--ckpt takes another)", flush=True)
    return latest
