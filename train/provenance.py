"""Provenance of results: code, versions, device and command."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from gdt.common import serialization
from gdt.common.files import write_text

if TYPE_CHECKING:  # command lines read provenances without importing torch
    import torch

NAME = "run.json"
DAMAGED = "run.damaged.json"


@dataclass(frozen=True)
class Provenance:
    """Provenance of one process; empty text is unknown."""

    command: str
    """Command line for a shell, after RANK and WORLD_SIZE if there are several ranks."""
    commit: str
    """Git commit of the code, as from `git_commit`."""
    versions: dict[str, str]
    """Versions of Python and of the packages that results depend on."""
    device: str
    """Name of the GPU or the CPU."""
    started: str
    """UTC time in ISO 8601."""

    @staticmethod
    def of(device: torch.device) -> Provenance:
        """Provenance of this process, which starts now."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return Provenance(command_line(), git_commit(), versions(), device_name(device), started)


@dataclass(frozen=True)
class Start:
    """One start of a run; a resumed run has several."""

    step: int
    """First step."""
    data: str
    """Fingerprint of the shards."""
    provenance: Provenance
    ranks: int = 1
    """Number of ranks, which affects results only by rounding."""


def record(folder: Path, start: Start) -> None:
    """Add a start to the list in NAME; an unreadable list is kept as DAMAGED."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    starts: list[Start] = []
    if path.is_file():
        with contextlib.suppress(ValueError, RecursionError):
            starts = read(path.read_text(encoding="utf-8"))
        if not starts:
            print(f"warning: {path} is damaged; it is kept as {DAMAGED}", file=sys.stderr)
            path.rename(folder / DAMAGED)
            starts = []
    rows = json.loads(serialization.to_json([*starts, start]))
    write_text(path, json.dumps([*map(serialization.add_checksum, rows)], indent=2) + "\n")


def read(text: str) -> list[Start]:
    """The starts in the text of NAME, at least one. Raises ValueError or RecursionError if it is damaged."""
    rows = json.loads(text)
    if not isinstance(rows, list) or not rows:
        raise ValueError("no list of starts")
    return [serialization.from_dict(Start, serialization.require_checksum(row)) for row in rows]


def command_line() -> str:
    """Command line of this process, for a shell."""
    ranks = [f"{name}={os.environ[name]}" for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    return " ".join([*ranks, shlex.join(sys.orig_argv)])


def versions() -> dict[str, str]:
    """Versions of Python and of those packages that results depend on and that are installed."""
    import numpy as np
    import torch

    found = {
        "python": platform.python_version(), "numpy": np.__version__, "torch": str(torch.__version__),
        "scikit-learn": metadata.version("scikit-learn"),
    }  # fmt: skip
    for name, package in (("nvidia-dali", "nvidia-dali-cuda130"), ("gdt", "gdt")):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(package)
    return found


def device_name(device: torch.device) -> str:
    """Name of a GPU, or of this machine's CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def git_commit(file: Path = Path(__file__)) -> str:
    """Commit of the checkout that tracks a file, with `-dirty` if tracked files were changed.

    Empty if there is no such checkout, or git is missing or fails.
    """
    elsewhere = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # variables that select another repository
    environment = {name: value for name, value in os.environ.items() if name not in elsewhere}

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "--no-optional-locks", *arguments], cwd=file.resolve().parent, env=environment, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=30,
        ).stdout.strip()  # fmt: skip

    try:
        git("ls-files", "--error-unmatch", file.name)  # fails if the package is installed inside another project
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return ""
