"""Where numbers come from: which code made them, on what, and how it was started."""

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
from typing import TYPE_CHECKING, Any

from gdt.common import serialization
from gdt.common.files import write_text

if TYPE_CHECKING:  # else what only reads provenances, as command lines do, would import it
    import torch

NAME = "run.json"
DAMAGED = "run.damaged.json"


@dataclass(frozen=True)
class Provenance:
    """Of one process; text that is empty is not known."""

    command: str
    """Its command line, as a shell takes it; under torchrun that of one process, after the variables that say which."""
    commit: str
    """Git commit of the code, as `git_commit` gives it."""
    versions: dict[str, str]
    """Of Python and of the packages that numbers depend on."""
    device: str
    """Name of the GPU or of the processor."""
    started: str
    """When, in UTC, as ISO 8601 has it."""

    @staticmethod
    def of(device: torch.device) -> Provenance:
        """Of this process, which starts to compute on a device now."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return Provenance(command_line(), git_commit(), versions(), device_name(device), started)


@dataclass(frozen=True)
class Start:
    """One start of a run; one that was stopped and goes on has several."""

    step: int
    """The first step that it did."""
    data: str
    """Fingerprint of its shards."""
    provenance: Provenance
    ranks: int = 1
    """Processes that shared each batch, which changes no number but by rounding."""


def record(folder: Path, start: Start) -> None:
    """Add a start to those that a run's NAME lists; one that cannot be read is kept as DAMAGED."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    starts: Any = []
    if path.is_file():
        with contextlib.suppress(ValueError):
            starts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(starts, list) or not starts:
            print(f"warning: {path} is damaged; it is kept as {DAMAGED}", file=sys.stderr)
            path.rename(folder / DAMAGED)
            starts = []
    starts.append(json.loads(serialization.to_json(start)))
    write_text(path, json.dumps(starts, indent=2) + "\n")


def command_line() -> str:
    """How this process was started, as a shell takes it."""
    ranks = [f"{name}={os.environ[name]}" for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    return " ".join([*ranks, shlex.join(sys.orig_argv)])


def versions() -> dict[str, str]:
    """Of what numbers depend on; without this package's where it is not installed."""
    import numpy as np
    import nvidia.dali
    import torch

    found = {
        "python": platform.python_version(), "numpy": np.__version__, "torch": str(torch.__version__),
        "nvidia-dali": nvidia.dali.__version__, "scikit-learn": metadata.version("scikit-learn"),
    }  # fmt: skip
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["gdt"] = metadata.version("gdt")
    return found


def device_name(device: torch.device) -> str:
    """Of a GPU, or of this machine's processor."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def git_commit(file: Path = Path(__file__)) -> str:
    """The commit of the checkout in which a file is tracked, with `-dirty` where tracked files differ from it.

    Empty where it is in none, or git is not there or does not answer.
    """
    elsewhere = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # of a repository that the caller may be about
    environment = {name: value for name, value in os.environ.items() if name not in elsewhere}

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "--no-optional-locks", *arguments], cwd=file.resolve().parent, env=environment, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=30,
        ).stdout.strip()  # fmt: skip

    try:
        git("ls-files", "--error-unmatch", file.name)  # or it was installed into the folder of another project
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return ""
