"""A machine's GPU as `nvidia-smi` lists it, with drivers that torch cannot use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from gdt.common import gpu
from gdt.common.errors import UserError
from gdt.train.distributed import require_gpus
from gdt.train.run import parse_arguments

OLD = "torch cannot use the GPU: its driver is 550.54.15, and CUDA 13 needs 580 or newer; "


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first folder of PATH, for other programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


def install(folder: Path, driver: str, status: int = 0) -> None:
    """An nvidia-smi for two GPUs."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{driver}\\n{driver}\\n'\nexit {status}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("driver", "status", "visible", "size"),
    [
        ("580.65.06", 0, None, "paper"), ("580.65.06", 0, "1", "paper"), ("580.65.06", 0, "", "tiny"),
        ("550.54.15", 0, "-1", "tiny"), ("No devices were found", 0, None, "tiny"), ("", 6, None, "tiny"),
    ],
)  # fmt: skip
def test_the_default_size_is_that_of_a_gpu_if_one_is_visible(
    machine: Path, monkeypatch: pytest.MonkeyPatch, driver: str, status: int, visible: str | None, size: str
) -> None:
    install(machine, driver, status)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.default_size() == size
    assert gpu.default_size(on_cpu=True) == "tiny"
    assert parse_arguments([]).size == size and parse_arguments(["--device=cpu"]).size == "tiny"


def test_a_gpu_with_an_old_driver_is_refused_where_the_size_is_chosen(machine: Path, tmp_path: Path) -> None:
    install(machine, "550.54.15")
    with pytest.raises(UserError, match=OLD):
        parse_arguments(["--dataset", "kinetics"])
    parse_arguments(["--size", "tiny"])


@pytest.mark.parametrize(("driver", "said"), [("550.54.15", OLD), ("580.65.06", "torch finds no GPU, but nvidia-smi")])
def test_a_gpu_that_torch_cannot_use_is_refused_on_auto(
    machine: Path, monkeypatch: pytest.MonkeyPatch, driver: str, said: str
) -> None:
    """Also where the NVML library, unlike torch, counts GPUs with an old driver."""
    install(machine, driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for ranks, device in ((1, "auto"), (1, "cuda"), (2, "auto")):
        with pytest.raises(UserError, match=said):
            require_gpus(ranks, device)
    require_gpus(2, "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    require_gpus(1, "auto")
