"""Where results come from: command, commit, versions and device, as one dictionary."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdt.common.files import write_text

if TYPE_CHECKING:  # command lines read provenances without importing torch
    import torch

NAME = "run.json"
_PACKAGES = ("gdt-video", "numpy", "torch", "scikit-learn", "nvidia-dali-cuda130")
"""Packages that results depend on."""


def provenance_of(device: torch.device) -> dict[str, Any]:
    """Provenance of what this process computes, which starts now; empty text is unknown."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "command": shlex.join(sys.orig_argv),
        "commit": git_commit(),
        "versions": versions,
        "device": device_name(device),
        "ranks": int(os.environ.get("WORLD_SIZE", "1")),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_provenance(folder: Path, device: torch.device, step: int, data: str) -> None:
    """Write the provenance of a run that starts at `step` on shards of fingerprint `data` to NAME."""
    folder.mkdir(parents=True, exist_ok=True)
    values = provenance_of(device) | {"step": step, "data": data}
    write_text(folder / NAME, json.dumps(values, indent=2) + "\n")


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


def git_commit() -> str:
    """Commit of the checkout that tracks this file, with `-dirty` if tracked files were changed; empty if unknown."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", *arguments]
        done = subprocess.run(command, cwd=Path(__file__).resolve().parent, check=True, capture_output=True, timeout=30)
        return done.stdout.decode().strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # fails if the package is inside another project
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return ""
