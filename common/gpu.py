"""Check GPU and driver without importing torch."""

from __future__ import annotations

import os
import subprocess

from gdt.common.errors import UserError

_OLDEST_DRIVER = 580
"""Major version of the oldest driver that supports CUDA 13, for which torch and DALI are built."""
_USE_CPU = (
    "use the CPU: pretrain with --device cpu, or put CUDA_VISIBLE_DEVICES= before any command; either makes "
    "--size tiny the default"
)


def driver() -> str:
    """Version of the NVIDIA driver; empty if this process has no GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return ""
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    version = done.stdout.partition("\n")[0].strip()
    return version if done.returncode == 0 and version[:1].isdecimal() else ""


def has_gpu() -> bool:
    """Whether there is a GPU. Raises UserError if its driver is too old for torch."""
    version = driver()
    if version and int(version.partition(".")[0]) < _OLDEST_DRIVER:
        raise UserError(
            f"torch cannot use the GPU: its driver is {version}, and CUDA 13 needs {_OLDEST_DRIVER} or newer; update "
            f"the driver, or {_USE_CPU}"
        )
    return bool(version)


def require_no_gpu() -> None:
    """Raise UserError if there is a GPU; call it where torch finds none."""
    if has_gpu():
        raise UserError(
            f"torch finds no GPU, but nvidia-smi does, with driver {driver()}; install a torch for CUDA 13, or "
            f"{_USE_CPU}"
        )


def default_size(on_cpu: bool = False) -> str:
    """The default size: `paper` with a GPU, unless it is not used, else `tiny`. Raises UserError like `has_gpu`."""
    return "paper" if not on_cpu and has_gpu() else "tiny"
