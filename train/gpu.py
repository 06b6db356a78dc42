"""Whether there is a GPU, without importing torch."""

import os
from pathlib import Path
from typing import Literal

from gdt.common.errors import UserError

Size = Literal["paper", "small", "tiny"]
"""Complete settings of a run, in `settings.SIZES`."""

_DEVICES = ("dev/nvidia[0-9]*", "usr/lib/wsl/lib/libcuda.so.1")
"""Files of the driver, below /, on Linux and on Windows; containers have them without nvidia-smi, too."""


def has_gpu() -> bool:
    """Whether the driver shows a GPU to this process, and it may use it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return any(os.access(file, os.R_OK) for pattern in _DEVICES for file in Path("/").glob(pattern))


def require_no_gpu() -> None:
    """Raise UserError if there is a GPU; call it where torch finds none."""
    if has_gpu():
        raise UserError(
            "torch finds no GPU, but the driver shows one; update the driver (CUDA 13 needs 580 or newer), install a "
            "torch for CUDA 13, or use the CPU: pretrain with --device cpu, or put CUDA_VISIBLE_DEVICES= before any "
            "command; either makes --size small the default"
        )


def default_size(on_cpu: bool = False) -> Size:
    """The default size: `paper` with a GPU, unless it is not used, else `small`."""
    return "paper" if not on_cpu and has_gpu() else "small"
