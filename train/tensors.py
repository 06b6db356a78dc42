"""Tensors and metadata in safetensors files, with a checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from gdt.common.errors import UserError, first_line
from gdt.common.files import require_readable, writing

CHECKSUM = "crc32"
"""Metadata key of our checksum; safetensors has none."""
_MAX_HEADER = 100_000_000
"""Maximum bytes of a header."""


def write(path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Write tensors, and `texts` as metadata, atomically. Raises OSError."""
    checked = {**texts, CHECKSUM: _checksum(tensors, texts)}
    data = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()}, checked)
    with writing(path) as file:
        file.write(data)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Tensors and metadata of a safetensors file, None if the file is of another kind.

    Raises UserError if it is truncated or does not match its checksum.
    """
    try:
        if not _is_safetensors(path):
            return None
        with safetensors.safe_open(path, framework="pt", backend="pread") as file:
            tensors, texts = file.get_tensors(), dict(file.metadata() or {})
    except OSError as error:
        require_readable(path, error)
        raise _damaged(path, first_line(error)) from error
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise _damaged(path, first_line(error)) from error
    if texts.get(CHECKSUM) not in (None, _checksum(tensors, texts)):
        raise _damaged(path, "checksum mismatch")
    return tensors, texts


def _is_safetensors(path: Path) -> bool:
    """Whether the file starts with the length of a header and a brace."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= _MAX_HEADER


def _checksum(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    """CRC-32 of the tensors' names, types, shapes and values, and of the other texts: 8 hex digits."""
    value = zlib.crc32(json.dumps(sorted(item for item in texts.items() if item[0] != CHECKSUM)).encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode(), value)
        value = zlib.crc32(raw_bytes(tensor), value)
    return f"{value:08x}"


def raw_bytes(tensor: Tensor) -> memoryview:
    """Bytes of a tensor's values in index order."""
    data: memoryview = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
    return data


def _damaged(path: Path, why: str) -> UserError:
    return UserError(f"{path} cannot be read as safetensors: it is damaged ({why}); export or download it again")
