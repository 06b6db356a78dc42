"""Files of tensors, of torch or safetensors: checked before they are used, and read without running code in them."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from gdt.common.errors import Damaged
from gdt.common.files import require_readable, writing

_MAX_STAND_INS = 100
"""Maximum number of classes that a file names."""


def write(path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Write a safetensors file, with `texts` as metadata, atomically. Raises OSError."""
    data = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()}, dict(texts))
    with writing(path) as file:
        file.write(data)


def load_checked(path: Path) -> Any:
    """Content of a file: of torch with inert stand-ins for all but tensors and plain values, of safetensors the
    metadata with all tensors as `model`. Raises Damaged.
    """
    try:
        with path.open("rb") as file:
            start = file.read(9)
        if start[8:] == b"{":  # after the length of safetensors' header
            with safetensors.safe_open(path, framework="pt", backend="pread") as table:
                return (table.metadata() or {}) | {"model": table.get_tensors()}
        if start.startswith(b"PK"):  # older files have no checksums, and torch does not verify those of newer ones
            with zipfile.ZipFile(path) as archive:
                part = archive.testzip()
            if part is not None:
                raise Damaged(f"checksum mismatch in its part {part}")
        return _unpickle(path)
    except (MemoryError, Damaged):
        raise
    except Exception as error:  # damaged bytes raise anything
        require_readable(path, error)
        raise Damaged("it is damaged, of another kind, or names code, which is not run") from error


def weights_in(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The weights in the content of a file, which may be anything. Raises Damaged if there are none."""
    weights = content.get("model")
    if not (isinstance(weights, Mapping) and weights and all(isinstance(each, Tensor) for each in weights.values())):
        raise Damaged("it has no model")
    return {str(name): value for name, value in weights.items()}


def _unpickle(path: Path) -> Any:
    """Content of a torch file.

    The release's files hold its command line, optimizer and scheduler. torch names each unknown class that it meets,
    and refuses modules that run code whatever stands in for them.
    """
    stand_ins: dict[str, Callable[..., Any]] = {"collections.defaultdict": lambda *_: {}}
    for _ in range(_MAX_STAND_INS):
        try:
            with torch.serialization.safe_globals([(stand_in, name) for name, stand_in in stand_ins.items()]):
                return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            unknown = re.search(r"GLOBAL ([\w.]+) was not an allowed global", str(error))
            if unknown is None:
                raise
            stand_ins[unknown[1] if "." in unknown[1] else f"builtins.{unknown[1]}"] = _Inert
    raise ValueError(f"it names more than {_MAX_STAND_INS} classes")


class _Inert:
    """Stand-in that ignores everything that unpickling does to it."""

    def __new__(cls, *arguments: object, **named: object) -> _Inert:
        return object.__new__(cls)

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass
