"""A machine's GPU as the files of its driver show it, which torch may not be able to use."""

from pathlib import Path

import pytest
import torch

from gdt.common.errors import UserError
from gdt.train import gpu
from gdt.train.distributed import require_gpus
from gdt.train.options import parse_arguments


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of device files."""
    patterns = [pattern.replace("dev", f"{tmp_path}"[1:]) for pattern in gpu._DEVICES]
    monkeypatch.setattr(gpu, "_DEVICES", patterns)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "visible", "size"),
    [
        ("nvidia0", None, "paper"), ("nvidia3", "3", "paper"), ("nvidia0", "", "small"), ("nvidia0", "-1", "small"),
        ("nvidiactl", None, "small"), ("null", None, "small"),
    ],
)  # fmt: skip
def test_the_default_size_is_that_of_a_gpu_if_one_is_visible(
    devices: Path, monkeypatch: pytest.MonkeyPatch, file: str, visible: str | None, size: str
) -> None:
    (devices / file).touch()
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.default_size() == size
    assert gpu.default_size(on_cpu=True) == "small"
    assert parse_arguments([]).size == size and parse_arguments(["--device=cpu"]).size == "small"


def test_a_gpu_that_torch_cannot_use_is_refused_on_auto(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the NVML library, unlike torch, counts GPUs with an old driver."""
    (devices / "nvidia0").touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for ranks, device in ((1, "auto"), (1, "cuda"), (2, "auto")):
        with pytest.raises(UserError, match="torch finds no GPU, but the driver shows one; update the driver"):
            require_gpus(ranks, device)
    require_gpus(2, "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    require_gpus(1, "auto")
