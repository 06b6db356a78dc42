"""A machine's GPU as `nvidia-smi` lists it, which torch may not be able to use."""

import os
from pathlib import Path

import pytest
import torch

from gdt.common.errors import UserError
from gdt.train import gpu
from gdt.train.distributed import require_gpus
from gdt.train.settings_text import parse_arguments

LISTED = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first folder of PATH, for other programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


def install(folder: Path, listed: str = LISTED, status: int = 0) -> None:
    """An nvidia-smi."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{listed}'\nexit {status}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("listed", "status", "visible", "size"),
    [
        (LISTED, 0, None, "paper"), (LISTED, 0, "1", "paper"), (LISTED, 0, "", "tiny"), (LISTED, 0, "-1", "tiny"),
        ("No devices were found", 0, None, "tiny"), (LISTED, 6, None, "tiny"),
    ],
)  # fmt: skip
def test_the_default_size_is_that_of_a_gpu_if_one_is_visible(
    machine: Path, monkeypatch: pytest.MonkeyPatch, listed: str, status: int, visible: str | None, size: str
) -> None:
    install(machine, listed, status)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.default_size() == size
    assert gpu.default_size(on_cpu=True) == "tiny"
    assert parse_arguments([]).size == size and parse_arguments(["--device=cpu"]).size == "tiny"


def test_a_gpu_that_torch_cannot_use_is_refused_on_auto(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the NVML library, unlike torch, counts GPUs with an old driver."""
    install(machine)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for ranks, device in ((1, "auto"), (1, "cuda"), (2, "auto")):
        with pytest.raises(UserError, match="torch finds no GPU, but nvidia-smi does; update its driver"):
            require_gpus(ranks, device)
    require_gpus(2, "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    require_gpus(1, "auto")
