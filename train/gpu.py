"""Whether there is a GPU, without importing torch."""

import os
import subprocess

from gdt.common.errors import UserError


def has_gpu() -> bool:
    """Whether nvidia-smi lists a GPU and this process may use it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, check=False)
    except OSError:
        return False
    return listed.returncode == 0 and listed.stdout.startswith(b"GPU ")


def require_no_gpu() -> None:
    """Raise UserError if there is a GPU; call it where torch finds none."""
    if has_gpu():
        raise UserError(
            "torch finds no GPU, but nvidia-smi does; update its driver (CUDA 13 needs 580 or newer), install a torch "
            "for CUDA 13, or use the CPU: pretrain with --device cpu, or put CUDA_VISIBLE_DEVICES= before any command; "
            "either makes --size tiny the default"
        )


def default_size(on_cpu: bool = False) -> str:
    """The default size: `paper` with a GPU, unless it is not used, else `tiny`."""
    return "paper" if not on_cpu and has_gpu() else "tiny"
