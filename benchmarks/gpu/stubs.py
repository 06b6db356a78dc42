"""Stubs for packages that are not installed and that most measurements do not need.

A stub can be imported. Those only for display, such as progress bars, do nothing; the others raise ModuleNotFoundError
when they are called.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType
from typing import Any

SILENT = ("tqdm", "tensorboard", "torch.utils.tensorboard", "tyro")
"""Packages for display."""
NEEDED = (
    "nvidia", "nvidia.dali", "nvidia.dali.fn", "nvidia.dali.types", "numba", "psutil", "safetensors",
    "safetensors.torch", "sklearn",
)  # fmt: skip
"""Packages that some measurement may call."""
MISSING: set[str] = set()
"""Modules replaced by stubs."""


class Stub:
    """A missing module, or an attribute of one."""

    __version__ = "not installed"

    def __init__(self, name: str, module: str) -> None:
        self._name, self._module = name, module
        self.__spec__ = ModuleSpec(module, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(f"{self._name}.{name}", self._module)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._module in SILENT or (named and not arguments):  # a decorator is called with its settings,
            return self
        if len(arguments) == 1 and isinstance(arguments[0], FunctionType):  # then with a function
            return Stub(arguments[0].__name__, self._module)
        raise ModuleNotFoundError(f"{self._module} is not installed, and {self._name} needs it")


def install_stubs(modules: Sequence[str] = (*SILENT, *NEEDED)) -> None:
    """Replace those of the modules that are not installed."""
    for name in modules:
        # torch.utils.tensorboard exists, but fails without tensorboard
        if not _is_installed("tensorboard" if name == "torch.utils.tensorboard" else name):
            MISSING.add(name)
            sys.modules[name] = Stub(name, name)  # type: ignore[assignment]


def _is_installed(name: str) -> bool:
    parent = name.rpartition(".")[0]
    return parent not in MISSING and importlib.util.find_spec(name) is not None
