"""Tensors and metadata in safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from gdt.common.errors import UserError, first_line
from gdt.common.files import require_readable, writing

_MAX_HEADER = 100_000_000
"""Maximum bytes of a header."""


def write(path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Write tensors, and `texts` as metadata, atomically. Raises OSError."""
    data = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()}, dict(texts))
    with writing(path) as file:
        file.write(data)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Tensors and metadata of a safetensors file, None if the file is of another kind.

    Raises UserError if it is truncated or damaged.
    """
    try:
        if not _is_safetensors(path):
            return None
        with safetensors.safe_open(path, framework="pt", backend="pread") as file:
            return file.get_tensors(), dict(file.metadata() or {})
    except OSError as error:
        require_readable(path, error)
        raise _damaged(path, first_line(error)) from error
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise _damaged(path, first_line(error)) from error


def _is_safetensors(path: Path) -> bool:
    """Whether the file starts with the length of a header and a brace."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= _MAX_HEADER


def raw_bytes(tensor: Tensor) -> memoryview:
    """Bytes of a tensor's values in index order."""
    data: memoryview = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
    return data


def _damaged(path: Path, why: str) -> UserError:
    return UserError(f"{path} cannot be read as safetensors: it is damaged ({why}); export or download it again")
