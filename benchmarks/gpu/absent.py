"""Stand-ins for packages that are not installed and that most measurements do without.

Modules that are measured import them at their top. A stand-in can be imported, and what is only seen, such as a
progress bar, does nothing; one that would have to compute raises ModuleNotFoundError when it is asked to.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any, ClassVar

SILENT = ("tqdm", "tensorboard", "tyro")
"""Nobody looks at what they do here."""
NEEDED = ("nvidia.dali", "numba", "psutil", "sklearn", "safetensors")
"""What some measurement may ask something of."""
MISSING: set[str] = set()
"""Those that are stood in for."""
_DECORATORS = ("numba.njit",)
"""What takes its settings first, and then a function."""


class _Nothing:
    """Does whatever it is asked, which is nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self


class _Missing:
    """Cannot do anything, and says so; it can decorate what cannot, then, either."""

    def __init__(self, package: str, name: str) -> None:
        self._package, self._name = package, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(self._package, f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and isinstance(arguments[0], FunctionType) and not named:
            return _Missing(self._package, arguments[0].__name__)
        if self._name in _DECORATORS and not arguments:
            return self
        raise ModuleNotFoundError(f"{self._package} is not installed, and {self._name} needs it")


class _Module(ModuleType):
    __version__ = "not installed"
    __path__: ClassVar[list[str]] = []  # type: ignore[misc]

    def __init__(self, name: str, attribute: Any) -> None:
        super().__init__(name)
        self._attribute = attribute

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._attribute, name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of packages that are not there, and what those packages are in."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        near = any(_within(name, one) or _within(one, name) for one in MISSING)
        return importlib.util.spec_from_loader(name, self) if near else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        package = next((one for one in MISSING if _within(spec.name, one)), spec.name)
        return _Module(spec.name, _Nothing() if package in SILENT else _Missing(package, spec.name))

    def exec_module(self, module: ModuleType) -> None:
        return


def stand_in(packages: Sequence[str] = (*SILENT, *NEEDED)) -> None:
    """From now on those of these packages that are not installed are stood in for."""
    MISSING.update([name for name in packages if not _is_there(name)])
    if "tensorboard" in MISSING:  # torch's own module is there, and fails without it
        board = "torch.utils.tensorboard"
        sys.modules[board] = _Module(board, _Nothing())
    sys.meta_path.append(StandIns())


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _within(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")
