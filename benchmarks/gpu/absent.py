"""Stand-ins for packages that are not installed and that most measurements do without.

Modules that are measured import them at their top. A stand-in can be imported, and what is only seen, such as a
progress bar, does nothing; one that would have to compute raises ModuleNotFoundError when it is asked to.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType
from typing import Any

SILENT = ("tqdm", "tensorboard", "torch.utils.tensorboard", "tyro")
"""Nobody looks at what they do here."""
NEEDED = (
    "nvidia", "nvidia.dali", "nvidia.dali.fn", "nvidia.dali.types", "numba", "psutil", "safetensors",
    "safetensors.torch", "sklearn",
)  # fmt: skip
"""What some measurement may ask something of."""
MISSING: set[str] = set()
"""Modules that are stood in for."""


class Absent:
    """A module that is not there, or whatever is asked of one."""

    __version__ = "not installed"

    def __init__(self, name: str, module: str) -> None:
        self._name, self._module = name, module
        self.__spec__ = ModuleSpec(module, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}", self._module)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._module in SILENT or (named and not arguments):  # a decorator gets its settings first,
            return self
        if len(arguments) == 1 and isinstance(arguments[0], FunctionType):  # and then a function
            return Absent(arguments[0].__name__, self._module)
        raise ModuleNotFoundError(f"{self._module} is not installed, and {self._name} needs it")


def stand_in(modules: Sequence[str] = (*SILENT, *NEEDED)) -> None:
    """From now on those of these modules that are not there are stood in for."""
    for name in modules:
        # torch's own module is there, and fails without the package
        if not _is_there("tensorboard" if name == "torch.utils.tensorboard" else name):
            MISSING.add(name)
            sys.modules[name] = Absent(name, name)  # type: ignore[assignment]


def _is_there(name: str) -> bool:
    parent = name.rpartition(".")[0]
    return parent not in MISSING and importlib.util.find_spec(name) is not None
